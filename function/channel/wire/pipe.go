package wire

import (
	"cmp"
	"errors"
	"os"

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

// PipeSize is the capacity of an answer's pipe in bytes: the most that any user may set (pipe(7),
// pipe-max-size).
const PipeSize = 1 << 20
