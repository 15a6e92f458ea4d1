package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/sandbox/pool"
)

const (
	// heavyImport is the least import time that justifies the memory of a fork server: the
	// interpreter's own start takes as long.
	heavyImport = 20 * time.Millisecond
	// forkWithin limits the time of a fork. A fork takes milliseconds.
	forkWithin = 5 * time.Second
	// forkIdle is how long a fork server stays without a fork. A longer idle time of the
	// function's instances replaces it.
	forkIdle = 30 * time.Minute
)

// forker decides whether a function has a fork server, and keeps the server: one sandbox that
// has imported the handler and whose children become instances (sandbox.Fork). The server starts
// in the background, after the first ordinary start that shows a benefit. Without a server
// instances start as usual. A nil forker never forks.
type forker struct {
	program *program

	mu       sync.Mutex
	off      string      // why forking is off for good
	server   *forkServer // nil if no server runs
	starting bool
	failures int // in a row
	retry    time.Time
	closed   bool // the function rests or is retired
}

// newForker returns a forker. It is off, with the reason, if the host cannot have fork servers.
func newForker(p *program) *forker {
	k := &forker{program: p}
	if p.host.cfg.ForkPercent < 0 {
		k.off = "the engine may have no fork servers (fre serve --forks)"
	} else if err := sandbox.CanFork(); err != nil {
		k.off = "the host cannot have fork servers: " + err.Error()
	}
	return k
}

// describe returns the text of Function.Fork.
func (k *forker) describe() string {
	if k == nil {
		return ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.off != "":
		return "off: " + k.off
	case k.server != nil:
		return "on"
	}
	return "waiting"
}

// consider starts a fork server after an ordinary start, if a fork would have been faster.
func (k *forker) consider(ready channel.Ready) {
	if k == nil {
		return
	}
	if !k.program.fresh() && time.Duration(ready.LoadMicros)*time.Microsecond < heavyImport {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.off != "" || k.server != nil || k.starting || k.closed || time.Now().Before(k.retry) {
		return
	}
	k.starting = true
	k.program.host.life.Spawn(k.start)
}

// refuse turns forking off for good and writes the reason to the function's log.
func (k *forker) refuse(why string) {
	k.mu.Lock()
	k.off = why
	k.mu.Unlock()
	k.program.note(live.LogLine{Level: "info", Text: "instances are not forked: " + why})
}

// start starts the fork server and returns after the server's end.
func (k *forker) start() {
	p := k.program
	s := &forkServer{forker: k, program: p, used: make(chan struct{}, 1)}
	err := p.host.forks.take(p.config.Resources.MemoryBytes)
	if err == nil {
		defer p.host.forks.give(p.config.Resources.MemoryBytes)
		ctx, cancel := context.WithTimeoutCause(context.Background(), p.config.Resources.Timeout, ErrTimeout)
		err = s.boot(ctx)
		cancel()
	}
	var declined *declinedError
	if errors.As(err, &declined) {
		k.refuse(declined.why)
	}
	k.mu.Lock()
	k.starting, s.began = false, time.Now()
	if err == nil && !k.closed {
		k.server = s
	}
	unwanted := k.closed
	k.mu.Unlock()
	if err == nil {
		if unwanted {
			s.close()
		}
		err = s.watch()
	}
	k.mu.Lock()
	if k.server == s {
		k.server = nil
	}
	if err != nil {
		k.failedLocked(s)
	}
	k.mu.Unlock()
	if err != nil {
		if !errors.Is(err, errNoRoom) && declined == nil {
			p.host.metrics.forkServers.WithLabelValues(p.name, p.number()).Inc()
		}
		p.host.log.Debug("fork server ended", "function", p.name, "error", err)
	}
}

// failedLocked puts off the next fork server, the longer the more servers have failed in a row.
func (k *forker) failedLocked(s *forkServer) {
	if time.Since(s.began) > time.Minute {
		k.failures = 0
	}
	k.failures++
	k.retry = time.Now().Add(min(time.Second<<min(k.failures-1, 9), 5*time.Minute))
}

// abandon ends the use of a server that did not fork in time. The server ends after its last fork,
// because on a busy host it may be as healthy as the events in its forks.
func (k *forker) abandon(s *forkServer) {
	k.mu.Lock()
	if k.server == s {
		k.server = nil
		k.failedLocked(s)
		k.program.host.metrics.forkServers.WithLabelValues(k.program.name, k.program.number()).Inc()
	}
	k.mu.Unlock()
	s.close()
}

// close makes the fork server end after its last fork.
func (k *forker) close() {
	if k == nil {
		return
	}
	k.mu.Lock()
	s := k.server
	k.server, k.closed = nil, true
	k.mu.Unlock()
	if s != nil {
		s.close()
	}
}

// open undoes close: a fork server may start again.
func (k *forker) open() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = false
}

// take returns a fork, parked or new, or nil if none is available. The caller calls own.
func (k *forker) take(ctx context.Context) *forked {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	s := k.server
	k.mu.Unlock()
	if s == nil {
		return nil
	}
	child, ok := s.pool.TryTake()
	if !ok {
		var err error
		if child, err = s.fork(ctx); err != nil {
			return nil
		}
	}
	select {
	case s.used <- struct{}{}:
	default:
	}
	return child
}

// forkServer is a running fork server.
type forkServer struct {
	forker  *forker
	program *program
	box     *live.Box
	conn    *channel.Conn
	pool    *pool.Pool[*forked]
	used    chan struct{} // one token: a fork became an instance

	began time.Time // when the server was ready; guarded by the forker

	mu      sync.Mutex
	holds   int  // forks under construction or running
	closing bool // no more forks; the server ends with the last
}

// forked is a fork, parked in the pool or part of an instance.
type forked struct {
	box   *live.Box
	conn  *channel.Conn
	owner atomic.Pointer[forkOwner] // nil while parked
}

// forkOwner answers lists in place of a fork that has become an instance.
type forkOwner struct {
	state func() live.State
	ask   func() error
}

// own makes the fork part of an instance with this state and this request to end.
func (c *forked) own(state func() live.State, ask func() error) {
	c.owner.Store(&forkOwner{state, ask})
}

func (c *forked) state() live.State {
	if o := c.owner.Load(); o != nil {
		return o.state()
	}
	return live.StateParked
}

func (c *forked) ask() error {
	if o := c.owner.Load(); o != nil {
		return o.ask()
	}
	return c.conn.Stop()
}

func (c *forked) alive() bool {
	select {
	case <-c.conn.Done():
		return false
	case <-c.box.Sandbox().Done():
		return false
	default:
		return true
	}
}

func (c *forked) drop() error {
	c.box.Kill()
	return c.conn.Close()
}

// declinedError is a bootstrap's refusal of a module that must not be forked.
type declinedError struct{ why string }

func (e *declinedError) Error() string { return e.why }

// boot starts the server and waits until the server has imported the handler. On failure
// boot cleans up.
func (s *forkServer) boot(ctx context.Context) error {
	p := s.program
	spec, err := p.spec(live.NewID())
	if err != nil {
		return err
	}
	ours, theirs, err := socketpair()
	if err != nil {
		return err
	}
	spec.Channel = theirs
	spec.Env = append(p.environment(), "FRE_FORK=1")
	spec.Pin = false // its children would inherit the CPU, and only the first process is released from it
	ready, most := p.forksReady()
	spec.Forks = p.config.Instances.Max + most + runtime.NumCPU()
	// Forks start in the server's cgroup, and the quota of one event must not delay a fork.
	spec.Limits.Pids += int64(most) + 8
	spec.Limits.CPUMillis = max(spec.Limits.CPUMillis, 1000)
	s.conn = channel.NewConn(ours, channel.Config{Log: p.channelLog(spec.ID), LogPace: p.logs.Drop})
	s.box = p.newBox(spec.ID, func() live.State { return live.StateParked }, s.conn.Stop)
	err = p.start(ctx, spec, s.box)
	_ = theirs.Close()
	if err != nil {
		_ = s.conn.Close()
		return err
	}
	said, err := s.conn.Ready(ctx)
	if err == nil && said.Unforkable != "" {
		err = &declinedError{said.Unforkable}
	}
	if err != nil {
		s.box.Kill()
		_ = s.conn.Close()
		<-s.box.Gone()
		return err
	}
	s.mu.Lock() // Make may close the server
	defer s.mu.Unlock()
	s.pool = pool.New(pool.Config[*forked]{
		Name: "fork", Ready: ready, Max: most, Make: func() (*forked, error) { return s.fork(context.Background()) },
		Alive: (*forked).alive, Drop: (*forked).drop, Log: p.host.log,
	})
	return nil
}

// forksReady returns how many forks to park: without demand, and after great demand.
func (p *program) forksReady() (ready, most int) {
	ready, most = 1, 4
	if p.fresh() {
		ready, most = 2, 16
	}
	return min(ready, p.config.Instances.Max), min(most, p.config.Instances.Max)
}

// errSlowFork is the cause of a fork that took too long.
var errSlowFork = errors.New("fork server did not answer")

// fork makes a child that is ready for its event. Error: pool.ErrFull, for every failure. A
// server that is slow to fork is abandoned, a server that fails otherwise is killed; forker starts
// another after a pause.
func (s *forkServer) fork(ctx context.Context) (*forked, error) {
	if !s.hold() {
		return nil, pool.ErrFull
	}
	ctx, cancel := context.WithTimeoutCause(ctx, forkWithin, errSlowFork)
	defer cancel()
	c, err := s.make(ctx)
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, sandbox.ErrForks):
	case errors.Is(context.Cause(ctx), errSlowFork):
		s.program.host.log.DebugContext(ctx, "not forked", "function", s.program.name, "error", err)
		s.forker.abandon(s)
	case ctx.Err() != nil: // the event is over
	default:
		s.program.host.log.DebugContext(ctx, "not forked", "function", s.program.name, "error", err)
		s.box.Kill()
	}
	return nil, pool.ErrFull
}

// make makes a child. The caller has called hold for the child.
func (s *forkServer) make(ctx context.Context) (*forked, error) {
	kept := false
	defer func() {
		if !kept { // otherwise the sandbox's end calls release
			s.release()
		}
	}()
	p := s.program
	leave, err := s.box.Sandbox().Fork()
	if err != nil {
		return nil, err
	}
	id := live.NewID()
	ours, pidfd, err := s.ask(ctx, id, leave)
	if err != nil {
		leave.Cancel()
		return nil, err
	}
	sb, err := leave.Adopt(pidfd, sandbox.ForkSpec{ID: id, Limits: live.LimitsOf(p.config.Resources)})
	if err != nil {
		_ = ours.Close()
		return nil, err
	}
	c := &forked{}
	c.box = p.newBox(id, c.state, c.ask)
	c.box.Ended = func(show func()) {
		show()
		s.release()
	}
	c.conn = channel.NewConn(ours, p.channelConfig(id, func() *sandbox.Sandbox { return sb }))
	p.host.boxes.Adopt(c.box, sb)
	kept = true
	err = c.conn.Go()
	if err == nil {
		_, err = c.conn.Ready(ctx)
	}
	if err != nil {
		_ = c.drop()
		return nil, fmt.Errorf("fork: %w", err)
	}
	return c, nil
}

// ask makes the server fork. It returns the child's channel and pidfd.
func (s *forkServer) ask(ctx context.Context, id string, leave *sandbox.Fork) (_ *net.UnixConn, pidfd int, err error) {
	ours, theirs, err := socketpair()
	if err != nil {
		return nil, -1, err
	}
	defer theirs.Close()
	defer func() {
		if err != nil {
			_ = ours.Close()
		}
	}()
	if err := channel.ExpectFork(ours); err != nil {
		return nil, -1, err
	}
	outputs, err := s.program.pipes("stdout", "stderr")
	if err != nil {
		return nil, -1, err
	}
	defer func() { s.program.logs.Settle(s.program.host.life, outputs, id, err) }()
	if err := s.conn.Fork(theirs, outputs[0].W, outputs[1].W, leave.Network()); err != nil {
		return nil, -1, err
	}
	_ = theirs.Close() // otherwise a child that was not made would go unnoticed
	pidfd, err = channel.Forked(ctx, ours)
	return ours, pidfd, err
}

// hold counts a fork from before its construction to its end. It returns false if the server is
// closing.
func (s *forkServer) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.holds++
	return true
}

func (s *forkServer) release() {
	s.mu.Lock()
	s.holds--
	last := s.closing && s.holds == 0
	s.mu.Unlock()
	if last {
		s.box.Kill()
	}
}

// close prevents further forks and ends the server after the last.
func (s *forkServer) close() {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	last := s.holds == 0
	s.mu.Unlock()
	if last {
		s.box.Kill()
	}
	if first {
		s.program.host.life.Spawn(s.pool.Close) // drops the parked forks
	}
}

// watch waits for the server's end and closes an idle server. It returns nil if the server was
// closed.
func (s *forkServer) watch() error {
	k := s.forker
	idle := max(forkIdle, s.program.config.Instances.Idle)
	t := time.NewTimer(idle)
	defer t.Stop()
	for running := true; running; {
		select {
		case <-s.used:
			t.Reset(idle)
		case <-t.C:
			k.mu.Lock()
			k.server = nil
			k.mu.Unlock()
			s.close()
		case <-s.box.Gone():
			running = false
		}
	}
	s.mu.Lock()
	closed := s.closing
	s.closing = true
	s.mu.Unlock()
	s.pool.Close()
	_ = s.conn.Close()
	if !closed {
		return s.program.crashed(s.box.Sandbox().Status(), "the engine stopped it")
	}
	return nil
}
