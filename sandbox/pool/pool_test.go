package pool

import (
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// maker is a source of numbers that knows which are out, used up or gone.
type maker struct {
	mu      sync.Mutex
	made    int
	verdict map[int]Verdict
	dropped []int
}

func (m *maker) pool(ready, keep int) *Pool[int] {
	m.verdict = map[int]Verdict{}
	return New(Config[int]{
		Name: "number", Ready: ready, Keep: keep, Log: slog.New(slog.DiscardHandler),
		Make: func() (int, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.made++
			return m.made, nil
		},
		Clean: func(n int) Verdict {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.verdict[n]
		},
		Drop: func(n int) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.dropped = append(m.dropped, n)
			return nil
		},
	})
}

func (m *maker) set(n int, v Verdict) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.verdict[n] = v
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

// settle lets the worker do all it wants to.
func settle() {
	<-time.After(time.Second)
	synctest.Wait()
}

func TestFillsAndReuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m maker
		p := m.pool(4, 16)
		defer p.Close()
		synctest.Wait()
		if m.made != 4 {
			t.Errorf("%d made ahead, want 4", m.made)
		}
		// A burst beyond the pool is served, kept, and serves the next burst.
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

// TestRefillsUnderLeases: items leased for long do not leave the pool empty.
func TestRefillsUnderLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m maker
		p := m.pool(4, 0)
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

func TestVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m maker
		p := m.pool(1, 2)
		defer p.Close()
		synctest.Wait()
		items := take(t, p, 3)
		m.set(items[0], InUse)
		m.set(items[1], Spoilt)
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
		m.set(items[0], Ready)
		for _, item := range next {
			p.Give(item)
		}
		settle()
		if kept := len(p.free); kept != 2 {
			t.Errorf("%d kept, want Keep, 2", kept)
		}
	})
}

func TestPrefer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m maker
		p := m.pool(5, 0)
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
		p := m.pool(2, 0)
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
