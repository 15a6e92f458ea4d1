package engine

import (
	"context"
	"time"

	"github.com/fre-engine/fre/template"
)

// warm starts instances up to the template's minimum. A failed start is repeated after a growing
// pause, as long as the function is deployed.
func (f *function) warm() {
	if f.isPipeline() {
		return
	}
	if f.config.Instances.Min == 0 || f.config.Instances.Isolation != template.IsolationInstance {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.retired && !f.resting && len(f.instances) < f.config.Instances.Min && f.reserveLocked() == nil {
		f.startLocked()
	}
}

// rewarm calls warm, after a back-off that grows with the failures in a row.
func (f *function) rewarm(failures int) {
	if failures == 0 {
		f.warm()
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.config.Instances.Min == 0 || f.retired || f.resting || f.rewarming {
		return
	}
	f.rewarming = true
	pause := min(time.Second<<min(failures-1, 5), 30*time.Second)
	f.host.life.Spawn(func() {
		t := time.NewTimer(pause)
		defer t.Stop()
		select {
		case <-t.C:
		case <-f.host.life.Closed():
			return
		}
		f.mu.Lock()
		f.rewarming = false
		f.mu.Unlock()
		f.warm()
	})
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
	in := &instance{f: f, state: instanceStarting, reserved: true}
	f.instances[in] = struct{}{}
	f.starting++
	f.host.life.Spawn(func() { in.run() })
}

// run is the life of a warm instance: start, service, and cleanup after the end.
func (in *instance) run() {
	f := in.f
	ctx, cancel := context.WithTimeoutCause(context.Background(), f.config.Resources.Timeout, ErrTimeout)
	err := in.boot(ctx)
	cancel()

	f.mu.Lock()
	f.starting--
	f.queue.Clear()
	if err != nil {
		in.stepLocked(stepExited)
		f.removeLocked(in)
		f.failed++
		failed := f.failed
		// The events that caused this start get the error. Other events get another start.
		f.refuseWaitersLocked(min(f.config.Instances.Concurrency, f.waiters.Len()), err)
		f.startForWaitersLocked()
		f.mu.Unlock()
		f.host.log.Debug("instance did not start", "function", f.name, "error", err)
		f.rewarm(failed)
		return
	}
	in.stepLocked(stepBooted)
	if f.retired {
		in.stepLocked(stepDrained)
	} else {
		f.serveLocked(in, true)
	}
	in.idle = time.AfterFunc(f.config.Instances.Idle, in.idled)
	stop := in.state == instanceDraining
	f.mu.Unlock()
	if stop {
		in.stop()
	}

	in.awaitEnd()
	_ = in.conn.Close()
	f.mu.Lock()
	if in.state != instanceStopping && !in.served { // ended before its first event
		f.failed++
	}
	failed := f.failed
	in.stepLocked(stepExited)
	in.idle.Stop()
	f.dropLocked(in)
	f.removeLocked(in)
	if !f.retired {
		f.startForWaitersLocked()
	}
	f.mu.Unlock()
	f.rewarm(failed)
}

// awaitEnd returns after the end of the sandbox. It stops an instance that announces its end or
// closes its channel.
func (in *instance) awaitEnd() {
	select {
	case <-in.conn.Ending():
		in.retire()
	case <-in.box.Sandbox().Done():
	case <-in.conn.Done():
	}
	// Every end shows here: kills through the box, crashes, protocol errors.
	select {
	case <-in.box.Sandbox().Done():
		in.drain()
		t := time.NewTimer(stopGrace)
		select {
		case <-in.conn.Done(): // the engine has read all frames of the instance
		case <-t.C:
		}
		t.Stop()
	case <-in.conn.Done():
		in.drain()
		t := time.NewTimer(stopGrace)
		select {
		case <-in.box.Sandbox().Done():
		case <-t.C:
			in.box.Kill()
			<-in.box.Sandbox().Done()
		}
		t.Stop()
	}
}
