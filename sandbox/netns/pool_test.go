package netns

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox/pool"
)

func openPool(t *testing.T) *Pool {
	t.Helper()
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	p := Open(Config{Size: 2})
	t.Cleanup(p.Close)
	return p
}

func inode(t *testing.T, f *os.File) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestAcquire(t *testing.T) {
	p := openPool(t)
	seen := map[uint64]bool{}
	for range 6 {
		n, err := p.Acquire()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Release(n)
		if i := inode(t, n.File()); seen[i] {
			t.Errorf("namespace %d leased twice", i)
		} else {
			seen[i] = true
		}
	}
}

func TestClosed(t *testing.T) {
	p := openPool(t)
	n, err := p.Acquire()
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	p.Release(n)
	if _, err := p.Acquire(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("acquire after Close: %v, want %v", err, fs.ErrClosed)
	}
}

// TestNotClean leaves a socket in a namespace: it must not be leased again.
func TestNotClean(t *testing.T) {
	p := openPool(t)
	n, err := p.Acquire()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release(n)
	if n.clean() != pool.Ready {
		t.Error("new namespace is not clean")
	}
	socket := make(chan int)
	go func() {
		runtime.LockOSThread() // thrown away with the namespace it joins
		fd := -1
		if unix.Setns(int(n.File().Fd()), unix.CLONE_NEWNET) == nil {
			fd, _ = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		}
		socket <- fd
	}()
	fd := <-socket
	if fd < 0 {
		t.Fatal("no socket in the namespace")
	}
	if n.clean() == pool.Ready {
		t.Error("namespace with a socket passes as clean")
	}
	unix.Close(fd)
	if n.clean() != pool.Ready {
		t.Error("namespace is not clean after its socket was closed")
	}
}
