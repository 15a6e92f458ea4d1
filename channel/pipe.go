package channel

import (
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// PipeWriter is a writer that can take what is in a pipe without a copy: Reply.Body's
// WriteTo looks for it.
type PipeWriter interface {
	io.Writer
	// WritePipe is Write with the next n bytes of a pipe, which are in it. It reads no
	// others; of those that it does not return it may have read some.
	WritePipe(pipe *os.File, n int) (int, error)
}

// pipe is a kernel pipe in which bytes of a body wait on their way from one socket to
// another (splice(2)). Neither end is the poller's or nonblocking: what would wait is
// not asked for, and a poller would wake up for every byte.
type pipe struct{ r, w *os.File }

func newPipe() (*pipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	// A user's pipes may have to be smaller: what does not fit is copied.
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, Window)
	return &pipe{os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe")}, nil
}

func (p *pipe) close() {
	_ = p.r.Close()
	_ = p.w.Close()
}

// empty asks the kernel.
func (p *pipe) empty() bool {
	n, err := unix.IoctlGetInt(int(p.r.Fd()), unix.SIOCINQ)
	return err == nil && n == 0
}

// pipes keeps the pipes of a channel that are not in use.
type pipes struct {
	mu     sync.Mutex
	idle   []*pipe
	closed bool
}

const mostIdlePipes = 8

// get returns a pipe that is the caller's, nil where there is none to be had.
func (s *pipes) get() *pipe {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		p := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return p
	}
	p, err := newPipe()
	if err != nil { // too many files: the body is copied
		return nil
	}
	return p
}

// put takes a pipe back that its user has emptied; drained says that it thinks so. In
// one that is not, the next user's body would begin with what is left of another's.
func (s *pipes) put(p *pipe, drained bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !drained || len(s.idle) == mostIdlePipes || !p.empty() {
		p.close()
		return
	}
	s.idle = append(s.idle, p)
}

func (s *pipes) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.idle {
		p.close()
	}
	s.idle, s.closed = nil, true
}

// WritePipe has w take the next n bytes of a pipe, which are in it: by its own WritePipe
// if it has one.
func WritePipe(w io.Writer, pipe *os.File, n int) (int, error) {
	if pw, ok := w.(PipeWriter); ok {
		return pw.WritePipe(pipe, n)
	}
	m, err := io.CopyN(w, pipe, int64(n))
	return int(m), err
}

// splice moves up to most bytes that have come into a pipe. It waits for the first;
// n is 0 where the pipe takes no more. io.EOF at the channel's end.
func (r *rightsReader) splice(p *pipe, most int) (n int, err error) {
	r.pipe, r.most = p, most
	err = r.raw.Read(r.move)
	r.pipe = nil
	switch {
	case err != nil:
		return 0, err
	case errors.Is(r.err, unix.EAGAIN):
		return 0, nil
	case r.err != nil:
		return 0, os.NewSyscallError("splice", r.err)
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

// moveTo is called by the poller; false waits until there is something to read.
func (r *rightsReader) moveTo(fd uintptr) (done bool) {
	for again := false; ; {
		n, err := unix.Splice(int(fd), nil, int(r.pipe.w.Fd()), nil, r.most, unix.SPLICE_F_NONBLOCK)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) && !again: // the socket has nothing, or the pipe no room
			if queued, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ); err == nil && queued == 0 {
				return false
			}
			again = true // something may have come in between
			continue
		}
		r.n, r.err = int(n), err
		return true
	}
}
