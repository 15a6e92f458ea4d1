package engine

import (
	"slices"
	"time"

	"github.com/fre-engine/fre/admission"
)

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
	f.busy++
	if in.inflight >= f.config.Instances.Concurrency {
		f.free = f.free[:len(f.free)-1]
		in.listed = false
	}
	return in
}

// serveLocked grants an instance with room to the oldest waiters, then lists the instance as free.
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
	if in.inflight == 0 {
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
