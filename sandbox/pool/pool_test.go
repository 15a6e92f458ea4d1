package pool

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestMain keeps the pools from looking at the real load of the machine.
func TestMain(m *testing.M) {
	crowded = func() bool { return false }
	os.Exit(m.Run())
}

// maker is a source of numbers that records which numbers are out, used up or dead.
type maker struct {
	mu      sync.Mutex
	tries   int // attempts to make a number
	made    int
	room    int  // the maximum of numbers; 0: no limit
	broken  bool // makes fail
	busy    bool
	verdict map[int]Verdict
	dead    map[int]bool
	dropped []int
	log     bytes.Buffer
}

// pool is a pool of the maker's numbers with the configuration cfg.
func (m *maker) pool(cfg Config[int]) *Pool[int] {
	m.verdict, m.dead = map[int]Verdict{}, map[int]bool{}
	cfg.Name, cfg.Log = "number", slog.New(slog.NewTextHandler(&m.log, nil))
	cfg.Make, cfg.Clean, cfg.Drop = m.next, m.clean, m.drop
	return New(cfg)
}

func (m *maker) next() (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tries++
	switch {
	case m.broken:
		return 0, errors.New("broken")
	case m.room > 0 && m.made == m.room:
		return 0, ErrFull
	}
	m.made++
	return m.made, nil
}

func (m *maker) clean(n int) Verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.verdict[n]
}

func (m *maker) drop(n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropped = append(m.dropped, n)
	return nil
}

func (m *maker) alive(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.dead[n]
}

func (m *maker) isBusy() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.busy
}

// set changes the maker during the pool's work.
func (m *maker) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func take(t *testing.T, p *Pool[int], n int) []int {
	t.Helper()
	var out []int
	for range n {
		item, err := p.Take(nil)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(out, item) {
			t.Fatalf("item %d leased twice", item)
		}
		out = append(out, item)
	}
	return out
}

// settle lets the worker finish its work.
func settle() {
	<-time.After(time.Second)
	synctest.Wait()
}

// TestFillsAndReuses: A pool makes its items ahead and uses returned items again.
func TestFillsAndReuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m maker
		p := m.pool(Config[int]{Ready: 4, Max: 16})
		defer p.Close()
		synctest.Wait()
		if m.made != 4 {
			t.Errorf("%d made ahead, want 4", m.made)
		}
		// A burst beyond the pool is served, and the pool keeps its items for the next burst.
		for round := range 3 {
			burst := take(t, p, 10)
			for _, item := range burst {
				p.Give(item)
			}
			settle()
			if m.made > 10+4 || len(m.dropped) > 0 {
				t.Errorf("round %d: %d made, %v dropped; want at most 14 and none", round, m.made, m.dropped)
			}
		}
	})
}

// TestRefillsUnderLeases: Long leases do not leave the pool empty.
func TestRefillsUnderLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m maker
		p := m.pool(Config[int]{Ready: 4})
		defer p.Close()
		synctest.Wait()
		leased := take(t, p, 4)
		settle()
		if m.made != 8 {
			t.Errorf("%d made, want 4 more than the 4 leased", m.made)
		}
		for _, item := range leased {
			p.Give(item)
		}
	})
}

// TestVerdicts: A returned item in use waits, a spoilt one is dropped, and the pool keeps at most
// Max.
func TestVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m maker
		p := m.pool(Config[int]{Ready: 1, Max: 2})
		defer p.Close()
		synctest.Wait()
		items := take(t, p, 3)
		m.set(func() { m.verdict[items[0]], m.verdict[items[1]] = InUse, Spoilt })
		for _, item := range items {
			p.Give(item)
		}
		settle()
		if !slices.Equal(m.dropped, items[1:2]) {
			t.Errorf("dropped %v, want the spoilt %v", m.dropped, items[1:2])
		}
		next := take(t, p, 3)
		if slices.Contains(next, items[0]) {
			t.Error("an item in use was leased again")
		}
		m.set(func() { m.verdict[items[0]] = Ready })
		for _, item := range next {
			p.Give(item)
		}
		settle()
		if kept := len(p.free); kept != 2 {
			t.Errorf("%d kept, want Max, 2", kept)
		}
	})
}

// TestPrefer: Take prefers the wanted item, and gives another if none matches.
func TestPrefer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m maker
		p := m.pool(Config[int]{Ready: 5})
		defer p.Close()
		synctest.Wait()
		if got, err := p.Take(func(n int) bool { return n == 2 }); got != 2 || err != nil {
			t.Errorf("took %d, %v; want the preferred 2", got, err)
		}
		if _, err := p.Take(func(int) bool { return false }); err != nil {
			t.Errorf("nothing preferred: %v", err)
		}
	})
}

func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m maker
		p := m.pool(Config[int]{Ready: 2})
		synctest.Wait()
		item := take(t, p, 1)[0]
		p.Close()
		p.Give(item)
		if len(m.dropped) != m.made {
			t.Errorf("%d made, dropped %v", m.made, m.dropped)
		}
		if _, err := p.Take(nil); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("take after Close: %v", err)
		}
	})
}

// TestFollowsDemand: The pool grows to the size of a burst and shrinks after ten minutes without
// demand.
func TestFollowsDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m maker
		p := m.pool(Config[int]{Ready: 1, Max: 20})
		defer p.Close()
		synctest.Wait()
		for _, test := range []struct{ burst, want int }{{10, 10}, {30, 20}} {
			take(t, p, test.burst)
			settle()
			if ready, want := p.Len(); ready != test.want || want != test.want {
				t.Errorf("after %d at once %d are ready and %d wanted, want %d", test.burst, ready, want, test.want)
			}
		}
		made := m.made
		<-time.After(10 * time.Minute)
		synctest.Wait()
		if ready, want := p.Len(); ready != 1 || want != 1 {
			t.Errorf("%d are ready and %d wanted after ten minutes without demand, want 1", ready, want)
		}
		if m.made != made || len(m.dropped) != 19 {
			t.Errorf("%d made and %d dropped without demand, want 0 and 19", m.made-made, len(m.dropped))
		}
	})
}

// TestTryTake: TryTake never waits, and an empty pool makes items for the next call.
func TestTryTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m maker
		p := m.pool(Config[int]{Max: 2})
		defer p.Close()
		synctest.Wait()
		if item, ok := p.TryTake(); ok {
			t.Errorf("got %d from an empty pool", item)
		}
		settle()
		if item, ok := p.TryTake(); !ok || item != 1 {
			t.Errorf("got %d, %v once there was demand, want 1", item, ok)
		}
	})
}

// TestDead: A pool replaces an item that died while waiting, and never leases it.
func TestDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m maker
		p := m.pool(Config[int]{Ready: 3, Alive: m.alive})
		defer p.Close()
		synctest.Wait()
		m.set(func() { m.dead[1], m.dead[3] = true, true })
		if item, ok := p.TryTake(); !ok || item != 2 {
			t.Errorf("took %d, %v; want 2, the only one alive", item, ok)
		}
		settle()
		if !slices.Equal(slices.Sorted(slices.Values(m.dropped)), []int{1, 3}) {
			t.Errorf("dropped %v, want 1 and 3", m.dropped)
		}
		m.set(func() { m.dead[4] = true })
		p.Check()
		settle()
		if ready, _ := p.Len(); ready != 3 || !slices.Contains(m.dropped, 4) {
			t.Errorf("%d ready, dropped %v; want 3, and 4 dropped", ready, m.dropped)
		}
	})
}

// TestBusy: A pool does not work while starts run. A full source is no reason for a warning.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := maker{room: 2}
		p := m.pool(Config[int]{Max: 8, Busy: m.isBusy})
		defer p.Close()
		synctest.Wait()
		m.set(func() { m.busy = true })
		for range 4 {
			p.TryTake()
		}
		<-time.After(patience / 2)
		synctest.Wait()
		if m.tries != 0 {
			t.Errorf("%d tries to make one while starts were under way", m.tries)
		}
		m.set(func() { m.busy = false })
		settle()
		if ready, want := p.Len(); ready != 2 || want != 4 {
			t.Errorf("%d ready of %d wanted, want the 2 there is room for, of 4", ready, want)
		}
		if m.log.Len() > 0 {
			t.Errorf("a full house was logged: %s", &m.log)
		}
	})
}

// TestCrowded: A pool waits while the machine is overloaded, but only for a limited time.
func TestCrowded(t *testing.T) {
	defer func(f func() bool) { crowded = f }(crowded)
	synctest.Test(t, func(t *testing.T) {
		var m maker
		crowded = func() bool { return true }
		p := m.pool(Config[int]{Ready: 2, Busy: m.isBusy})
		defer p.Close()
		synctest.Wait()
		p.TryTake()
		p.TryTake()
		<-time.After(patience / 2)
		synctest.Wait()
		if ready, _ := p.Len(); ready != 0 {
			t.Errorf("%d made on a crowded machine", ready)
		}
		<-time.After(patience)
		synctest.Wait()
		if ready, _ := p.Len(); ready != 2 {
			t.Errorf("%d ready after some patience, want 2", ready)
		}
	})
}

// TestRunnable: The number of runnable threads is read from the kernel.
func TestRunnable(t *testing.T) {
	var stop atomic.Bool
	defer stop.Store(true)
	for range runtime.NumCPU() {
		go func() {
			for !stop.Load() {
			}
		}()
	}
	for deadline := time.Now().Add(2 * time.Minute); ; <-time.After(time.Millisecond) {
		n, err := runnable()
		if err != nil || n > 100_000 || time.Now().After(deadline) {
			t.Fatalf("%d runnable beside %d that spin, %v", n, runtime.NumCPU(), err)
		}
		if n >= runtime.NumCPU()-1 { // they have begun
			return
		}
	}
}

// TestMakeFails: A pool tries a failed make again, less and less often, and demand does not shorten
// the intervals.
func TestMakeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := maker{broken: true}
		p := m.pool(Config[int]{Ready: 1, Max: 1})
		defer p.Close()
		for range 100 {
			<-time.After(100 * time.Millisecond)
			p.TryTake()
		}
		synctest.Wait()
		if m.tries < 5 || m.tries > 12 {
			t.Errorf("%d tries in ten seconds, want them to double their distance from %s", m.tries, quiet)
		}
		m.set(func() { m.broken = false })
		<-time.After(20 * time.Second)
		synctest.Wait()
		if ready, _ := p.Len(); ready != 1 {
			t.Errorf("%d ready once it can be made, want 1", ready)
		}
	})
}
