package httpserver

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// socket is a read under way on a connection that is a socket of its own. It asks the
// kernel first, by calls of which Go's scheduler is not told where little is moved
// (linux.Recv says why), and waits only then.
type socket struct {
	into    []byte
	n       int
	err     error
	receive func(fd uintptr) bool // receiveFrom of the connection's, made once
}

func (s *socket) init() { s.receive = s.receiveFrom }

// read is nc.Read.
func (c *conn) read(p []byte) (int, error) {
	if c.raw == nil || len(p) == 0 {
		return c.nc.Read(p)
	}
	s := &c.socket
	s.into = p
	err := c.raw.Read(s.receive)
	s.into = nil
	switch {
	case err != nil:
		return 0, err
	case s.err != nil:
		return 0, os.NewSyscallError("recvmsg", s.err)
	case s.n == 0:
		return 0, io.EOF
	}
	return s.n, nil
}

// receiveFrom is called by the poller; false waits until there is something to read.
func (s *socket) receiveFrom(fd uintptr) (done bool) {
	s.n, _, _, s.err = linux.Recv(int(fd), s.into, nil, 0)
	return !errors.Is(s.err, unix.EAGAIN)
}
