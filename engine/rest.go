package engine

import (
	"time"
)

// rest keeps a revision alive after its traffic has gone elsewhere. Its instances still handle
// events that name the revision, and all events after a rollback, until the idle time ends.
// Waiting events go to the function's next revision, and tunnels end. If a quota bounds the
// tenant's instances, idle ones stop at once and leave the quota to the next revision.
func (e *Engine) rest(f *function) {
	f.mu.Lock()
	if f.retired || f.resting {
		f.mu.Unlock()
		return
	}
	f.resting, f.restedAt, f.restCount = true, time.Now(), f.invocations.Load()
	f.refuseWaitersLocked(f.waiters.Len(), errRetired)
	var idle []*instance
	if f.bounded() {
		idle = f.drainLocked()
	}
	f.restTimer = time.AfterFunc(f.restFor(), func() { e.rested(f) })
	f.mu.Unlock()
	for _, in := range idle {
		in.stop()
	}
	f.tunnels.cut()
	f.forks.close()
}

// rested runs when the rest timer fires. It retires the revision if no instance is left and no
// event has come since the last look; otherwise it sets the timer again.
func (e *Engine) rested(f *function) {
	if e.life.Begin() != nil {
		return
	}
	defer e.life.Done()
	f.mu.Lock()
	if f.retired || !f.resting {
		f.mu.Unlock()
		return
	}
	if n := f.invocations.Load(); len(f.instances)+f.waiters.Len() > 0 || n != f.restCount {
		f.restCount = n
		f.restTimer.Reset(f.restFor())
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	e.deployMu.Lock()
	defer e.deployMu.Unlock()
	d := (*e.functions.Load())[f.name]
	if d == nil || d.live[f.revision] != f || !f.rests() {
		return
	}
	if err := e.withLiveLocked(d, f.revision, nil); err != nil {
		e.log.Error("revision not retired", "function", f.name, "revision", f.revision, "error", err)
		return
	}
	f.retire()
}

// wake ends rest and starts the template's minimum of warm instances.
func (f *function) wake() {
	f.mu.Lock()
	rested := f.resting && !f.retired
	if rested {
		f.resting = false
		f.restTimer.Stop()
	}
	f.mu.Unlock()
	if rested {
		f.forks.open()
	}
	f.warm()
}

// retire takes the function out of service. Waiting events get errRetired, and the callers look
// up the name again. Idle instances stop now, busy instances after the last event.
func (f *function) retire() {
	f.mu.Lock()
	first := !f.retired
	f.retired = true
	if f.restTimer != nil {
		f.restTimer.Stop()
	}
	f.refuseWaitersLocked(f.waiters.Len(), errRetired)
	idle := f.drainLocked()
	f.mu.Unlock()
	if first && f.interpreters != nil {
		f.interpreters.leave()
	}
	f.tunnels.end()
	for _, in := range idle {
		in.stop()
	}
	f.forks.close()
}

// drainLocked keeps further events from all instances and releases the idle instances from the
// quota. The caller stops the returned idle instances.
func (f *function) drainLocked() (idle []*instance) {
	for in := range f.instances {
		in.stepLocked(stepDrained)
		if in.state == instanceDraining && in.inflight == 0 {
			idle = append(idle, in)
			f.releaseLocked(in)
		}
	}
	f.free = nil
	return idle
}
