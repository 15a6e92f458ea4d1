package netns

import (
	"errors"
	"hash/maphash"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/pool"
)

// traces are the files of /proc/net that could show a sandbox an earlier user of the namespace:
// counters of packets and of failures, which grow without a packet too, and flow labels, which
// outlive their socket. The kernel resets none of them. The other files in the directory list
// sockets, which [Namespace.Clean] checks, list objects that only a privileged user changes, or
// count the whole host.
var traces = []string{"dev", "snmp", "snmp6", "netstat", "ip6_flowlabel"}

var traceSeed = maphash.MakeSeed()

// newTraced is New for a namespace of the pool: it records the hash of the traces.
func newTraced() (n *Namespace, err error) {
	var seen uint64
	n, err = New(func() (err error) {
		seen, err = readTraces()
		return err
	})
	if err == nil {
		n.seen = seen
	}
	return n, err
}

// readTraces returns a hash of the traces in the calling thread's namespace. A kernel without
// IPv6 lacks some of the files.
func readTraces() (uint64, error) {
	var h maphash.Hash
	h.SetSeed(traceSeed)
	buf := make([]byte, 8192)
	for _, name := range traces {
		fd, err := unix.Open("/proc/thread-self/net/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		for {
			size, err := unix.Read(fd, buf)
			if size <= 0 {
				unix.Close(fd)
				if err != nil {
					return 0, err
				}
				break
			}
			_, _ = h.Write(buf[:size])
		}
	}
	return h.Sum64(), nil
}

// clean returns Spoilt if the namespace shows any trace of its last user.
func (n *Namespace) clean() pool.Verdict {
	if !n.Clean() {
		return pool.Spoilt
	}
	var now uint64
	err := Do(n.file, func() (err error) {
		now, err = readTraces()
		return err
	})
	if err != nil || now != n.seen {
		return pool.Spoilt
	}
	return pool.Ready
}
