package channel

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

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

// WritePipe has w take the next n bytes of a pipe, which are in it: by its own WritePipe
// if it has one.
func WritePipe(w io.Writer, pipe *os.File, n int) (int, error) {
	if pw, ok := w.(PipeWriter); ok {
		return pw.WritePipe(pipe, n)
	}
	m, err := io.CopyN(w, pipe, int64(n))
	return int(m), err
}

// Readable waits until there is something in a pipe, which the poller must watch, and
// says how many bytes. io.EOF once there will be no more; other errors are those of
// [os.File.Read].
func Readable(pipe syscall.RawConn) (n int, err error) {
	werr := pipe.Read(func(fd uintptr) bool {
		if n, err = unix.IoctlGetInt(int(fd), unix.SIOCINQ); err != nil || n > 0 {
			return true
		}
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err = unix.Poll(p[:], 0); err != nil {
			return !errors.Is(err, unix.EINTR)
		}
		if p[0].Revents&(unix.POLLIN|unix.POLLHUP) == unix.POLLHUP { // nobody writes any more
			err = io.EOF
			return true
		}
		return false
	})
	return n, cmp.Or(werr, err)
}

// reopenPipe opens a pipe anew, of which fd, a function's, is the reading end: the flags
// of what it returns, O_NONBLOCK among them, are nobody else's. ErrProtocol if fd is no
// such thing.
func reopenPipe(fd int) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, fmt.Errorf("fcntl: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO || flags&unix.O_PATH != 0 || flags&unix.O_ACCMODE != unix.O_RDONLY {
		return nil, fmt.Errorf("%w: the answer's pipe is no pipe's reading end: mode 0%o, flags 0%o", ErrProtocol, st.Mode, flags)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, fmt.Errorf("fstatfs: %w", err)
	}
	if fs.Type != unix.PIPEFS_MAGIC { // a FIFO has no end before somebody has written to it
		return nil, fmt.Errorf("%w: the answer's pipe is in a file system of type 0x%x", ErrProtocol, fs.Type)
	}
	own, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the answer's pipe: %w", err)
	}
	return os.NewFile(uintptr(own), "answer"), nil
}

// pipeSize is how many bytes of a stream a pipe may hold: what any user may ask for
// (pipe(7), pipe-max-size).
const pipeSize = 1 << 20

// answerPipe sends the rest of the answer through a pipe. sent is false where there is
// none to be had, and nothing was read of body then.
func (f *function) answerPipe(s *served, body io.Reader, buf []byte) (sent bool, err error) {
	r, w, err := os.Pipe()
	if err != nil { // too many files
		return false, nil
	}
	defer func() { _ = w.Close() }()
	if raw, err := w.SyscallConn(); err == nil {
		// A user's pipes may have to be smaller.
		_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
	}
	err = f.w.sendFile(s.ctx, kindPipe, s.id, nil, nil, r)
	_ = r.Close() // once nobody else has it, a write fails
	if errors.Is(err, unix.ETOOMANYREFS) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(s.ctx, func() { _ = w.SetWriteDeadline(time.Unix(1, 0)) })()
	var total [8]byte
	for n := uint64(0); ; {
		m, rerr := body.Read(buf)
		if m > 0 {
			if _, err := w.Write(buf[:m]); err != nil {
				return true, cmp.Or(context.Cause(s.ctx), err)
			}
			n += uint64(m)
		}
		switch {
		case rerr == io.EOF:
			_ = w.Close()
			binary.LittleEndian.PutUint64(total[:], n)
			return true, f.w.send(s.ctx, kindPipe, 0, s.id, nil, total[:])
		case rerr != nil:
			return true, rerr
		}
	}
}
