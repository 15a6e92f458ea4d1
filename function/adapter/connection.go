package adapter

import (
	"bufio"
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// connection is a connection to the server.
type connection struct {
	net.Conn
	r    *bufio.Reader
	used bool // has carried a request
}

// send writes the head of a request.
func (c *connection) send(head []byte) error {
	if _, err := c.Write(head); err != nil {
		return err
	}
	return c.acknowledge()
}

// alive reports whether the idle connection is silent: neither closed nor with unexpected bytes.
func (c *connection) alive() bool {
	if c.r.Buffered() > 0 {
		return false
	}
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		quiet = errors.Is(err, unix.EAGAIN)
		return true
	})
	return err == nil && quiet
}

// acknowledge has the kernel acknowledge the next segment at once (tcp(7), TCP_QUICKACK). A server
// that writes its answer in two pieces without TCP_NODELAY sends the second piece only after the
// acknowledgement of the first, which otherwise takes 40 ms.
func (c *connection) acknowledge() error {
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) // only speed depends on it
	})
}
