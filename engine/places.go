package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/fre-engine/fre/engine/admission"
)

// ErrEngineOverloaded: too many events of all functions are under way.
var ErrEngineOverloaded = errors.New("too many events are under way in the engine")

// placesPerCPU times the CPUs is the default of Config.Concurrency.
const placesPerCPU = 256

// defaultPlaces is for how many events an engine has places unless it is told.
func defaultPlaces() int { return placesPerCPU * runtime.GOMAXPROCS(0) }

// places bound the events that run at once in the whole engine. An event asks for one
// when its function has an instance for it, and gives it back with the instance.
//
// They are shared fairly: no function has more than three quarters of them, and a free
// one goes to the function that has the fewest of those that wait. So a flood of one
// function's events finds the last quarter closed, and gets no more than its share of
// the rest while others want theirs.
//
// Whoever is not to wait, see beside, may go beyond them; while there are that many
// nobody else gets one.
type places struct {
	all, most int // of one function
	beyond    int // that may be taken by beside when all are

	mu      sync.Mutex
	taken   int
	waiting []*function     // who has waiters
	queue   admission.Queue // judges each function's waiters by the places it has
	waiters int
}

// placed is a function's part of the places; places.mu guards it.
type placed struct {
	held    int
	waiters []*placeWaiter // the oldest first
}

// before says whether s is to have the next place rather than o: both have waiters.
func (s *placed) before(o *placed) bool {
	return s.held < o.held || s.held == o.held && s.waiters[0].since.Before(o.waiters[0].since)
}

// placeWaiter is told by the close of granted.
type placeWaiter struct {
	since   time.Time
	granted chan struct{}
}

func newPlaces(all int, queue admission.QueueConfig) *places {
	return &places{all: all, most: max(1, all-all/4), beyond: max(all, 4*mostSteps), queue: admission.NewQueue(queue)}
}

// beside takes a place for an event of f that others wait for, who have places themselves:
// if it waited for one, events could wait for each other. So it has one at once, beyond all
// if need be, or none. leave gives it back.
func (p *places) beside(f *function) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.all+p.beyond {
		return fmt.Errorf("%w: %d, of which %d beside others that wait for them", ErrEngineOverloaded, p.taken, p.beyond)
	}
	p.taken++
	f.placed.held++
	return nil
}

// enter takes a place for an event of f; leave gives it back. It waits until ctx ends,
// and returns its cause. ErrEngineOverloaded, at once, where that would take too long.
func (p *places) enter(ctx context.Context, f *function) (waited time.Duration, err error) {
	p.mu.Lock()
	s := &f.placed
	if p.taken < p.all && s.held < p.most { // those who wait have as many as they may
		p.taken++
		s.held++
		if len(p.waiting) == 0 {
			p.queue.Clear()
		}
		p.mu.Unlock()
		return 0, nil
	}
	if why := p.queue.Full(len(s.waiters), max(s.held, 1)); why != "" {
		err := fmt.Errorf("%w: %d, and %d wait", ErrEngineOverloaded, p.taken, p.waiters)
		p.mu.Unlock()
		return 0, err
	}
	if len(p.waiting) == 0 {
		p.queue.Clear()
	}
	now := time.Now()
	w := &placeWaiter{since: now, granted: make(chan struct{})}
	if len(s.waiters) == 0 {
		p.waiting = append(p.waiting, f)
	}
	s.waiters = append(s.waiters, w)
	p.waiters++
	p.mu.Unlock()
	select {
	case <-w.granted:
		return time.Since(now), nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	i := slices.Index(s.waiters, w)
	if i >= 0 {
		s.waiters = slices.Delete(s.waiters, i, i+1)
		p.waitsNoMoreLocked(f)
	}
	p.mu.Unlock()
	if i < 0 { // granted meanwhile
		p.leave(f, 0)
	}
	return time.Since(now), context.Cause(ctx)
}

// waitsNoMoreLocked notes that a waiter of f's has gone.
func (p *places) waitsNoMoreLocked(f *function) {
	p.waiters--
	if len(f.placed.waiters) == 0 {
		i := slices.Index(p.waiting, f)
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
}

// leave gives a place of f's back, which it had for so long; 0: that says nothing.
func (p *places) leave(f *function, kept time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	f.placed.held--
	if kept > 0 {
		p.queue.Kept(kept)
	}
	if len(p.waiting) > 0 {
		p.grantLocked(time.Now())
	}
}

// grantLocked hands out what is free.
func (p *places) grantLocked(now time.Time) {
	for p.taken < p.all {
		var f *function
		for _, other := range p.waiting {
			if other.placed.held < p.most && (f == nil || other.placed.before(&f.placed)) {
				f = other
			}
		}
		if f == nil {
			return
		}
		w := f.placed.waiters[0]
		f.placed.waiters = f.placed.waiters[1:]
		p.waitsNoMoreLocked(f)
		f.placed.held++
		p.taken++
		p.queue.Served(now, now.Sub(w.since))
		close(w.granted)
	}
}

// count is how many events have a place, and wait for one.
func (p *places) count() (taken, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken, p.waiters
}

// waitingOf is how many events of f wait for a place.
func (p *places) waitingOf(f *function) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(f.placed.waiters)
}
