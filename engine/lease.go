package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/sandbox"
)

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

// lease is acquire, without instances that have ended or announced their end.
func (f *function) lease(ctx context.Context, waits patience) (lease, error) {
	for {
		l, err := f.acquire(ctx, waits)
		if err != nil {
			return lease{}, err
		}
		select {
		case <-l.in.conn.Done():
			l.in.drain()
			l.in.release(0)
		case <-l.in.conn.Ending():
			l.in.drain()
			l.in.release(0)
		default:
			return l, nil
		}
	}
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
	in := &instance{f: f, state: instanceServing, inflight: 1, reserved: true}
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
