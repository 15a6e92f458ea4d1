package httpserver

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// socket is a read and a write under way on a connection that is a socket of its own.
// Both ask the kernel first, by calls of which Go's scheduler is not told where little
// is moved (linux.Recv says why), and wait only then.
type socket struct {
	into    []byte
	n       int
	err     error
	receive func(fd uintptr) bool // receiveFrom of the connection's, made once

	parts [][]byte
	sent  int
	fault error
	send  func(fd uintptr) bool // sendTo, made once
}

func (s *socket) init() { s.receive, s.send = s.receiveFrom, s.sendTo }

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

// sendNow sends what the socket takes of c.buffers at once, which are then the rest;
// whole says that there is none.
func (c *conn) sendNow() (whole bool, err error) {
	s := &c.socket
	s.parts = c.buffers
	err = c.raw.Write(s.send)
	s.parts = nil
	if err != nil {
		return false, err
	}
	if s.fault != nil && !errors.Is(s.fault, unix.EAGAIN) {
		return false, os.NewSyscallError("sendmsg", s.fault)
	}
	for sent := s.sent; len(c.buffers) > 0; c.buffers = c.buffers[1:] {
		if sent < len(c.buffers[0]) {
			c.buffers[0] = c.buffers[0][sent:]
			return false, nil
		}
		sent -= len(c.buffers[0])
	}
	return true, nil
}

func (s *socket) sendTo(fd uintptr) (done bool) {
	s.sent, s.fault = linux.Send(int(fd), s.parts, nil, 0)
	return true
}
