package origin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/admission"
	"github.com/fre-engine/fre/internal/daemon"
	"github.com/fre-engine/fre/internal/fretest"
)

// fake makes size bytes of a letter.
type fake struct {
	letter byte
	size   int
	err    error
	wait   <-chan struct{} // nil: not
	made   *atomic.Int64
	closed *atomic.Int64
}

func (f *fake) open() (int64, error) {
	if f.wait != nil {
		<-f.wait
	}
	return int64(2 * f.size), f.err
}

func (f *fake) append(dst []byte) ([]byte, error) {
	f.made.Add(1)
	return append(dst, bytes.Repeat([]byte{f.letter}, f.size)...), nil
}

func (f *fake) close() error {
	f.closed.Add(1)
	return nil
}

// TestCache: what is made is kept while it has room, is made once however many ask for it, and
// can be sent to its end when others have taken its place.
func TestCache(t *testing.T) {
	fretest.CheckLeaks(t)
	c := newCache(1000, 2, func() error { return nil })
	var n, closed atomic.Int64
	get := func(letter byte, size int) *made {
		t.Helper()
		m, err := c.get(string(letter), &fake{letter: letter, size: size, made: &n, closed: &closed})
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, m.size)
		if _, err := m.file.ReadAt(b, 0); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{letter}, size)) {
			t.Errorf("%c: %.20q, %v", letter, b, err)
		}
		return m
	}
	first := get('a', 400)
	c.release(get('a', 400))
	c.release(get('b', 400))
	if n.Load() != 2 {
		t.Errorf("%d made, not 2", n.Load())
	}
	c.release(get('b', 400)) // before a now
	c.release(get('c', 400)) // in the place of a
	if _, err := first.file.Stat(); err != nil {
		t.Errorf("what is being sent is closed: %v", err)
	}
	c.release(first)
	if _, err := first.file.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("what nobody has any more is open: %v", err)
	}
	c.release(get('b', 400))
	if n.Load() != 3 {
		t.Errorf("%d made, not 3", n.Load())
	}
	c.release(get('a', 400))
	large := get('l', 2000) // more than there is room
	c.release(large)
	if _, err := large.file.Stat(); !errors.Is(err, os.ErrClosed) || n.Load() != 5 || c.bytes != 800 || len(c.made) != 2 {
		t.Errorf("%v, %d made, %d bytes, %d kept", err, n.Load(), c.bytes, len(c.made))
	}

	broken := errors.New("broken")
	for range 2 {
		if _, err := c.get("x", &fake{size: 1, err: broken, made: &n, closed: &closed}); !errors.Is(err, broken) {
			t.Error(err)
		}
	}
	if n.Load() != 5 || closed.Load() != 7 {
		t.Errorf("%d made, %d closed", n.Load(), closed.Load())
	}

	// Many at once.
	wait := make(chan struct{})
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			m, err := c.get("z", &fake{letter: 'z', size: 100, wait: wait, made: &n, closed: &closed})
			if err != nil {
				t.Error(err)
				return
			}
			c.release(m)
		})
	}
	close(wait)
	group.Wait()
	if n.Load() != 6 {
		t.Errorf("%d made, not 6", n.Load())
	}
	c.drop(func(tag string) bool { return tag == "z" })
	if c.bytes != 800 {
		t.Errorf("%d bytes are kept", c.bytes)
	}
	c.drop(nil)
	if c.bytes != 0 || len(c.made) != 0 {
		t.Errorf("%d bytes, %d are kept", c.bytes, len(c.made))
	}
}

// TestCacheBusy: who cannot be served soon is refused at once, and the others are.
func TestCacheBusy(t *testing.T) {
	fretest.CheckLeaks(t)
	c := newCache(1<<20, 1, func() error { return nil })
	c.makers = newMakers(1, admission.QueueConfig{Length: 2})
	var n, closed atomic.Int64
	wait := make(chan struct{})
	var group sync.WaitGroup
	ask := func(i int) {
		group.Go(func() {
			m, err := c.get(fmt.Sprint(i), &fake{letter: 'a', size: 100, wait: wait, made: &n, closed: &closed})
			if err != nil {
				t.Errorf("%d: %v", i, err)
				return
			}
			c.release(m)
		})
	}
	state := func() (busy, waiting int) {
		c.makers.mu.Lock()
		defer c.makers.mu.Unlock()
		return c.makers.busy, len(c.makers.waiting)
	}
	for i := range 3 {
		ask(i)
		if err := daemon.Until(t.Context(), func() error {
			if busy, waiting := state(); busy != 1 || waiting != i {
				return fmt.Errorf("%d busy, %d wait", busy, waiting)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.get("more", &fake{letter: 'a', size: 100, made: &n, closed: &closed}); !errors.Is(err, errBusy) {
		t.Errorf("more than may wait: %v", err)
	}
	close(wait)
	group.Wait()
	if busy, waiting := state(); busy != 0 || waiting != 0 || n.Load() != 3 {
		t.Errorf("%d busy, %d wait, %d made", busy, waiting, n.Load())
	}
	m, err := c.get("more", &fake{letter: 'a', size: 100, made: &n, closed: &closed})
	if err != nil {
		t.Fatal(err)
	}
	c.release(m)
	c.drop(nil)
}

// cut makes what a file has, which becomes shorter meanwhile.
type cut struct {
	f     *os.File
	pages []byte
}

func (c *cut) open() (n int64, err error) {
	n = 1 << 20
	c.pages, err = unix.Mmap(int(c.f.Fd()), 0, int(n), unix.PROT_READ, unix.MAP_SHARED)
	return n, err
}

func (c *cut) append(dst []byte) ([]byte, error) {
	if err := c.f.Truncate(100); err != nil {
		return nil, err
	}
	return append(dst, c.pages...), nil
}

func (c *cut) close() error { return unix.Munmap(c.pages) }

// TestCacheFault: a file that cannot be read any more fails who asks for it, and nobody else.
func TestCacheFault(t *testing.T) {
	fretest.CheckLeaks(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.CopyN(f, strings.NewReader(strings.Repeat("x", 1<<20)), 1<<20); err != nil {
		t.Fatal(err)
	}
	c := newCache(1<<20, 1, func() error { return nil })
	if _, err := c.get("a", &cut{f: f}); err == nil || !strings.Contains(err.Error(), "shorter than it was") {
		t.Errorf("%v", err)
	}
	if len(c.made) != 0 || c.makers.busy != 0 {
		t.Errorf("%d kept, %d busy", len(c.made), c.makers.busy)
	}
}

// panics cannot make what it is asked for.
type panics struct{ *fake }

func (panics) append([]byte) ([]byte, error) { panic("out of range") }

// TestCachePanic: a segment that cannot be made so fails who asks, each time, and nobody else.
func TestCachePanic(t *testing.T) {
	fretest.CheckLeaks(t)
	c := newCache(1<<20, 1, func() error { return nil })
	var n, closed atomic.Int64
	for range 3 {
		if _, err := c.get("a", panics{&fake{size: 10, made: &n, closed: &closed}}); err == nil || !strings.Contains(err.Error(), "out of range") {
			t.Errorf("%v", err)
		}
	}
	if len(c.made) != 0 || c.makers.busy != 0 || closed.Load() != 3 {
		t.Errorf("%d kept, %d busy, %d closed", len(c.made), c.makers.busy, closed.Load())
	}
}
