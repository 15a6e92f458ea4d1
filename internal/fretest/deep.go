package fretest

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// NestDirs creates a chain of nested directories in dir with a file in each. Like hostile code, it
// works beyond the limit on the length of a path.
func NestDirs(t testing.TB, dir string, levels int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range levels {
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(unix.Mkdirat(at, "d", 0o755), unix.Mknodat(at, "f", unix.S_IFREG|0o644, 0))
		next, openErr := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		err = errors.Join(err, openErr, unix.Close(at))
		at = next
	}
	if err := errors.Join(err, unix.Close(at)); err != nil {
		t.Fatal(err)
	}
}

// LimitFiles lets this process open at most the given number of further files, until the test ends.
func LimitFiles(t testing.TB, files int) {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: uint64(len(open) + files), Max: before.Max}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &before, nil); err != nil {
			t.Error(err)
		}
	})
}
