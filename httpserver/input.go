package httpserver

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// input is what was read of a connection and not used yet, in[start:end]. It has memory
// while there is something to keep, and none while it waits for the first of it.
type input struct {
	s  *Server
	nc net.Conn
	// raw is how the kernel is asked without Go's copies; nil where nc is no TCP or Unix
	// socket of its own (TLS).
	raw syscall.RawConn

	lent, outgrown Buffer // in, and what the handler's head is in where that was too small; nil: none
	in             []byte
	start, end     int
	base           int // of in; below is the head that the handler looks at

	readFn func(fd uintptr) bool // input.read, made once
	parked bool                  // read has waited
	n      int                   // what read has read
	err    error
	one    [1]byte
}

func (in *input) open(s *Server, nc net.Conn, raw syscall.RawConn) {
	in.s, in.nc, in.raw = s, nc, raw
	in.readFn = in.read
}

// empty says that nothing of the memory is in use.
func (in *input) empty() bool { return in.base == 0 && in.start == in.end }

// fill reads more. Errors: [ErrNoMemory], and those of net.Conn's Read.
func (in *input) fill() (n int, err error) {
	if in.lent != nil && in.end == len(in.in) {
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
		if in.lent != nil || in.err != nil {
			in.end += in.n
			return in.n, in.err
		}
		if err := in.acquire(); err != nil {
			return 0, err
		}
	}
}

// read is called by the poller: false waits until the socket has something, for which
// there has to be memory then.
func (in *input) read(fd uintptr) (done bool) {
	var n int
	var err error
	switch {
	case in.lent != nil:
		n, _, _, err = linux.Recv(int(fd), in.in[in.end:], nil, 0)
	case in.parked:
		return true
	default:
		n, _, _, err = linux.Recv(int(fd), in.one[:], nil, unix.MSG_PEEK)
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
	case in.lent != nil:
		in.n = n
	}
	return true
}

// fillSecure is fill where what has come shows only in reading it. A byte needs no
// memory of its own.
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

// acquire takes memory for what comes.
func (in *input) acquire() error {
	b, err := in.s.acquire(inputSize)
	if err != nil {
		return err
	}
	in.lent, in.in = b, b.Bytes()[:inputSize]
	in.start, in.end = 0, 0
	return nil
}

// release gives the memory back: nobody has a slice of it any more.
func (in *input) release() {
	if in.lent != nil {
		in.lent.Release()
	}
	if in.outgrown != nil {
		in.outgrown.Release()
	}
	in.lent, in.outgrown, in.in = nil, nil, nil
	in.start, in.end, in.base = 0, 0, 0
}

// grow makes room to read more. A head ends at its limit, a line of a chunked body
// at its own, a frame at its length.
func (in *input) grow() error {
	if in.start > in.base {
		in.end = in.base + copy(in.in[in.base:], in.in[in.start:in.end])
		in.start = in.base
		return nil
	}
	b, err := in.s.acquire(4 * len(in.in))
	if err != nil {
		return err
	}
	larger := b.Bytes()[:4*len(in.in)]
	in.end = copy(larger, in.in[in.start:in.end])
	if in.base > 0 {
		in.outgrown = in.lent // until the handler has done
	} else {
		in.lent.Release()
	}
	in.lent, in.in = b, larger
	in.start, in.base = 0, 0
	return nil
}
