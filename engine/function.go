package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/internal/waiting"
	"github.com/fre-engine/fre/sandbox"
)

// function is one revision of a function: its program and its instances. A deployment makes a new
// revision; the old revision rests, and is retired later.
type function struct {
	program

	forks *forker // nil: the function cannot fork (newRevision)

	invocations, failures atomic.Uint64
	warmed, succeeded     prometheus.Observer

	interpreters *interpreterPool // parked interpreters for its instances; nil: none
	furniture    *furniture       // set with interpreters

	tunnels tunnels
	flows   flows
	use     *live.Share
	slots   slotShare // the function's part of the engine's slots

	mu        sync.Mutex
	retired   bool
	resting   bool                   // events go to other revisions, unless they name this revision
	restedAt  time.Time              // start of the rest
	restCount uint64                 // invocations at the last call of rested
	restTimer *time.Timer            // calls rested
	instances map[*instance]struct{} // all instances that count against Instances.Max
	free      []*instance            // ready, with room for another event; the last is the most recently used
	waiters   waiters                // events without an instance, oldest first
	queue     admission.Queue        // judges waiters
	starting  int                    // instances whose start is under way
	busy      int                    // leases held
	failed    int                    // instances in a row that served no event: sets the back-off of warm
	rewarming bool                   // a call of warm is scheduled
}

// waiters are events without an instance. The request is the time of the event's arrival.
type (
	waiters = waiting.Queue[time.Time, grant]
	waiter  = waiting.Waiter[time.Time, grant]
)

type grant struct {
	in   *instance
	cold bool
	err  error
}

// instance is one sandbox of a function. f.mu guards the fields below the blank line. box, conn
// and kind are set once, before any event can lease the instance.
type instance struct {
	f    *function
	box  *live.Box
	conn *channel.Conn
	kind sandbox.StartKind // kind of start

	state     instanceState // changed by stepLocked alone
	inflight  int           // leases held
	served    bool          // has ended an event
	listed    bool          // in f.free
	hung      int           // cancelled events that the function has not ended: no new lease meanwhile
	reserved  bool          // counted in f.use
	idleSince time.Time     // valid while inflight is 0
	idle      *time.Timer
}

// measure creates the function's usual metric series. The removal of a function by this name
// drops the series: call measure before the first event, and not during a removal.
func (f *function) measure() {
	f.warmed = f.host.metrics.start.WithLabelValues(f.name, string(StartWarm), f.number())
	f.succeeded = f.host.metrics.duration.WithLabelValues(f.name, outcome(nil), f.number())
}

// count returns the changing values of the revision for lists.
func (f *function) count() counters {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := counters{
		instances: len(f.instances), busy: f.busy, queued: f.waiters.Len(), fork: f.forks.describe(),
		invocations: f.invocations.Load(), failures: f.failures.Load(),
	}
	if f.interpreters != nil {
		now.interpreters = *f.interpreters.stats()
	}
	return now
}

// running returns the sandboxes of all started instances.
func (f *function) running() (boxes []*live.Box) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for in := range f.instances {
		if in.shownLocked() != live.StateStarting {
			boxes = append(boxes, in.box)
		}
	}
	return boxes
}

// crowded reports whether an event waits for the slot of a flowing body: an event with a flowing
// body, or any event of a function with a single slot.
func (f *function) crowded() bool {
	f.flows.mu.Lock()
	waiting := f.flows.waiting.Len()
	f.flows.mu.Unlock()
	if f.capacity() == 1 {
		f.mu.Lock()
		waiting += f.waiters.Len()
		f.mu.Unlock()
	}
	return waiting > 0
}

func (f *function) rests() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resting
}

func (f *function) isRetired() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.retired
}

// handles adds n to the count of events under way in a pipeline.
func (f *function) handles(n int) {
	f.mu.Lock()
	f.busy += n
	f.mu.Unlock()
}
