package httpserver

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel/rawio"
)

// socket is a pending read on a plain socket. It asks the kernel before it waits. Short reads use
// system calls that Go's scheduler does not see (see rawio.Recv).
type socket struct {
	into    []byte
	n       int
	err     error
	receive func(fd uintptr) bool // receiveFrom, allocated once
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

// receiveFrom is called by the poller. It returns false to wait until the socket is readable.
func (s *socket) receiveFrom(fd uintptr) (done bool) {
	s.n, _, _, s.err = rawio.Recv(int(fd), s.into, nil, 0)
	return !errors.Is(s.err, unix.EAGAIN)
}
