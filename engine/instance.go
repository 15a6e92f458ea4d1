package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/sandbox"
)

const (
	// stopGrace limits the time from STOP to the end of an instance.
	stopGrace = 2 * time.Second
	// closeGrace limits the time from an instance's close of its channel to its end.
	closeGrace = 200 * time.Millisecond
)

// instance is one sandbox of a function. f.mu guards the fields below the blank line. box, conn
// and kind are set once, before any event can lease the instance.
type instance struct {
	f    *function
	box  *live.Box
	conn *channel.Conn
	kind sandbox.StartKind // kind of start

	state     live.State
	inflight  int       // leases held
	served    bool      // has ended an event
	listed    bool      // in f.free
	hung      int       // cancelled events that the function has not ended: no new lease meanwhile
	reserved  bool      // counted in f.use
	draining  bool      // no new lease; stop when inflight reaches 0
	idleSince time.Time // valid while state is idle
	idle      *time.Timer
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
		in.state = live.StateExited
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
	if f.retired {
		in.draining = true
	} else {
		f.serveLocked(in, true)
	}
	in.idle = time.AfterFunc(f.config.Instances.Idle, in.idled)
	stop := in.draining
	f.mu.Unlock()
	if stop {
		in.stop()
	}

	select {
	case <-in.conn.Ending():
		in.retire()
	case <-in.box.Sandbox().Done():
	case <-in.conn.Done():
	}
	// run notices every end of a warm instance: kills through the box, crashes, protocol errors.
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
	_ = in.conn.Close()
	f.mu.Lock()
	if in.state != live.StateStopping && !in.served { // ended before its first event
		f.failed++
	}
	failed := f.failed
	in.state = live.StateExited
	in.draining = true
	in.idle.Stop()
	f.dropLocked(in)
	f.removeLocked(in)
	if !f.retired {
		f.startForWaitersLocked()
	}
	f.mu.Unlock()
	f.rewarm(failed)
}

// boot starts the sandbox and waits until the bootstrap has loaded the handler. On failure
// boot cleans up.
func (in *instance) boot(ctx context.Context) error {
	f := in.f
	if child := f.forks.take(ctx); child != nil {
		in.box, in.conn, in.kind = child.box, child.conn, sandbox.StartForked
		child.own(in.currentState, in.ask)
		return nil
	}
	secrets, err := f.secrets()
	if err != nil {
		f.logFailure("", "", &FunctionError{Message: err.Error()})
		return err
	}
	defer wipe(secrets)
	found, err := in.bootInterpreter(ctx, secrets)
	if !found {
		if err := in.bootSandbox(ctx, secrets); err != nil {
			return err
		}
	}
	var ready channel.Ready
	if err == nil {
		ready, err = in.conn.Ready(ctx)
	}
	if err != nil {
		err = in.explain(err, "it was ready")
		in.box.Kill()
		<-in.box.Sandbox().Done()
		_ = in.conn.Close()
		var failure *FunctionError
		if errors.As(err, &failure) {
			f.logFailure(in.box.ID, "", failure)
		}
		return err
	}
	f.forks.consider(ready)
	return nil
}

// bootSandbox starts the interpreter for the instance, in a sandbox of its own.
func (in *instance) bootSandbox(ctx context.Context, secrets []sandbox.Secret) error {
	spec, err := in.f.spec(live.NewID())
	if err != nil {
		return err
	}
	spec.Secrets = secrets
	ours, theirs, err := socketpair()
	if err != nil {
		return err
	}
	spec.Channel = theirs
	spec.Env = in.f.environment()
	in.conn = channel.NewConn(ours, in.f.channelConfig(spec.ID, func() *sandbox.Sandbox { return in.box.Sandbox() }))
	in.box = in.newBox(spec.ID)
	err = in.f.start(ctx, spec, in.box)
	_ = theirs.Close()
	if err != nil {
		_ = in.conn.Close()
		return err
	}
	in.kind = in.box.Sandbox().Kind()
	return nil
}

// start starts a sandbox and connects its output to the function's log.
func (p *program) start(ctx context.Context, spec sandbox.Spec, b *live.Box) error {
	streams := []string{"stderr", "stdout"}
	if spec.Stdout != nil {
		streams = streams[:1]
	}
	outputs, err := p.pipes(streams...)
	if err != nil {
		return err
	}
	spec.Stderr = outputs[0].W
	if spec.Stdout == nil {
		spec.Stdout = outputs[1].W
	}
	err = p.host.boxes.Start(ctx, b, spec)
	p.logs.Settle(p.host.life, outputs, spec.ID, err)
	return err
}

// newBox describes the instance to lists.
func (in *instance) newBox(id string) *live.Box {
	if in.conn == nil {
		return in.f.newBox(id, in.currentState, nil)
	}
	return in.f.newBox(id, in.currentState, in.ask)
}

// newBox describes a sandbox of the function to lists. ask is as in box.
func (p *program) newBox(id string, state func() live.State, ask func() error) *live.Box {
	return &live.Box{
		ID: id, Function: p.name, Revision: p.revision, Image: p.ref(), Digest: p.image.Digest, Limits: live.LimitsOf(p.config.Resources),
		Tenant: p.config.Tenant, Command: p.config.Args, State: state, Ask: ask,
	}
}

// ask tells the instance to finish its events and exit.
func (in *instance) ask() error {
	in.drain()
	return in.conn.Stop()
}

func (in *instance) currentState() live.State {
	in.f.mu.Lock()
	defer in.f.mu.Unlock()
	return in.state
}

// explain translates the end of a channel into the function's error.
func (in *instance) explain(err error, before string) error {
	var failure *channel.Failure
	switch {
	case errors.As(err, &failure):
		told := &FunctionError{Type: failure.Type, Message: failure.Message, Stack: failure.Stack}
		why := in.f.config.LeftOut.Explain(told.Error() + "\n" + told.Stack)
		if why = cmp.Or(why, in.f.config.ExplainLimit(told.Error())); why != "" {
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
	switch {
	case in.state == live.StateExited || in.state == live.StateStopping:
	case in.draining:
		idle := in.inflight == 0
		f.mu.Unlock()
		if idle {
			in.stop()
		}
		return
	default:
		f.serveLocked(in, false)
	}
	f.mu.Unlock()
}

// drain keeps new events from the instance for good.
func (in *instance) drain() {
	in.f.mu.Lock()
	defer in.f.mu.Unlock()
	in.draining = true
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
		in.draining = in.draining || gone
		if !in.draining {
			f.serveLocked(in, false)
		}
	})
}

// idled stops an instance that has been idle for long enough and exceeds the minimum. Events do
// not touch the timer: after a use in between, idled sets the timer again.
func (in *instance) idled() {
	f := in.f
	f.mu.Lock()
	limit := f.config.Instances.Idle
	rest := limit
	if in.state == live.StateIdle {
		since := in.idleSince
		if f.resting && f.restedAt.After(since) { // the events may return to a revision at rest for a while
			since, limit = f.restedAt, f.restFor()
		}
		rest = limit - time.Since(since)
	}
	if in.state == live.StateExited || in.draining {
		f.mu.Unlock()
		return
	}
	staying := 0
	for other := range f.instances {
		if !other.draining {
			staying++
		}
	}
	least := f.config.Instances.Min
	if f.resting {
		least = 0
	}
	if rest > 0 || staying <= least {
		in.idle.Reset(max(rest, time.Second))
		f.mu.Unlock()
		return
	}
	in.draining = true
	f.dropLocked(in)
	f.mu.Unlock()
	in.stop()
}

// stop asks the instance to end and kills it after stopGrace.
func (in *instance) stop() {
	in.f.mu.Lock()
	if in.state == live.StateExited || in.state == live.StateStopping {
		in.f.mu.Unlock()
		return
	}
	in.state = live.StateStopping
	defer in.f.mu.Unlock() // after spawn: until then the watcher of the instance keeps workers above zero
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

// socketpair returns the two ends of a channel. The poller watches ours. The caller passes
// theirs to the sandbox, then closes theirs.
func socketpair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make channel: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "channel")
	f := os.NewFile(uintptr(fds[0]), "channel")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, fmt.Errorf("make channel: %w", err)
	}
	return c.(*net.UnixConn), theirs, nil
}
