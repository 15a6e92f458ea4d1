package egress

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
)

// counters detect whether the namespace has sent a packet, or failed to send one, since
// openCounters, and whether flow labels remain.
type counters struct {
	files [3]*os.File
	first []byte
}

// openCounters reads the counters of the thread's namespace.
func openCounters() (*counters, error) {
	c := &counters{}
	for i, name := range []string{"snmp", "snmp6", "ip6_flowlabel"} {
		f, err := os.Open("/proc/thread-self/net/" + name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.close()
			return nil, err
		}
		if err == nil {
			c.files[i] = f
		}
	}
	var err error
	if c.first, err = c.read(); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// read returns the whole of snmp, which has TCP's counts for both families. Of snmp6 read
// returns only the counts of UDP and of packets without a route, since the kernel sends ICMPv6
// by itself.
func (c *counters) read() ([]byte, error) {
	var out []byte
	buf := make([]byte, 8192)
	for i, f := range c.files {
		if f == nil {
			continue
		}
		n, err := f.ReadAt(buf, 0)
		if n == 0 {
			return nil, err
		}
		for line := range bytes.Lines(buf[:n]) {
			if i != 1 || bytes.HasPrefix(line, []byte("Udp")) || bytes.HasPrefix(line, []byte("Ip6OutNoRoutes")) {
				out = append(out, line...)
			}
		}
	}
	return out, nil
}

func (c *counters) unchanged() bool {
	now, err := c.read()
	return err == nil && bytes.Equal(now, c.first)
}

func (c *counters) close() {
	for _, f := range c.files {
		if f != nil {
			_ = f.Close()
		}
	}
}
