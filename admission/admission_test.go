package admission

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// world is a clock, a pool and the recorded changes.
type world struct {
	now     time.Time
	free    int64 // of 100
	changes []State
}

func (w *world) controller(cfg Config) *Controller {
	cfg.Free = func() (int64, int64) { return w.free, 100 }
	cfg.Now = func() time.Time { return w.now }
	cfg.Changed = func(_, to State, _ Reason) { w.changes = append(w.changes, to) }
	return New(cfg)
}

// look lets Every pass.
func (w *world) look(c *Controller) State {
	w.now = w.now.Add(c.Every())
	return c.Look()
}

func newWorld() *world { return &world{now: time.Unix(1000, 0), free: 100} }

// admitted counts how many of 100 requests are admitted.
func admitted(c *Controller) (n int) {
	for range 100 {
		if c.Admit() == nil {
			n++
		}
	}
	return n
}

// A lack of memory degrades the engine, and memory brings the engine back to normal step by step.
func TestMemory(t *testing.T) {
	w := newWorld()
	c := w.controller(Config{})
	for _, free := range []int64{100, 50, 5} {
		if w.free = free; admitted(c) != 100 {
			t.Fatalf("%d %% free: refused", free)
		}
	}
	w.free = 4
	err := c.Admit()
	want := &RefusedError{State: Degraded, Reason: Memory, Retry: 200 * time.Millisecond}
	if got := new(RefusedError); !errors.As(err, &got) || !errors.Is(err, ErrRefused) || *got != *want {
		t.Fatalf("4 %% free: %v", err)
	}
	select {
	case <-c.Unsettled():
	default:
		t.Error("nobody was told to look")
	}
	w.free = 100
	if n := admitted(c); n != 0 {
		t.Errorf("degraded: %d admitted, though there is memory again", n)
	}
	w.now = w.now.Add(199 * time.Millisecond)
	if s := c.Look(); s != Degraded {
		t.Errorf("too early: %v", s)
	}
	w.free = 9
	for range 3 {
		if s := w.look(c); s != Probing || admitted(c) != 0 {
			t.Fatalf("9 %% free: %v", s)
		}
	}
	w.free = 10
	if s := w.look(c); s != Recovering {
		t.Fatalf("10 %% free: %v", s)
	}
	var steps []int
	for s := Recovering; s == Recovering; s = w.look(c) {
		steps = append(steps, admitted(c))
	}
	if diff := cmp.Diff([]int{20, 40, 60, 80}, steps); diff != "" {
		t.Errorf("admitted of a hundred, step by step (-want +got):\n%s", diff)
	}
	if n := admitted(c); n != 100 {
		t.Errorf("normal again: %d admitted", n)
	}
	if _, reason := c.State(); reason != "" {
		t.Errorf("normal for want of %s", reason)
	}
	if diff := cmp.Diff([]State{Degraded, Probing, Recovering, Normal}, w.changes); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

// Three slow waits in a row degrade the engine; two do not, and a fast wait between restarts the
// count.
func TestWaits(t *testing.T) {
	w := newWorld()
	c := w.controller(Config{})
	slow, fast := 201*time.Millisecond, 200*time.Millisecond
	for _, d := range []time.Duration{slow, slow, fast, slow, slow, fast} {
		c.Waited(d)
	}
	if s, _ := c.State(); s != Normal {
		t.Fatalf("never three in a row: %v", s)
	}
	for range 3 {
		c.Waited(slow)
	}
	if s, reason := c.State(); s != Degraded || reason != Waits {
		t.Fatalf("%v for want of %s", s, reason)
	}
	w.look(c)
	w.now = w.now.Add(time.Millisecond)
	c.Waited(slow) // a request that waited already
	if s := w.look(c); s != Probing {
		t.Errorf("somebody has waited meanwhile: %v", s)
	}
	if s := w.look(c); s != Recovering {
		t.Errorf("nobody has: %v", s)
	}
	for range 3 {
		c.Waited(slow)
	}
	if s, _ := c.State(); s != Degraded {
		t.Errorf("slow again while recovering: %v", s)
	}
}

// A new lack of memory during the recovery degrades the engine again, found by a request or by a
// look.
func TestRelapse(t *testing.T) {
	for name, notice := range map[string]func(w *world, c *Controller){
		"work": func(_ *world, c *Controller) { _ = c.Admit() },
		"look": func(w *world, c *Controller) { w.look(c) },
	} {
		w := newWorld()
		c := w.controller(Config{})
		w.free = 0
		_ = c.Admit()
		w.free = 100
		for w.look(c) != Recovering {
		}
		w.free = 0
		notice(w, c)
		if s, _ := c.State(); s != Degraded || admitted(c) != 0 {
			t.Errorf("%s: %v", name, s)
		}
	}
}

// Each threshold can be configured.
func TestConfig(t *testing.T) {
	w := newWorld()
	c := w.controller(Config{MinFree: 0.25, SlowWait: time.Second, Waits: 1, Every: time.Minute, Steps: 1})
	c.Waited(time.Second)
	if admitted(c) != 100 {
		t.Error("refused")
	}
	if w.free = 24; admitted(c) != 0 {
		t.Error("24 % free: admitted")
	}
	w.free = 49
	w.look(c)
	if s := w.look(c); s != Probing {
		t.Errorf("49 %% free: %v", s)
	}
	w.free = 50
	if s := w.look(c); s != Recovering {
		t.Errorf("50 %% free: %v", s)
	}
	if s := w.look(c); s != Normal {
		t.Errorf("one step: %v", s)
	}
	c.Waited(time.Second + 1)
	if s, _ := c.State(); s != Degraded {
		t.Errorf("one slow wait: %v", s)
	}
	for _, bad := range []Config{{MinFree: -1}, {MinFree: 0.6}, {SlowWait: -1}, {Every: -1}, {Waits: -1}, {Steps: -1}, {Steps: 101}} {
		if bad.Check() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// After many simultaneous requests the controller returns to normal by itself.
func TestConcurrent(t *testing.T) {
	var mu sync.Mutex
	w := newWorld()
	free := int64(100)
	c := New(Config{
		Free: func() (int64, int64) { mu.Lock(); defer mu.Unlock(); return free, 100 },
		Now:  func() time.Time { mu.Lock(); defer mu.Unlock(); return w.now },
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				mu.Lock()
				free = rand.Int64N(101)
				w.now = w.now.Add(50 * time.Millisecond)
				mu.Unlock()
				_ = c.Admit()
				c.Waited(time.Duration(rand.IntN(400)) * time.Millisecond)
				c.Look()
			}
		})
	}
	wg.Wait()
	free = 100
	looks := 0
	for w.look(c) != Normal {
		if looks++; looks > 10 {
			t.Fatal("it stays away from normal")
		}
	}
}
