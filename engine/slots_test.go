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

// letWait lets n events of f wait for a slot, one after the other, and returns where
// each tells that it has one.
func letWait(ctx context.Context, t *testing.T, p *slots, f *slotShare, n int) []chan error {
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

func mustEnter(t *testing.T, p *slots, f *slotShare, n int) {
	t.Helper()
	for i := range n {
		if waited, err := p.enter(t.Context(), f); err != nil || waited != 0 {
			t.Fatalf("slot %d: waited for %v, %v", i, waited, err)
		}
	}
}

// One function's flood leaves a quarter of the slots alone, and what becomes free goes
// to whoever has the fewest.
func TestSlotsShared(t *testing.T) {
	p := newSlots(8, admission.QueueConfig{})
	flood, other, late := &slotShare{}, &slotShare{}, &slotShare{}
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
	for name, c := range map[string]struct {
		of   *slotShare
		held int
	}{"flood": {flood, 3}, "other": {other, 4}, "late": {late, 1}} {
		if c.of.held != c.held {
			t.Errorf("%s has %d slots, want %d", name, c.of.held, c.held)
		}
		for range c.held {
			p.leave(c.of, 0)
		}
	}
	if taken, waiting := p.count(); taken != 0 || waiting != 0 || len(p.waiting) != 0 {
		t.Errorf("in the end %d are under way, %d wait, of %d functions", taken, waiting, len(p.waiting))
	}
}

// An event that gives up returns its slot, or leaves the queue.
func TestSlotsGivenUp(t *testing.T) {
	p := newSlots(1, admission.QueueConfig{})
	f := &slotShare{}
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

// A called event may go beyond the slots, up to a bound. Meanwhile no waiting event gets a slot.
func TestSlotsBeside(t *testing.T) {
	p := newSlots(2, admission.QueueConfig{})
	f, other := &slotShare{}, &slotShare{}
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
	if taken, waiting := p.count(); taken != 0 || waiting != 0 || f.held != 0 {
		t.Errorf("in the end %d are under way, %d wait", taken, waiting)
	}
}

// Once it is known how long events keep their slots, no more wait than is bearable.
func TestSlotsFull(t *testing.T) {
	p := newSlots(4, admission.QueueConfig{})
	f, small := &slotShare{}, &slotShare{}
	mustEnter(t, p, f, 3)
	p.leave(f, 50*time.Millisecond)
	mustEnter(t, p, f, 1)
	mustEnter(t, p, small, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all := letWait(ctx, t, p, f, 31) // of 50 ms each in 3 slots: half a second
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

// TestEngineOverloaded: a function that never answers takes its part of the engine's
// slots and no more; what is too much is refused at once, another function answers,
// and in the end all slots are free.
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
		taken, waiting := r.slots.count()
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
	eventually(t, "all slots to be free", func() bool { taken, waiting := r.slots.count(); return taken == 0 && waiting == 0 })
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
