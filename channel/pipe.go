package channel

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/fre-engine/fre/function/channel/wire"

	"golang.org/x/sys/unix"
)

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

// takeFile returns the regular file, or for PIPE the pipe, that came with the last frame. The frame
// announces a descriptor. The caller owns the file.
func takeFile(f *wire.Reader, k wire.Kind) (*os.File, error) {
	fd, ok := f.Take()
	if !ok {
		return nil, fmt.Errorf("%w: not the announced file descriptor", ErrProtocol)
	}
	if k == wire.KindPipe {
		defer func() { _ = unix.Close(fd) }()
		pipe, err := reopenPipe(fd)
		if err != nil && !errors.Is(err, ErrProtocol) {
			return nil, nil //nolint:nilnil // framePipe says so to the one event
		}
		return pipe, err
	}
	// Check before os.NewFile, which registers pollable files with the poller.
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%w: the answer's file is not a regular file: mode 0%o", ErrProtocol, st.Mode)
	}
	return os.NewFile(uintptr(fd), "answer"), nil
}
