package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/internal/waiting"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/template"
)

// errRetired tells a waiting event that the function was replaced or removed. The caller looks
// the name up again.
var errRetired = errors.New("function was replaced")

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

// patience says which instances an event may wait for.
type patience int

const (
	anyInstance patience = iota // the next instance to become free or ready
	newInstance                 // only an instance that starts now
)

// errTaken refuses an event that accepts only a new instance (newInstance). Waiting for a busy
// instance could deadlock: its event may wait for the answer of the refused event.
var errTaken = fmt.Errorf("%w: deadlock: all instances of the function are busy, some until this call reads their answers", ErrOverloaded)

// lease is the right to run one event on an instance; instance.release ends it.
type lease struct {
	in    *instance
	kind  sandbox.StartKind
	start time.Duration // from the request for a lease to its grant
}

// acquire leases an instance: a free one, or the next to become free or ready. Events arriving
// together start only as many instances as they can fill: a burst on a cold function does not
// stampede.
func (f *function) acquire(ctx context.Context, waits patience) (lease, error) {
	began := time.Now()
	f.mu.Lock()
	if f.retired {
		f.mu.Unlock()
		return lease{}, errRetired
	}
	if in := f.takeFreeLocked(); in != nil {
		f.queue.Clear()
		f.mu.Unlock()
		took := time.Since(began)
		f.warmed.Observe(took.Seconds())
		return lease{in: in, kind: StartWarm, start: took}, nil
	}
	w, err := f.queueLocked(began)
	if err != nil {
		f.mu.Unlock()
		return lease{}, err
	}
	f.startForWaitersLocked()
	if waits == newInstance && f.waiters.Len() > f.starting*f.config.Instances.Concurrency { // every instance under way is for earlier waiters
		w.Leave()
		f.mu.Unlock()
		f.host.metrics.refuse(admission.QueueLength)
		return lease{}, errTaken
	}
	f.mu.Unlock()

	g, err := f.wait(ctx, w, began, func(in *instance) { in.release(0) })
	if err != nil {
		return lease{}, err
	}
	l := lease{in: g.in, kind: StartWarm, start: time.Since(began)}
	if g.cold {
		l.kind = g.in.kind
	}
	f.started(l.kind, l.start)
	return l, nil
}

// wait returns the instance granted to w, or the error in the grant. If ctx ends first, wait
// returns the cause of ctx, after release if an instance was granted meanwhile.
func (f *function) wait(ctx context.Context, w *waiter, began time.Time, release func(*instance)) (grant, error) {
	g, err := w.Wait(ctx, &f.mu, func(g grant) {
		if g.in != nil {
			release(g.in)
		}
	})
	if err != nil {
		return grant{}, err
	}
	f.host.metrics.waited.Observe(time.Since(began).Seconds())
	return g, g.err
}

// queueLocked queues an event, or returns ErrOverloaded if the event would wait too long. While
// an instance starts or could be started, waiting is not the queue's fault: then only the number
// of waiters counts.
func (f *function) queueLocked(now time.Time) (*waiter, error) {
	slots := f.busy
	if f.starting > 0 || len(f.instances) < f.config.Instances.Max {
		slots = 0
	}
	if f.waiters.Len() == 0 || slots == 0 {
		f.queue.Clear()
	}
	if why := f.queue.Full(f.waiters.Len(), slots); why != "" {
		f.host.metrics.refuse(why)
		return nil, ErrOverloaded
	}
	return f.waiters.Push(now), nil
}

// grantLocked gives an instance to the oldest waiter. First it refuses stale waiters, but never
// the last waiter, to shorten the queue for new events.
func (f *function) grantLocked(g grant) {
	now := time.Now()
	for f.waiters.Len() > 1 && f.queue.Stale(now.Sub(f.waiters.First())) {
		f.waiters.Grant(grant{err: ErrOverloaded})
		f.host.metrics.refuse(admission.QueueTime)
	}
	f.queue.Served(now, now.Sub(f.waiters.First()))
	f.waiters.Grant(g)
}

// refuseWaitersLocked gives the n oldest waiters an error.
func (f *function) refuseWaitersLocked(n int, err error) {
	for range n {
		f.waiters.Grant(grant{err: err})
	}
}

// takeFreeLocked counts one more event on the most recently used instance with room. The least
// used instances thus become idle and stop.
func (f *function) takeFreeLocked() *instance {
	if len(f.free) == 0 {
		return nil
	}
	in := f.free[len(f.free)-1]
	in.inflight++
	in.state = live.StateBusy
	f.busy++
	if in.inflight >= f.config.Instances.Concurrency {
		f.free = f.free[:len(f.free)-1]
		in.listed = false
	}
	return in
}

// startForWaitersLocked starts as many instances as the waiting events fill, less the starts
// under way, within the template's maximum and the tenant's quota.
func (f *function) startForWaitersLocked() {
	c := f.config.Instances.Concurrency
	need := (f.waiters.Len()+c-1)/c - f.starting
	for ; need > 0 && len(f.instances) < f.config.Instances.Max; need-- {
		if err := f.reserveLocked(); err != nil {
			f.refuseLocked(err)
			return
		}
		f.startLocked()
	}
}

// startLocked starts one instance in the background. The caller has reserved the quota.
func (f *function) startLocked() {
	in := &instance{f: f, state: live.StateStarting, reserved: true}
	f.instances[in] = struct{}{}
	f.starting++
	f.host.life.Spawn(func() { in.run() })
}

// serveLocked grants an instance with room to the oldest waiters, then lists the instance as free
// and sets its state.
func (f *function) serveLocked(in *instance, cold bool) {
	c := f.config.Instances.Concurrency
	for in.hung == 0 && in.inflight < c && f.waiters.Len() > 0 {
		in.inflight++
		f.busy++
		f.grantLocked(grant{in: in, cold: cold})
	}
	if in.hung == 0 && in.inflight < c && !in.listed {
		f.free = append(f.free, in)
		in.listed = true
	}
	in.state = live.StateBusy
	if in.inflight == 0 {
		in.state = live.StateIdle
		in.idleSince = time.Now()
	}
}

// dropLocked takes an instance out of the free list.
func (f *function) dropLocked(in *instance) {
	if i := slices.Index(f.free, in); i >= 0 {
		f.free = slices.Delete(f.free, i, i+1)
	}
	in.listed = false
}

// eventSlot counts a fresh-per-event sandbox against the template's maximum. At the maximum or at
// the tenant's quota, the event waits in the queue.
func (f *function) eventSlot(ctx context.Context, waits patience) (*instance, error) {
	now := time.Now()
	f.mu.Lock()
	if f.retired {
		f.mu.Unlock()
		return nil, errRetired
	}
	if len(f.instances) < f.config.Instances.Max {
		err := f.reserveLocked()
		if err == nil {
			f.queue.Clear()
			in := f.newEventLocked()
			f.mu.Unlock()
			return in, nil
		}
		if len(f.instances) == 0 { // no sandbox of this function can end and free quota
			f.mu.Unlock()
			f.host.metrics.refuse(reasonQuota)
			return nil, err
		}
	}
	if waits == newInstance {
		f.mu.Unlock()
		f.host.metrics.refuse(admission.QueueLength)
		return nil, errTaken
	}
	w, err := f.queueLocked(now)
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	g, err := f.wait(ctx, w, now, func(in *instance) { f.endEvent(in, 0) })
	return g.in, err
}

// newEventLocked counts a fresh-per-event sandbox. The caller has reserved the quota.
func (f *function) newEventLocked() *instance {
	in := &instance{f: f, state: live.StateBusy, inflight: 1, reserved: true}
	f.instances[in] = struct{}{}
	f.busy++
	return in
}

// endEvent passes the slot of a fresh-per-event sandbox to the next waiter. kept is as in
// instance.release.
func (f *function) endEvent(in *instance, kept time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.instances[in]; !ok {
		return
	}
	f.removeLocked(in)
	f.busy--
	if kept > 0 {
		f.queue.Kept(kept)
	}
	if f.waiters.Len() > 0 && !f.retired {
		if err := f.reserveLocked(); err != nil {
			f.refuseLocked(err)
			return
		}
		f.grantLocked(grant{in: f.newEventLocked()})
	}
}

func (p *program) fresh() bool {
	return p.config.Instances.Isolation == template.IsolationEvent
}
