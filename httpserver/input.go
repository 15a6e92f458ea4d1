package httpserver

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel/rawio"
)

// input holds the unparsed input of a connection in in[start:end]. It acquires memory with the
// first byte and holds none while the connection waits for one.
type input struct {
	pool *pool
	nc   net.Conn
	// raw allows system calls without Go's copies. It is nil unless nc is a plain TCP or Unix
	// socket.
	raw syscall.RawConn

	held, outgrown Buffer // memory of in; memory of the handler's head, if in has outgrown it; nil: none
	in             []byte
	start, end     int
	base           int // start of the usable part of in; the handler's head lies below

	readFn func(fd uintptr) bool // input.read, allocated once
	parked bool                  // read has waited for the socket
	n      int                   // bytes of the last read
	err    error
	one    [1]byte
	socket socket
}

func (in *input) open(p *pool, nc net.Conn, raw syscall.RawConn) {
	in.pool, in.nc, in.raw = p, nc, raw
	in.readFn = in.read
	in.socket.init()
}

// empty reports whether the memory holds nothing of use.
func (in *input) empty() bool { return in.base == 0 && in.start == in.end }

// fill reads more input. It returns [ErrNoMemory] or an error of net.Conn's Read.
func (in *input) fill() (n int, err error) {
	if in.held != nil && in.end == len(in.in) {
		if err := in.grow(); err != nil {
			return 0, err
		}
	}
	if in.raw == nil {
		return in.fillSecure()
	}
	for {
		in.parked, in.n, in.err = false, 0, nil
		if err := in.raw.Read(in.readFn); err != nil {
			return 0, err
		}
		if in.held != nil || in.err != nil {
			in.end += in.n
			return in.n, in.err
		}
		if err := in.acquire(); err != nil {
			return 0, err
		}
	}
}

// read is called by the poller. It returns false to wait until the socket is readable. Without
// memory it only finds out whether the socket is readable; fill then acquires memory.
func (in *input) read(fd uintptr) (done bool) {
	var n int
	var err error
	switch {
	case in.held != nil:
		n, _, _, err = rawio.Recv(int(fd), in.in[in.end:], nil, 0)
	case in.parked:
		return true
	default:
		n, _, _, err = rawio.Recv(int(fd), in.one[:], nil, unix.MSG_PEEK)
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		if in.empty() {
			in.release()
		}
		in.parked = true
		return false
	case err != nil:
		in.err = os.NewSyscallError("recvmsg", err)
	case n == 0:
		in.err = io.EOF
	case in.held != nil:
		in.n = n
	}
	return true
}

// fillSecure is fill for TLS, where input shows only by reading. It reads the first byte without
// memory.
func (in *input) fillSecure() (n int, err error) {
	if !in.empty() {
		n, err = in.nc.Read(in.in[in.end:])
		in.end += n
		return n, err
	}
	in.release()
	if n, err = in.nc.Read(in.one[:]); n == 0 {
		return 0, err
	}
	if err := in.acquire(); err != nil {
		return 0, err
	}
	in.end = copy(in.in, in.one[:])
	return in.end, nil
}

// acquire acquires memory for new input.
func (in *input) acquire() error {
	b, err := in.pool.acquire(inputSize)
	if err != nil {
		return err
	}
	in.held, in.in = b, b.Bytes()[:inputSize]
	in.start, in.end = 0, 0
	return nil
}

// release releases the memory. No slice of it may be in use.
func (in *input) release() {
	if in.held != nil {
		in.held.Release()
	}
	if in.outgrown != nil {
		in.outgrown.Release()
	}
	in.held, in.outgrown, in.in = nil, nil, nil
	in.start, in.end, in.base = 0, 0, 0
}

// grow makes room to read more. Heads, lines of chunked bodies and frames have their own limits.
func (in *input) grow() error {
	if in.start > in.base {
		in.end = in.base + copy(in.in[in.base:], in.in[in.start:in.end])
		in.start = in.base
		return nil
	}
	b, err := in.pool.acquire(4 * len(in.in))
	if err != nil {
		return err
	}
	larger := b.Bytes()[:4*len(in.in)]
	in.end = copy(larger, in.in[in.start:in.end])
	if in.base > 0 {
		in.outgrown = in.held // until the handler has returned
	} else {
		in.held.Release()
	}
	in.held, in.in = b, larger
	in.start, in.base = 0, 0
	return nil
}

// receive is nc.Read, past the memory.
func (in *input) receive(p []byte) (int, error) {
	if in.raw == nil || len(p) == 0 {
		return in.nc.Read(p)
	}
	s := &in.socket
	s.into = p
	err := in.raw.Read(s.receive)
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
