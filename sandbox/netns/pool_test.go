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

// TestAcquire: A pool leases no namespace twice at a time.
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

// TestNotClean: A namespace with a left socket is not leased again.
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
		runtime.LockOSThread() // Go ends the thread together with its joined namespace
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

// TestTraces: A namespace with traces of its last user is not clean, even without a socket.
func TestTraces(t *testing.T) {
	p := openPool(t)
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		t.Log("no IPv6 on this host: its counters are not tried")
	}
	send := func(family int, to unix.Sockaddr) error {
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, []byte("x"), 0, to)
	}
	for name, use := range map[string]func() error{
		"a packet over loopback": func() error {
			return send(unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 53000})
		},
		"a packet without a route": func() error {
			if err := send(unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte{192, 0, 2, 1}, Port: 53000}); !errors.Is(err, unix.ENETUNREACH) {
				return err
			}
			return nil
		},
		"a packet without a route, by IPv6": func() error {
			err := send(unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1}, Port: 53000})
			if errors.Is(err, unix.EAFNOSUPPORT) {
				return send(unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 53000})
			}
			if !errors.Is(err, unix.ENETUNREACH) {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := p.Acquire()
			if err != nil {
				t.Fatal(err)
			}
			defer p.Release(n)
			if n.clean() != pool.Ready {
				t.Fatal("new namespace is not clean")
			}
			if err := Do(n.File(), use); err != nil {
				t.Fatal(err)
			}
			if n.clean() == pool.Ready {
				t.Error("passes as clean")
			}
		})
	}
}
