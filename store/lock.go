package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockedError reports that another engine uses the state directory.
type LockedError struct {
	Dir string
	PID int // 0 if unknown
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("engine already running on that state directory: %s (pid %d)", e.Dir, e.PID)
}

// Is makes errors.Is(err, ErrLocked) true.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// ErrLocked matches a [*LockedError] in errors.Is.
var ErrLocked = errors.New("store is locked")

// takeLock takes the flock on the file lock in dir and writes the pid into the file. The kernel
// releases the lock when the process ends.
func takeLock(dir *os.File) (*os.File, error) {
	f, err := openat(int(dir.Fd()), "lock", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock store %s: %w", dir.Name(), err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock store %s: %w", dir.Name(), err)
		}
		b, _ := io.ReadAll(io.LimitReader(f, 32))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return nil, &LockedError{Dir: dir.Name(), PID: pid}
	}
	// The pid is only for people: do not fail if a full disk has no room for it.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
	}
	return f, nil
}

// releaseLock undoes takeLock; f may be nil. It unlocks explicitly: a child between fork and
// exec holds a copy of the descriptor, so close alone would keep the lock until the exec.
func releaseLock(f *os.File) error {
	if f == nil {
		return nil
	}
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}
