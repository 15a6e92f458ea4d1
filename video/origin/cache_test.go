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
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// fake makes segments of size bytes of one letter.
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

// TestCache: a segment stays while the cache has room, is made once for any number of simultaneous
// requests, and can be sent to its end after its removal from the cache.
func TestCache(t *testing.T) {
	fretest.CheckLeaks(t)
	page := os.Getpagesize()
	c := newCache(int64(2*page), 2, func() error { return nil })
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
	open := func(m *made) bool {
		_, err := m.file.Stat()
		return !errors.Is(err, os.ErrClosed)
	}
	first := get('a', 400)
	c.release(get('a', 400))
	c.release(get('b', 400))
	if n.Load() != 2 {
		t.Errorf("%d made, not 2", n.Load())
	}
	c.release(get('b', 400))
	c.release(get('c', 400)) // in the place of b: a is being sent
	if !open(first) {
		t.Error("what is being sent is closed")
	}
	c.release(first)
	c.release(get('a', 400))
	if n.Load() != 3 {
		t.Errorf("%d made, not 3", n.Load())
	}
	c.release(get('b', 400)) // in the place of c
	large := get('l', 3*page)
	if c.bytes != int64(3*page) {
		t.Errorf("%d bytes with one that is larger than all the room", c.bytes)
	}
	c.release(large)
	if open(large) || n.Load() != 5 || c.bytes != 0 || len(c.made) != 0 {
		t.Errorf("open %v, %d made, %d bytes, %d kept", open(large), n.Load(), c.bytes, len(c.made))
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

	// Many simultaneous requests.
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
	if c.bytes != 0 {
		t.Errorf("%d bytes are kept", c.bytes)
	}
	c.release(get('a', 400))
	c.drop(nil)
	if c.bytes != 0 || len(c.made) != 0 {
		t.Errorf("%d bytes, %d are kept", c.bytes, len(c.made))
	}
}

// TestCacheBound: cached segments, segments being sent, and removed segments still being sent
// together stay within the memory limit, in pages as the kernel counts. A segment without room is
// refused until there is room.
func TestCacheBound(t *testing.T) {
	fretest.CheckLeaks(t)
	page := int64(os.Getpagesize())
	c := newCache(4*page, 2, func() error { return nil })
	var n, closed atomic.Int64
	var all []*made
	get := func(name string, size int) (*made, error) {
		m, err := c.get(name, &fake{letter: 'a', size: size, made: &n, closed: &closed})
		if err == nil {
			all = append(all, m)
		}
		return m, err
	}
	must := func(name string, size int) *made {
		t.Helper()
		m, err := get(name, size)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return m
	}
	check := func(files int) {
		t.Helper()
		open, memory := 0, int64(0)
		seen := map[*made]bool{}
		for _, m := range all {
			if info, err := m.file.Stat(); err == nil && !seen[m] {
				seen[m] = true
				open++
				memory += info.Sys().(*syscall.Stat_t).Blocks * 512
			}
		}
		if open != files || memory != c.bytes || memory > c.most {
			t.Errorf("%d files, not %d, with %d bytes; %d are counted, of %d", open, files, memory, c.bytes, c.most)
		}
	}
	for i := range 9 { // a few bytes take a page
		c.release(must(fmt.Sprint(i), 10))
	}
	check(4)
	readers := []*made{must("8", 10), must("7", 10), must("slow", int(page))} // it may take two pages until it is made
	check(3)
	if _, err := get("more", int(page)); !errors.Is(err, errFull) {
		t.Errorf("without room: %v", err)
	}
	c.release(must("fits", 10))
	check(4)
	c.drop(nil)
	check(3) // sent to the end
	if m := must("slow", 10); m == readers[2] {
		t.Error("what was dropped is handed out")
	} else {
		readers = append(readers, m)
	}
	check(4)
	if _, err := get("more", 10); !errors.Is(err, errFull) {
		t.Errorf("without room: %v", err)
	}
	c.release(readers[0])
	check(3)
	c.release(must("more", 10))
	check(4)
	for _, m := range readers[1:] {
		c.release(m)
	}
	c.drop(nil)
	check(0)
}

// TestCacheBusy: a request that cannot be served soon is refused at once; the rest are served.
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
		if err := testdaemon.Until(t.Context(), func() error {
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

// cut makes a segment from a file that becomes shorter meanwhile.
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

// TestCacheFault: an unreadable file fails only the requests for it.
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

// panics panics in every conversion.
type panics struct{ *fake }

func (panics) append([]byte) ([]byte, error) { panic("out of range") }

// TestCachePanic: a segment whose conversion panics fails each request for it, and no request for
// another segment.
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
