package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/waiting"
	"github.com/fre-engine/fre/template"
)

// ErrEngineOverloaded: too many events, of all functions together, are under way.
var ErrEngineOverloaded = failure.New(failure.EngineOverloaded, "too many events are under way in the engine", "")

// slots limits the events that run at once in the whole engine. An event takes a slot once its
// function has an instance for the event, and gives the slot back with the instance.
//
// Slots are shared fairly. No function holds more than three quarters of them, and a free slot
// goes to the waiting function that holds the fewest. So a flood of events of one function leaves
// the last quarter free, and gets no more than a fair share of the rest while further functions
// wait.
//
// An event that must not wait (see beside) may exceed the limit; until usage falls below the
// limit, enter grants nothing.
type slots struct {
	all, most int // slots in all; slots for one function at most
	beyond    int // further slots, for beside alone

	mu      sync.Mutex
	taken   int
	waiting []*slotShare    // functions with waiters
	queue   admission.Queue // judges a function's waiters by the function's slots
}

// slotShare is a function's share of the slots. slots.mu guards the fields.
type slotShare struct {
	held    int
	waiters waiting.Queue[time.Time, struct{}] // the request is the time of arrival
}

// before reports whether s gets the next slot rather than o. Both have waiters.
func (s *slotShare) before(o *slotShare) bool {
	return s.held < o.held || s.held == o.held && s.waiters.First().Before(o.waiters.First())
}

func newSlots(all int, queue admission.QueueConfig) *slots {
	return &slots{all: all, most: max(1, all-all/4), beyond: max(all, 4*template.MaxSteps), queue: admission.NewQueue(queue)}
}

// beside takes a slot for an event of the function at once, if need be beyond the limit, or fails
// with ErrEngineOverloaded. A wait could deadlock: callers of the event hold slots until its answer.
// leave gives the slot back.
func (p *slots) beside(s *slotShare) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.all+p.beyond {
		return fmt.Errorf("%w: %d events run, %d of them beyond the limit", ErrEngineOverloaded, p.taken, p.beyond)
	}
	p.taken++
	s.held++
	return nil
}

// enter takes a slot for an event of the function; leave gives the slot back. enter waits until ctx
// ends and then returns the cause of ctx. If the wait would be too long, enter returns
// ErrEngineOverloaded at once.
func (p *slots) enter(ctx context.Context, s *slotShare) (waited time.Duration, err error) {
	p.mu.Lock()
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
	if !slices.Contains(p.waiting, s) {
		p.waiting = append(p.waiting, s)
	}
	w := s.waiters.Push(now)
	p.mu.Unlock()
	_, err = w.Wait(ctx, &p.mu, func(struct{}) { p.leave(s, 0) })
	if err != nil {
		p.mu.Lock()
		p.forgetLocked()
		p.mu.Unlock()
	}
	return time.Since(now), err
}

// forgetLocked drops the functions without waiters from p.waiting.
func (p *slots) forgetLocked() {
	p.waiting = slices.DeleteFunc(p.waiting, func(s *slotShare) bool { return s.waiters.Len() == 0 })
}

// waitersLocked returns how many events wait for a slot.
func (p *slots) waitersLocked() (n int) {
	for _, s := range p.waiting {
		n += s.waiters.Len()
	}
	return n
}

// leave gives back a slot of the function. kept is how long the event held the slot; 0 keeps the
// time out of the queue's estimate.
func (p *slots) leave(s *slotShare, kept time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	s.held--
	if kept > 0 {
		p.queue.Kept(kept)
	}
	if len(p.waiting) > 0 {
		p.grantLocked(time.Now())
	}
}

// grantLocked grants the free slots to waiters.
func (p *slots) grantLocked(now time.Time) {
	for p.taken < p.all {
		var s *slotShare
		for _, other := range p.waiting {
			if other.waiters.Len() > 0 && other.held < p.most && (s == nil || other.before(s)) {
				s = other
			}
		}
		if s == nil {
			return
		}
		s.held++
		p.taken++
		p.queue.Served(now, now.Sub(s.waiters.First()))
		s.waiters.Grant(struct{}{})
		p.forgetLocked()
	}
}

// count returns how many events hold a slot and how many wait for a slot.
func (p *slots) count() (taken, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken, p.waitersLocked()
}

// waitingOf returns how many events of the function wait for a slot.
func (p *slots) waitingOf(s *slotShare) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return s.waiters.Len()
}

// room returns how many more events of the function would get a slot at once.
func (p *slots) room(s *slotShare) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(p.all-p.taken, p.most-s.held) - s.waiters.Len()
}
