package engine

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/waiting"
)

// ErrEngineOverloaded: too many events, of all functions together, are under way.
var ErrEngineOverloaded = failure.New(failure.EngineOverloaded, "too many events are under way in the engine", "")

// placesPerCPU times the number of CPUs is the default of Config.Concurrency.
const placesPerCPU = 256

// defaultPlaces returns the default of Config.Concurrency.
func defaultPlaces() int { return placesPerCPU * runtime.GOMAXPROCS(0) }

// places limits the events that run at once in the whole engine. An event takes a slot once its
// function has an instance for the event, and gives the slot back with the instance.
//
// Slots are shared fairly. No function holds more than three quarters of them, and a free slot
// goes to the waiting function that holds the fewest. So a flood of events of one function leaves
// the last quarter free, and gets no more than a fair share of the rest while further functions
// wait.
//
// An event that must not wait (see beside) may exceed the limit; until usage falls below the
// limit, enter grants nothing.
type places struct {
	all, most int // slots in all; slots for one function at most
	beyond    int // further slots, for beside alone

	mu      sync.Mutex
	taken   int
	waiting []*function     // functions with waiters
	queue   admission.Queue // judges a function's waiters by the function's slots
}

// placed is a function's share of the slots. places.mu guards the fields.
type placed struct {
	held    int
	waiters waiting.Queue[time.Time, struct{}] // the request is the time of arrival
}

// before reports whether s gets the next slot rather than o. Both have waiters.
func (s *placed) before(o *placed) bool {
	return s.held < o.held || s.held == o.held && s.waiters.First().Before(o.waiters.First())
}

func newPlaces(all int, queue admission.QueueConfig) *places {
	return &places{all: all, most: max(1, all-all/4), beyond: max(all, 4*mostSteps), queue: admission.NewQueue(queue)}
}

// beside takes a slot for an event of f at once, if need be beyond the limit, or fails with
// ErrEngineOverloaded. A wait could deadlock: callers of the event hold slots until its answer.
// leave gives the slot back.
func (p *places) beside(f *function) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.all+p.beyond {
		return fmt.Errorf("%w: %d events run, %d of them beyond the limit", ErrEngineOverloaded, p.taken, p.beyond)
	}
	p.taken++
	f.placed.held++
	return nil
}

// enter takes a slot for an event of f; leave gives the slot back. enter waits until ctx ends and
// then returns the cause of ctx. It returns ErrEngineOverloaded at once if the wait would be too
// long.
func (p *places) enter(ctx context.Context, f *function) (waited time.Duration, err error) {
	p.mu.Lock()
	s := &f.placed
	if p.taken < p.all && s.held < p.most { // every waiting function is at its own limit
		p.taken++
		s.held++
		if len(p.waiting) == 0 {
			p.queue.Clear()
		}
		p.mu.Unlock()
		return 0, nil
	}
	if why := p.queue.Full(s.waiters.Len(), max(s.held, 1)); why != "" {
		err := fmt.Errorf("%w: %d, and %d wait", ErrEngineOverloaded, p.taken, p.waitersLocked())
		p.mu.Unlock()
		return 0, err
	}
	if len(p.waiting) == 0 {
		p.queue.Clear()
	}
	now := time.Now()
	if !slices.Contains(p.waiting, f) {
		p.waiting = append(p.waiting, f)
	}
	w := s.waiters.Push(now)
	p.mu.Unlock()
	_, err = w.Wait(ctx, &p.mu, func(struct{}) { p.leave(f, 0) })
	if err != nil {
		p.mu.Lock()
		p.forgetLocked()
		p.mu.Unlock()
	}
	return time.Since(now), err
}

// forgetLocked drops the functions without waiters from p.waiting.
func (p *places) forgetLocked() {
	p.waiting = slices.DeleteFunc(p.waiting, func(f *function) bool { return f.placed.waiters.Len() == 0 })
}

// waitersLocked returns how many events wait for a slot.
func (p *places) waitersLocked() (n int) {
	for _, f := range p.waiting {
		n += f.placed.waiters.Len()
	}
	return n
}

// leave gives back a slot of f. kept is how long the event held the slot; 0 keeps the time out of
// the queue's estimate.
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

// grantLocked grants the free slots to waiters.
func (p *places) grantLocked(now time.Time) {
	for p.taken < p.all {
		var f *function
		for _, other := range p.waiting {
			if other.placed.waiters.Len() > 0 && other.placed.held < p.most && (f == nil || other.placed.before(&f.placed)) {
				f = other
			}
		}
		if f == nil {
			return
		}
		f.placed.held++
		p.taken++
		p.queue.Served(now, now.Sub(f.placed.waiters.First()))
		f.placed.waiters.Grant(struct{}{})
		p.forgetLocked()
	}
}

// count returns how many events hold a slot and how many wait for a slot.
func (p *places) count() (taken, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken, p.waitersLocked()
}

// waitingOf returns how many events of f wait for a slot.
func (p *places) waitingOf(f *function) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return f.placed.waiters.Len()
}
