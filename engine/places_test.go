package engine

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/image"
)

// letWait lets n events of f wait for a place, one after the other. Each returned channel receives
// the result when its event has a place.
func letWait(ctx context.Context, t *testing.T, p *places, f *function, n int) []chan error {
	t.Helper()
	var all []chan error
	for range n {
		before := p.waitingOf(f)
		got := make(chan error, 1)
		go func() {
			_, err := p.enter(ctx, f)
			got <- err
		}()
		eventually(t, "an event to wait", func() bool { return p.waitingOf(f) == before+1 })
		all = append(all, got)
	}
	return all
}

func mustEnter(t *testing.T, p *places, f *function, n int) {
	t.Helper()
	for i := range n {
		if waited, err := p.enter(t.Context(), f); err != nil || waited != 0 {
			t.Fatalf("place %d: waited for %v, %v", i, waited, err)
		}
	}
}

// A function's flood leaves a quarter of the places free. A released place goes to the function
// with the fewest places.
func TestPlacesShared(t *testing.T) {
	p := newPlaces(8, admission.QueueConfig{})
	flood, other, late := &function{name: "flood"}, &function{name: "other"}, &function{name: "late"}
	mustEnter(t, p, flood, 6)
	flooding := letWait(t.Context(), t, p, flood, 3)
	mustEnter(t, p, other, 2)
	others := letWait(t.Context(), t, p, other, 2)
	lates := letWait(t.Context(), t, p, late, 1)
	if taken, waiting := p.count(); taken != 8 || waiting != 6 {
		t.Errorf("%d under way, %d wait", taken, waiting)
	}
	for i, next := range []chan error{lates[0], others[0], flooding[0], flooding[1], flooding[2], others[1]} {
		p.leave(flood, time.Millisecond)
		if err := <-next; err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	for f, held := range map[*function]int{flood: 3, other: 4, late: 1} {
		if f.placed.held != held {
			t.Errorf("%s has %d places, want %d", f.name, f.placed.held, held)
		}
		for range held {
			p.leave(f, 0)
		}
	}
	if taken, waiting := p.count(); taken != 0 || waiting != 0 || len(p.waiting) != 0 {
		t.Errorf("in the end %d are under way, %d wait, of %d functions", taken, waiting, len(p.waiting))
	}
}

// A cancelled wait leaves nothing behind, with or without a place.
func TestPlacesGivenUp(t *testing.T) {
	p := newPlaces(1, admission.QueueConfig{})
	f := &function{}
	mustEnter(t, p, f, 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	all := letWait(ctx, t, p, f, 3)
	cancel(gone)
	for _, got := range all {
		if err := <-got; !errors.Is(err, gone) {
			t.Errorf("given up: %v", err)
		}
	}
	var wait sync.WaitGroup
	for range 200 { // granted and cancelled at the same time
		ctx, cancel := context.WithCancel(t.Context())
		wait.Go(func() {
			if _, err := p.enter(ctx, f); err == nil {
				p.leave(f, 0)
			}
		})
		wait.Go(cancel)
	}
	p.leave(f, 0)
	wait.Wait()
	if taken, waiting := p.count(); taken != 0 || waiting != 0 {
		t.Errorf("%d under way, %d wait", taken, waiting)
	}
	mustEnter(t, p, f, 1)
}

// An event that must not wait goes beyond the places, up to a limit. Meanwhile no further event
// gets a place.
func TestPlacesBeside(t *testing.T) {
	p := newPlaces(2, admission.QueueConfig{})
	f, other := &function{}, &function{}
	mustEnter(t, p, other, 1)
	for i := range 1 + p.beyond {
		if err := p.beside(f); err != nil {
			t.Fatalf("%d beside: %v", i, err)
		}
	}
	if err := p.beside(f); !errors.Is(err, ErrEngineOverloaded) {
		t.Errorf("one more beside: %v", err)
	}
	waits := letWait(t.Context(), t, p, other, 1)
	for range p.beyond {
		p.leave(f, 0)
	}
	if taken, waiting := p.count(); taken != 2 || waiting != 1 {
		t.Errorf("%d under way, %d wait; want all 2 taken, and 1 to wait", taken, waiting)
	}
	p.leave(f, 0)
	if err := <-waits[0]; err != nil {
		t.Error(err)
	}
	p.leave(other, 0)
	p.leave(other, 0)
	if taken, waiting := p.count(); taken != 0 || waiting != 0 || f.placed.held != 0 {
		t.Errorf("in the end %d are under way, %d wait", taken, waiting)
	}
}

// When the usual duration of events is known, the queue is limited to a bearable wait.
func TestPlacesFull(t *testing.T) {
	p := newPlaces(4, admission.QueueConfig{})
	f, small := &function{}, &function{}
	mustEnter(t, p, f, 3)
	p.leave(f, 50*time.Millisecond)
	mustEnter(t, p, f, 1)
	mustEnter(t, p, small, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all := letWait(ctx, t, p, f, 31) // 31 waits of 50 ms each in 3 places: half a second
	if _, err := p.enter(t.Context(), f); !errors.Is(err, ErrEngineOverloaded) {
		t.Errorf("one more: %v", err)
	}
	first := letWait(ctx, t, p, small, 1) // its own queue is short
	p.leave(f, 50*time.Millisecond)
	if err := <-first[0]; err != nil {
		t.Error(err)
	}
	cancel()
	for _, got := range all {
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// TestEngineOverloaded: a function that never answers takes its share of the engine's places and no
// more. Events beyond the share are refused at once, another function answers, and in the end all
// places are free.
func TestEngineOverloaded(t *testing.T) {
	r := open(t)
	r.stop()
	r.start(Config{Concurrency: 4, Queue: admission.QueueConfig{Length: 2}})
	r.deploy("slow", func(c *image.Config) { c.Instances.Max, c.Instances.Concurrency = 1, 16 })
	r.deploy("native", stdio)
	r.deploy("other", nil)
	r.mustCall("slow", "/", "a", "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 16)
	for range 5 {
		go func() {
			_, _, err := r.call(ctx, "slow", "/hang", "")
			ended <- err
		}()
	}
	eventually(t, "three to run and two to wait", func() bool {
		taken, waiting := r.places.count()
		return taken == 3 && waiting == 2
	})
	if _, _, err := r.call(t.Context(), "slow", "/", "x"); !errors.Is(err, ErrEngineOverloaded) {
		t.Errorf("one more: %v", err)
	}
	r.mustCall("other", "/", "b", "b")
	r.mustCall("native", "/", "c", "c")
	cancel()
	for range 5 {
		if err := <-ended; err == nil {
			t.Error("it was answered")
		}
	}
	eventually(t, "all places to be free", func() bool { taken, waiting := r.places.count(); return taken == 0 && waiting == 0 })
	r.mustCall("slow", "/", "d", "d")
}

// TestQueueTime: an overloaded function refuses excess events at once, and continues to answer the
// rest.
func TestQueueTime(t *testing.T) {
	r := open(t)
	r.deploy("f", func(c *image.Config) { c.Instances.Max = 1 })
	r.mustCall("f", "/", "a", "a")
	f, err := r.lookup("f")
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.queue.Kept(time.Hour) // the usual duration of an event
	f.queue.Kept(time.Hour)
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 64)
	call := func() {
		_, _, err := r.call(ctx, "f", "/hang", "")
		ended <- err
	}
	go call()
	eventually(t, "it to be busy", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.busy == 1 })
	for waiting := range 11 {
		go call()
		eventually(t, "one more to wait", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.waiters.Len() == waiting+1 })
	}
	if _, _, err := r.call(t.Context(), "f", "/", "x"); !errors.Is(err, ErrOverloaded) {
		t.Errorf("the twelfth: %v", err)
	}
	cancel()
	for range 12 {
		if err := <-ended; err == nil {
			t.Error("it was answered")
		}
	}
	eventually(t, "it to answer", func() bool { _, _, err := r.call(t.Context(), "f", "/", "b"); return err == nil })
}
