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
	"time"

	"golang.org/x/sys/unix"
)

// watchPipe returns a duplicate of pipe for [waitReadable], registered with the poller. The
// poller wakes up for every write to a registered pipe, whether or not a goroutine waits.
// watchPipe returns nil if too many files are open.
func watchPipe(pipe *os.File) *os.File {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return nil
	}
	var watch *os.File
	_ = raw.Control(func(fd uintptr) {
		if own, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			watch = os.NewFile(uintptr(own), pipe.Name())
		}
	})
	return watch
}

// waitReadable waits until the pipe has bytes or no writer. Its errors are those of
// [syscall.RawConn].
func waitReadable(watch *os.File) error {
	raw, err := watch.SyscallConn()
	if err != nil {
		return err
	}
	var perr error
	err = raw.Read(func(fd uintptr) bool {
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, perr = unix.Poll(p[:], 0); perr != nil {
			return !errors.Is(perr, unix.EINTR)
		}
		return p[0].Revents != 0
	})
	return cmp.Or(err, perr)
}

// reopenPipe opens the pipe behind fd, the reading end from a function, once more. The result has
// its own flags, O_NONBLOCK among them, and is not registered with the poller. reopenPipe returns
// ErrProtocol if fd is not a pipe's reading end; other errors are the host's.
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
	if fs.Type != unix.PIPEFS_MAGIC { // a named FIFO reports no end until its first write
		return nil, fmt.Errorf("%w: the answer's pipe is in a file system of type 0x%x", ErrProtocol, fs.Type)
	}
	own, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the answer's pipe: %w", err)
	}
	pipe := os.NewFile(uintptr(own), "answer")
	if err := unix.SetNonblock(own, true); err != nil { // after os.NewFile, which registers nonblocking files with the poller
		return nil, errors.Join(fmt.Errorf("fcntl: %w", err), pipe.Close())
	}
	return pipe, nil
}

// pipeSize is the capacity of an answer's pipe in bytes: the most that any user may set (pipe(7),
// pipe-max-size).
const pipeSize = 1 << 20

// answerPipe sends the rest of the answer through a pipe. sent is false if no pipe is available;
// then body is unread.
func (f *function) answerPipe(s *served, body io.Reader, buf []byte) (sent bool, err error) {
	r, w, err := os.Pipe()
	if err != nil { // too many files
		return false, nil
	}
	defer func() { _ = w.Close() }()
	raw, err := w.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) { _, err = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
		err = cmp.Or(cerr, err)
	}
	if err != nil { // the user has many pipes; a small pipe is slower than DATA
		_ = r.Close()
		return false, nil
	}
	err = f.w.sendFile(&s.ctx, kindPipe, s.id, nil, nil, r)
	_ = r.Close() // a write must fail once the engine closes its end
	if errors.Is(err, unix.ETOOMANYREFS) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(&s.ctx, func() { _ = w.SetWriteDeadline(time.Unix(1, 0)) })()
	var total [8]byte
	for n := uint64(0); ; {
		m, rerr := body.Read(buf)
		if m > 0 {
			if _, err := w.Write(buf[:m]); err != nil {
				return true, cmp.Or(context.Cause(&s.ctx), err)
			}
			n += uint64(m)
		}
		switch {
		case rerr == io.EOF:
			_ = w.Close()
			binary.LittleEndian.PutUint64(total[:], n)
			return true, f.w.send(&s.ctx, kindPipe, 0, s.id, nil, total[:])
		case rerr != nil:
			return true, rerr
		}
	}
}
