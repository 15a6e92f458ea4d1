package httpserver

import (
	"errors"

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

// receiveFrom is called by the poller. It returns false to wait until the socket is readable.
func (s *socket) receiveFrom(fd uintptr) (done bool) {
	s.n, _, _, s.err = rawio.Recv(int(fd), s.into, nil, 0)
	return !errors.Is(s.err, unix.EAGAIN)
}
