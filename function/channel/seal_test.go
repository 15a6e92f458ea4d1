package channel

import (
	"bytes"
	"errors"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/fre-engine/fre/function/channel/wire"

	"golang.org/x/sys/unix"
)

// TestBusyPages: a body leaves in a file even if the kernel does not seal the file now. The engine
// copies such a file.
func TestBusyPages(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789"), 1<<17)
	mapped, err := newMemfd()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mapped.Close() }()
	if err := mapped.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	held, err := unix.Mmap(int(mapped.Fd()), 0, 1<<20, unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(held); err != nil {
			t.Error(err)
		}
	}()
	if err := seal(mapped); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("sealed while it can be written: %v", err)
	}
	ours, theirs := socketPair(t)
	var frames sync.WaitGroup
	defer frames.Wait()
	w, err := wire.NewWriter(ours, t.Context().Done(), &frames, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	f := &function{w: w, mostBytes: 4 << 20, seal: func(*os.File) error { return seal(mapped) }}
	meta := wire.AppendResponse(nil, 200, nil)
	if sent, err := f.answerFile(t.Context(), 1, meta, &Answer{Body: bytes.NewReader(body)}); !sent || err != nil {
		t.Fatalf("sent: %v, %v", sent, err)
	}
	r, err := wire.NewReader(theirs)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	h, _, err := r.Next()
	if err != nil || h.Kind != wire.KindFD {
		t.Fatalf("got %+v, %v, want FD", h, err)
	}
	fd, ok := r.Take()
	if !ok {
		t.Fatal("FD without a file")
	}
	file := os.NewFile(uintptr(fd), "answer")
	defer func() { _ = file.Close() }()
	got := make([]byte, len(body))
	if _, err := file.ReadAt(got, 0); err != nil || !bytes.Equal(got, body) {
		t.Errorf("other bytes, or %v", err)
	}
	if seals, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&wire.AnswerSeals != 0 {
		t.Errorf("seals 0x%x, %v", seals, err)
	}
}

// socketPair returns both ends of a stream.
func socketPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}
