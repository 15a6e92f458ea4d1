package store

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// openat opens name below dir, never through a symlink, close-on-exec.
func openat(dir int, name string, flags int, mode uint32) (*os.File, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: name, Err: err}
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}

// readNames lists an open directory from its start.
func readNames(dir *os.File) ([]string, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return dir.Readdirnames(-1)
}

// writeFileAt writes a small private file below dir.
func writeFileAt(dir int, name string, b []byte) error {
	f, err := openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

func setMTime(dir int, name string, mtime int64) error {
	t := unix.Timespec{Sec: mtime}
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
}
