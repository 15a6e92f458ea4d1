package buffer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// newPool returns a pool of n slabs; all buffers must be back at the end.
func newPool(t testing.TB, n int) *Pool {
	t.Helper()
	p, err := New(Config{Bytes: int64(n) * slabSize, Stacks: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestClassOf(t *testing.T) {
	for size, want := range map[int]int{
		0: MinSize, 1: MinSize, MinSize: MinSize, MinSize + 1: 2 * MinSize, 64 << 10: 64 << 10, 64<<10 + 1: 128 << 10,
		MaxSize - 1: MaxSize, MaxSize: MaxSize,
	} {
		n, bytes := classOf(size)
		if bytes != want || bytes != MinSize<<n || n >= classCount {
			t.Errorf("%d: class %d of %d bytes, want %d", size, n, bytes, want)
		}
	}
}

// Buffers in use at the same time never overlap, in any order and of any size.
func TestNoOverlap(t *testing.T) {
	p := newPool(t, 8)
	type loan struct {
		b    Buffer
		mark byte
	}
	var held []loan
	check := func(l loan) {
		t.Helper()
		for _, at := range []int{0, len(l.b.Bytes()) / 2, len(l.b.Bytes()) - 1} {
			if l.b.Bytes()[at] != l.mark {
				t.Fatalf("byte %d of a buffer of %d: %d, want %d", at, len(l.b.Bytes()), l.b.Bytes()[at], l.mark)
			}
		}
	}
	refused := 0
	for i := range 20000 {
		if size := 1 << rand.IntN(23); len(held) == 0 || rand.IntN(100) < 55 {
			b, err := p.TryAcquire(size)
			if errors.Is(err, ErrExhausted) {
				refused++
			} else if err != nil || len(b.Bytes()) < size || cap(b.Bytes()) != len(b.Bytes()) {
				t.Fatalf("%d bytes: %d, %v", size, len(b.Bytes()), err)
			} else {
				l := loan{b, byte(i)}
				for _, at := range []int{0, len(b.Bytes()) / 2, len(b.Bytes()) - 1} {
					b.Bytes()[at] = l.mark
				}
				held = append(held, l)
				continue
			}
		}
		if len(held) > 0 {
			at := rand.IntN(len(held))
			check(held[at])
			held[at].b.Release()
			held[at] = held[len(held)-1]
			held = held[:len(held)-1]
		}
	}
	for _, l := range held {
		check(l)
		l.b.Release()
	}
	if refused == 0 {
		t.Error("the pool was never exhausted")
	}
	if s := p.Stats(); s.Held != 0 {
		t.Errorf("%d bytes held", s.Held)
	}
}

// Memory of released buffers of any sizes serves buffers of any other size.
func TestSlabsMove(t *testing.T) {
	p := newPool(t, 4)
	for _, size := range []int{MinSize, MaxSize, 64 << 10, MaxSize, MinSize, 1 << 20} {
		var all []Buffer
		for {
			b, err := p.TryAcquire(size)
			if err != nil {
				break
			}
			all = append(all, b)
		}
		if want := 4 * slabSize / size; len(all) != want {
			t.Errorf("%d buffers of %d bytes, want %d", len(all), size, want)
		}
		for _, b := range all {
			b.Release()
		}
	}
}

func TestReleasedTwice(t *testing.T) {
	p := newPool(t, 1)
	b, err := p.TryAcquire(MinSize)
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	again := func() (panicked any) {
		defer func() { panicked = recover() }()
		b.Release()
		return nil
	}
	if again() == nil {
		t.Error("no panic while it is free")
	}
	other, err := p.TryAcquire(MinSize)
	if err != nil || &other.Bytes()[0] != &b.Bytes()[0] {
		t.Fatalf("not the same memory: %v", err)
	}
	if again() == nil {
		t.Error("no panic while it is somebody else's")
	}
	other.Bytes()[0] = 1
	other.Release() // the pool is complete
	Buffer{}.Release()
}

func TestTooLarge(t *testing.T) {
	p := newPool(t, 1)
	if _, err := p.TryAcquire(MaxSize + 1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if _, err := p.Acquire(t.Context(), MaxSize+1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
}

// Waiting requests are served in order, and a request that does not wait cannot overtake them.
func TestWaiters(t *testing.T) {
	p := newPool(t, 1)
	first, err := p.TryAcquire(MaxSize)
	if err != nil {
		t.Fatal(err)
	}
	order := make(chan int, 3)
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			b, err := p.Acquire(t.Context(), MaxSize)
			if err != nil {
				t.Error(err)
				return
			}
			order <- i
			b.Release()
		})
		for p.Stats().Waiting != i+1 {
			runtime.Gosched()
		}
	}
	if _, err := p.TryAcquire(MinSize); !errors.Is(err, ErrExhausted) {
		t.Errorf("got %v", err)
	}
	first.Release()
	wg.Wait()
	for want := range 3 {
		if got := <-order; got != want {
			t.Errorf("number %d was served as %d", got, want)
		}
	}
}

// A waiter that gives up leaves nothing behind, and later waiters pass.
func TestWaiterGivesUp(t *testing.T) {
	p := newPool(t, 2)
	small, err := p.TryAcquire(MinSize)
	if err != nil {
		t.Fatal(err)
	}
	half, err := p.TryAcquire(MaxSize)
	if err != nil {
		t.Fatal(err)
	}
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := p.Acquire(ctx, MaxSize); !errors.Is(err, gone) {
			t.Errorf("got %v", err)
		}
	})
	for p.Stats().Waiting != 1 {
		runtime.Gosched()
	}
	wg.Go(func() {
		b, err := p.Acquire(t.Context(), MinSize)
		if err != nil {
			t.Error(err)
			return
		}
		b.Release()
	})
	for p.Stats().Waiting != 2 {
		runtime.Gosched()
	}
	cancel(gone)
	wg.Wait()
	small.Release()
	half.Release()
	if s := p.Stats(); s.Held != 0 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

// Many goroutines use the pool with different sizes and ends, under the race detector.
func TestConcurrent(t *testing.T) {
	p := newPool(t, 3)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for range 2000 {
				size := MinSize << rand.IntN(classCount)
				var b Buffer
				var err error
				if g%2 == 0 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(200))*time.Microsecond)
					b, err = p.Acquire(ctx, size)
					cancel()
				} else {
					b, err = p.TryAcquire(size)
				}
				if err != nil {
					continue
				}
				data := b.Bytes()
				data[0], data[len(data)-1] = byte(g), byte(g)
				runtime.Gosched()
				if data[0] != byte(g) || data[len(data)-1] != byte(g) {
					t.Error("written by somebody else")
				}
				b.Release()
			}
		})
	}
	wg.Wait()
}

// TestScope: closing a scope releases all of its buffers, even after a panic. The scope can be
// opened again.
func TestScope(t *testing.T) {
	p := newPool(t, 1)
	s := p.Scope()
	for range 2 { // a closed scope starts again
		func() {
			defer func() { _ = recover() }()
			defer s.Close()
			for i := range 10 {
				data, err := s.TryAcquire(MinSize)
				if err != nil {
					t.Fatal(err)
				}
				data[0] = byte(i)
			}
			if got := p.Stats().Held; got != 10*MinSize {
				t.Errorf("%d bytes held", got)
			}
			panic("a handler's")
		}()
		if got := p.Stats().Held; got != 0 {
			t.Errorf("%d bytes held after the end", got)
		}
		s.Close()
		s.Open(p)
	}
	allocated := testing.AllocsPerRun(100, func() {
		if _, err := s.Acquire(t.Context(), 64<<10); err != nil {
			t.Fatal(err)
		}
		s.Close()
	})
	if allocated > 3 { // by the profile
		t.Errorf("%v allocations", allocated)
	}
}

// The profile names the holders of buffers, and omits returned buffers.
func TestProfile(t *testing.T) {
	p := newPool(t, 1)
	b := leak(t, p)
	var text bytes.Buffer
	if err := pprof.Lookup("fre_buffers").WriteTo(&text, 1); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "buffer.leak") {
		t.Errorf("got\n%s", &text)
	}
	b.Release()
	text.Reset()
	if err := pprof.Lookup("fre_buffers").WriteTo(&text, 1); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text.String(), "buffer.leak") {
		t.Errorf("still there:\n%s", &text)
	}
	if b, err := p.TryAcquire(1); err != nil {
		t.Fatal(err)
	} else if err := p.Close(); err == nil {
		t.Error("closed while a buffer is in use")
	} else {
		b.Release()
	}
}

//go:noinline
func leak(t *testing.T, p *Pool) Buffer {
	t.Helper()
	b, err := p.TryAcquire(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The pool's memory is outside of the heap, and is taken only on first use. Meanwhile the rest of
// the process takes and frees a little memory.
func TestOffHeap(t *testing.T) {
	const size, used, rest = 256 << 20, 8 * MaxSize, 4 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	resident := residentBytes(t)
	p := newPool(t, size/slabSize)
	for range used / MaxSize {
		b, err := p.TryAcquire(MaxSize)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Release()
		clear(b.Bytes())
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > rest {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	if grown := residentBytes(t) - resident; grown < used-rest || grown > used+rest {
		t.Errorf("%d bytes more are resident, want some %d", grown, used)
	}
}

// residentBytes counts pages, because /proc/self/status is updated late.
func residentBytes(t *testing.T) (n int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "Anonymous:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n << 10
}

func TestStats(t *testing.T) {
	p := newPool(t, 1)
	a, err := p.TryAcquire(3 << 20)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = p.TryAcquire(1)
	a.Release()
	want := Stats{Bytes: slabSize, Peak: MaxSize, High: slabSize / 16 * 15, Low: slabSize / 4 * 3, Pressures: 1, Classes: make([]ClassStats, classCount)}
	for i := range want.Classes {
		want.Classes[i].Size = MinSize << i
	}
	want.Classes[0].Refused = 1
	want.Classes[classCount-1].Acquired, want.Classes[classCount-1].Peak = 1, 1
	if diff := cmp.Diff(want, p.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

// The pool is under pressure from above its high watermark down to its low watermark.
func TestWatermarks(t *testing.T) {
	for _, c := range []struct {
		cfg       Config
		high, low int // buffers
	}{
		{Config{Bytes: 4 * slabSize}, 60, 48},
		{Config{Bytes: 4 * slabSize, High: 10 << 20, Low: 5 << 20}, 40, 20},
		{Config{Bytes: 4 * slabSize, High: 5 << 20, Low: 10 << 20}, 20, 20},
	} {
		p, err := New(c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		const size = 256 << 10
		var held []Buffer
		for range 3 {
			for len(held) < 4*slabSize/size {
				b, err := p.TryAcquire(size)
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, b)
				if s := p.Stats(); s.Pressed != (len(held) > c.high) {
					t.Errorf("%+v, %d buffers in use: pressed is %v", c.cfg, len(held), s.Pressed)
				}
			}
			for len(held) > 0 {
				held[len(held)-1].Release()
				held = held[:len(held)-1]
				if s := p.Stats(); s.Pressed != (len(held) > c.low) {
					t.Errorf("%+v, down to %d buffers: pressed is %v", c.cfg, len(held), s.Pressed)
				}
			}
		}
		if s := p.Stats(); s.Pressures != 3 || s.Peak != 4*slabSize {
			t.Errorf("pressed %d times, peak %d", s.Pressures, s.Peak)
		}
		if free, bytes := p.Free(); free != 4*slabSize || bytes != 4*slabSize {
			t.Errorf("%d bytes of %d are free", free, bytes)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMetrics: a scrape shows the pool's use, and the registry accepts the collector.
func TestMetrics(t *testing.T) {
	p := newPool(t, 1)
	b, err := p.TryAcquire(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.TryAcquire(MaxSize); !errors.Is(err, ErrExhausted) {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(p)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			if l := m.GetLabel(); len(l) > 0 {
				name += " " + l[0].GetValue()
			}
			if v := m.GetGauge().GetValue() + m.GetCounter().GetValue(); v != 0 {
				got[name] = v
			}
		}
	}
	want := map[string]float64{
		"fre_buffers_bytes": slabSize, "fre_buffers_held_bytes": 64 << 10, "fre_buffers_peak_bytes": 64 << 10,
		"fre_buffers_outstanding 65536": 1, "fre_buffers_acquired_total 65536": 1, "fre_buffers_refused_total 4194304": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics that are not 0 (-want +got):\n%s", diff)
	}
	b.Release()
}

// The memory of a locked pool is present and locked from the start. Without permission New returns
// an error.
func TestLock(t *testing.T) {
	runtime.LockOSThread() // the thread has the capabilities
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps, fewer [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	fewer = caps
	fewer[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	if err := unix.Capset(&header, &fewer[0]); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := New(Config{Bytes: slabSize, Lock: true})
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") {
		t.Errorf("refused: %v", err)
	}
	if err := errors.Join(unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit), unix.Capset(&header, &caps[0])); err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{Bytes: slabSize, Lock: true})
	if errors.Is(err, unix.ENOMEM) {
		t.Skipf("RLIMIT_MEMLOCK is %d bytes: %v", limit.Cur, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if flags := flagsOf(t, p.arena); !slices.Contains(flags, "lo") {
		t.Errorf("not locked: %v", flags)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// The pool asks the kernel for huge pages.
func TestHuge(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("the kernel has no transparent huge pages")
	}
	p, err := New(Config{Bytes: slabSize, Huge: true})
	if err != nil {
		t.Fatal(err)
	}
	if flags := flagsOf(t, p.arena); !slices.Contains(flags, "hg") {
		t.Errorf("not asked for: %v", flags)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// flagsOf returns the flags of the mapping that starts at b, as in proc_pid_smaps(5).
func flagsOf(t *testing.T, b []byte) []string {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, mapping, ok := strings.Cut("\n"+string(smaps), fmt.Sprintf("\n%x-", &b[0]))
	_, flags, ok2 := strings.Cut(mapping, "\nVmFlags: ")
	flags, _, _ = strings.Cut(flags, "\n")
	if !ok || !ok2 {
		t.Fatalf("%p is not mapped:\n%s", b, smaps)
	}
	return strings.Fields(flags)
}

// A Memory's buffers come from the pool. A waiter gets a buffer that another holder returns.
func TestMemory(t *testing.T) {
	p := newPool(t, 1)
	l := Memory{p}
	all, err := l.Acquire(MaxSize, 0)
	if err != nil || len(all.Bytes()) != MaxSize {
		t.Fatal(err)
	}
	for _, wait := range []time.Duration{0, time.Millisecond} {
		if _, err := l.Acquire(1, wait); !errors.Is(err, ErrExhausted) {
			t.Errorf("with all held, waiting %v: %v", wait, err)
		}
	}
	if _, err := l.Acquire(MaxSize+1, time.Minute); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	got := make(chan Handle)
	go func() {
		b, err := l.Acquire(MinSize, time.Minute)
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	for p.Stats().Waiting == 0 {
		runtime.Gosched()
	}
	all.Release()
	if b := <-got; len(b.Bytes()) != MinSize {
		t.Errorf("%d bytes", len(b.Bytes()))
	} else {
		b.Release()
	}
}

// BenchmarkAcquire: BenchmarkAcquire compares the pool with sync.Pool and with Go's heap, each with
// touched pages.
func BenchmarkAcquire(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		touch := func(data []byte) {
			for i := 0; i < len(data); i += 4096 {
				data[i] = 1
			}
		}
		b.Run(fmt.Sprintf("pool/%d", size), func(b *testing.B) {
			p, err := New(Config{Bytes: 64 << 20})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				buf, err := p.TryAcquire(size)
				if err != nil {
					b.Fatal(err)
				}
				touch(buf.Bytes())
				buf.Release()
			}
			if err := p.Close(); err != nil {
				b.Error(err)
			}
		})
		b.Run(fmt.Sprintf("sync.Pool/%d", size), func(b *testing.B) {
			p := sync.Pool{New: func() any { return new([]byte) }}
			b.ReportAllocs()
			for b.Loop() {
				buf := p.Get().(*[]byte)
				if cap(*buf) < size {
					*buf = make([]byte, size)
				}
				touch(*buf)
				p.Put(buf)
			}
		})
		b.Run(fmt.Sprintf("make/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf := make([]byte, size)
				touch(buf)
				runtime.KeepAlive(&buf)
			}
		})
	}
}
