package engine

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/live"
)

const (
	// stopGrace limits the time from STOP to the end of an instance.
	stopGrace = 2 * time.Second
	// closeGrace limits the time from an instance's close of its channel to its end.
	closeGrace = 200 * time.Millisecond
)

// newBox describes the instance to lists.
func (in *instance) newBox(id string) *live.Box {
	if in.conn == nil {
		return in.f.newBox(id, in.currentState, nil)
	}
	return in.f.newBox(id, in.currentState, in.ask)
}

// ask tells the instance to finish its events and exit.
func (in *instance) ask() error {
	in.drain()
	return in.conn.Stop()
}

func (in *instance) currentState() live.State {
	in.f.mu.Lock()
	defer in.f.mu.Unlock()
	return in.shownLocked()
}

// explain translates the end of a channel into the function's error.
func (in *instance) explain(err error, before string) error {
	var failure *channel.Failure
	switch {
	case errors.As(err, &failure):
		told := &FunctionError{Type: failure.Type, Message: failure.Message, Stack: failure.Stack}
		if why := in.f.host.explainer.Failure(&in.f.config, told.Error(), told.Stack); why != "" {
			told.Message += " (" + why + ")"
		}
		return told
	case errors.Is(err, channel.ErrProtocol):
		return &CrashError{Reason: "sent a malformed frame before " + before}
	case errors.Is(err, channel.ErrUnserved):
		return &CrashError{Reason: "ended before it took the event"}
	case !errors.Is(err, channel.ErrClosed): // time-out, client, request body: not the instance's fault
		return err
	}
	// A process closes its files before its exit is visible.
	t := time.NewTimer(closeGrace)
	defer t.Stop()
	select {
	case <-in.box.Sandbox().Done():
		return in.f.crashed(in.box.Sandbox().Status(), before)
	case <-t.C:
		in.box.Kill()
		// A process that had begun to exit keeps its status, however late the exit is visible.
		if status := in.box.Sandbox().Status(); status.Signal != int(unix.SIGKILL) || status.OOMKilled {
			return in.f.crashed(status, before)
		}
		return &CrashError{Reason: "closed its channel before " + before}
	}
}

// release ends one lease. The instance serves the next event, becomes idle, or stops if it is
// draining. kept is how long the event held the instance; 0 if the queue's estimate should not
// count the time. release does not block.
func (in *instance) release(kept time.Duration) {
	f := in.f
	f.mu.Lock()
	in.inflight--
	f.busy--
	if kept > 0 {
		f.queue.Kept(kept)
	}
	in.served, f.failed = true, 0
	switch in.state {
	case instanceStarting, instanceUnwanted: // holds no lease
	case instanceServing:
		f.serveLocked(in, false)
	case instanceDraining:
		idle := in.inflight == 0
		f.mu.Unlock()
		if idle {
			in.stop()
		}
		return
	case instanceStopping, instanceExited:
	}
	f.mu.Unlock()
}

// drain keeps new events from the instance for good.
func (in *instance) drain() {
	in.f.mu.Lock()
	defer in.f.mu.Unlock()
	in.stepLocked(stepDrained)
	in.f.dropLocked(in)
}

// retire drains an instance that announced its end. The instance stops after its last event.
func (in *instance) retire() {
	in.drain()
	in.f.mu.Lock()
	idle := in.inflight == 0
	in.f.mu.Unlock()
	if idle {
		in.stop()
	}
}

// cancelGrace is how long an instance may take to end a cancelled event before the engine kills
// the instance.
const cancelGrace = time.Second

// killUnless keeps new events from the instance until a cancelled event ends. After cancelGrace
// it kills the instance.
func (in *instance) killUnless(finished <-chan struct{}) {
	f := in.f
	select {
	case <-finished:
		return
	default:
	}
	f.mu.Lock()
	in.hung++
	f.dropLocked(in)
	f.mu.Unlock()
	f.host.life.Spawn(func() {
		t := time.NewTimer(cancelGrace)
		defer t.Stop()
		gone := false
		select {
		case <-finished:
		case <-t.C:
			in.box.Kill()
			<-in.box.Sandbox().Done()
			gone = true
		case <-in.box.Sandbox().Done():
			gone = true
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		in.hung--
		if gone {
			in.stepLocked(stepDrained)
		}
		if in.state == instanceServing {
			f.serveLocked(in, false)
		}
	})
}

// idled stops an instance that has been idle for long enough and exceeds the minimum. Events do
// not touch the timer: after a use in between, idled sets the timer again.
func (in *instance) idled() {
	f := in.f
	f.mu.Lock()
	if in.state != instanceServing {
		f.mu.Unlock()
		return
	}
	limit := f.config.Instances.Idle
	rest := limit
	if in.inflight == 0 {
		since := in.idleSince
		if f.resting && f.restedAt.After(since) { // the events may return to a revision at rest for a while
			since, limit = f.restedAt, f.restFor()
		}
		rest = limit - time.Since(since)
	}
	if rest > 0 || f.stayingLocked() <= f.leastLocked() {
		in.idle.Reset(max(rest, time.Second))
		f.mu.Unlock()
		return
	}
	in.stepLocked(stepDrained)
	f.dropLocked(in)
	f.mu.Unlock()
	in.stop()
}

// stayingLocked counts the instances that get further events, now or once they have started.
func (f *function) stayingLocked() (n int) {
	for in := range f.instances {
		if in.state == instanceStarting || in.state == instanceServing {
			n++
		}
	}
	return n
}

// leastLocked returns how many instances stay without events.
func (f *function) leastLocked() int {
	if f.resting {
		return 0
	}
	return f.config.Instances.Min
}

// stop asks the instance to end and kills it after stopGrace.
func (in *instance) stop() {
	in.f.mu.Lock()
	defer in.f.mu.Unlock() // after spawn: until then the watcher of the instance keeps workers above zero
	if !in.stepLocked(stepStopped) {
		return
	}
	in.f.host.life.Spawn(func() {
		if in.conn.Stop() == nil {
			t := time.NewTimer(stopGrace)
			defer t.Stop()
			select {
			case <-in.box.Sandbox().Done():
				return
			case <-t.C:
			}
		}
		in.box.Kill()
	})
}
