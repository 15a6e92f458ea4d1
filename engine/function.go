package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/admission"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// function is one revision of a function: immutable configuration and the instances
// that serve it. A redeploy makes a new one; the old rests, and is retired.
type function struct {
	e        *Engine
	name     string // qualified: NAME.TENANT, except in the tenant "default"
	plain    string // NAME, which is all that the function itself is told
	revision int    // its number
	template string // id of the template it came from
	version  string
	image    *store.Image
	config   image.Config // Tenant is the function's, whatever the image says
	deployed time.Time

	temporary bool // see DeployOptions
	agent     bool // it is an agent's sandbox: whatever runs there can call no function

	opens *sandbox.Opens // what it opens in its root; nil: nobody asks. Set before the function is published

	user  sandbox.User
	work  string       // host directory of the tenant's /work
	dir   string       // where its program begins; "" for /function
	logs  *functionLog // set before the function is published; kept over redeployments
	forks *forker      // nil where the runtime or the template has none
	held  heldAnswers

	invocations, failures atomic.Uint64
	warmed, succeeded     prometheus.Observer

	shells    *shellPool // what its instances can start from; nil: nothing
	furniture *furniture // set with shells

	tunnels tunnels
	use     *tenantUse
	lends   bool   // it may be lent its clients' connections
	placed  placed // its part of the engine's places

	waiting atomic.Int64 // bytes of the engine's buffers that its answers wait in

	flows flows

	mu        sync.Mutex
	retired   bool
	resting   bool                   // events go to other revisions, unless they ask for this one
	restedAt  time.Time              // since when
	restCount uint64                 // invocations when rested looked last
	restTimer *time.Timer            // calls rested
	instances map[*instance]struct{} // all that count against Instances.Max
	free      []*instance            // ready, with room for another event; the last is the most recently used
	waiters   []*waiter              // events without an instance, oldest first
	queue     admission.Queue        // judges waiters
	starting  int                    // instances whose start is under way
	busy      int                    // leases held
	failed    int                    // instances that served no event, in a row: the back-off of warm
	rewarming bool                   // a call of warm is on its way
}

// ref is what people call the function's image.
func (f *function) ref() string { return f.template + ":" + f.version }

// newRevision checks a revision against the registry; it starts nothing and leaves
// logs to the caller. fs.ErrNotExist: its image is gone.
func (e *Engine) newRevision(name string, spec *functionSpec, r *Revision) (*function, error) {
	img, err := e.cfg.Store.Image(string(r.Image))
	if err != nil {
		return nil, err
	}
	cfg, err := image.ConfigOf(img)
	if err != nil {
		return nil, err
	}
	if cfg.Protocol == image.ProtocolNone || len(cfg.Args) == 0 && cfg.Protocol != image.ProtocolPipeline {
		return nil, fmt.Errorf("%s: %w", name, ErrNotReady)
	}
	plain, tenant, err := image.SplitName(name)
	if err != nil {
		return nil, err
	}
	if spec.Tenant == "" && cfg.Tenant != tenant {
		return nil, fmt.Errorf("%s of tenant %s has no name of its own: deploy it again", name, cfg.Tenant) // qualifyNames could not give it one
	}
	cfg.Tenant = tenant
	if cfg.Protocol != image.ProtocolPipeline {
		cfg.Env = withLimits(cfg.Env, cfg.Resources)
	}
	var user sandbox.User
	var work string
	if spec.Temporary {
		user, work, err = e.temporaryTenant(name)
	} else {
		user, work, err = e.tenant(cfg.Tenant)
	}
	if err != nil {
		return nil, err
	}
	f := &function{
		e: e, name: name, plain: plain, revision: r.Number, template: r.Template, version: r.Version, image: img, config: cfg, deployed: r.Deployed, temporary: spec.Temporary,
		user: user, work: work,
		held:      heldAnswers{bytes: int64(max(cfg.Instances.Max, 1)) * cfg.Resources.MemoryBytes},
		instances: make(map[*instance]struct{}),
		lends:     cfg.Network.LendConnection && slices.Contains(e.cfg.LendConnections, tenant+"/"+plain),
		queue:     admission.NewQueue(e.cfg.Queue),
		use:       e.usage(cfg.Tenant),
	}
	if spec.Temporary {
		f.use = e.usage(temporaryName)
	}
	// A fork server would go on with the secrets that it has read.
	if cfg.Forks && f.loopbackOnly() && !spec.Trace && len(cfg.Secrets) == 0 {
		f.forks = newForker(f)
	}
	return f, nil
}

// number is its revision, as metrics and answers tell it.
func (f *function) number() string { return strconv.Itoa(f.revision) }

// measure begins the function's usual series. Whoever removes a function of its name drops
// them: it is to be called where nobody does, before the function is called.
func (f *function) measure() {
	f.warmed = f.e.metrics.start.WithLabelValues(f.name, string(StartWarm), f.number())
	f.succeeded = f.e.metrics.duration.WithLabelValues(f.name, outcome(nil), f.number())
}

// started notes a start and how long the event waited for it.
func (f *function) started(kind sandbox.StartKind, took time.Duration) {
	f.e.metrics.start.WithLabelValues(f.name, string(kind), f.number()).Observe(took.Seconds())
}

// loopbackOnly says whether the function has no network but its own loopback.
// Forks and runtime shells have no other: they joined theirs before.
func (f *function) loopbackOnly() bool {
	return f.config.Network.Mode == image.NetworkNone || f.config.Network.Mode == ""
}

// publish readies a function that is about to be found by its name.
func (f *function) publish() {
	if f.isPipeline() {
		return
	}
	if !f.loopbackOnly() || f.opens != nil {
		return
	}
	if f.shells = f.e.shells.use(f); f.shells == nil {
		return
	}
	if f.furniture = f.newFurniture(); f.furniture == nil {
		f.shells.leave()
		f.shells = nil
	}
}

// environment is what an instance that speaks the channel gets.
func (f *function) environment() []string {
	env := f.config.Env
	return append(env[:len(env):len(env)], "FRE_CHANNEL=3", "FRE_FILES="+answerFiles, fmt.Sprintf("FRE_KEPT_FILES=%d", channel.KeptFiles), fmt.Sprintf("FRE_CALLS=%d", channel.MostCalls), fmt.Sprintf("FRE_CONCURRENCY=%d", f.config.Instances.Concurrency))
}

// note writes a line of the engine's or of the handler's logger to the log.
func (f *function) note(line LogLine) {
	line.Time, line.Stream, line.Revision = time.Now(), "log", f.revision
	f.logs.append(line)
}

// channelLog takes what the handler of one instance logs.
func (f *function) channelLog(sandbox string) func(invocation, level, message string) {
	return func(invocation, level, message string) {
		f.note(LogLine{Sandbox: sandbox, Invocation: invocation, Level: level, Text: message})
	}
}

// spec is the sandbox of one instance; an *image.FieldError where its network is
// not to be had, which can change from one start to the next.
func (f *function) spec(id string) (sandbox.Spec, error) {
	if f.isPipeline() {
		return sandbox.Spec{}, nil // it starts none
	}
	spec := sandbox.Spec{
		ID:       id,
		Rootfs:   f.e.cfg.Store.Rootfs(f.image.Digest),
		Args:     f.config.Args,
		Env:      f.config.Env,
		Dir:      cmp.Or(f.dir, "/function"),
		Hostname: f.plain,
		User:     f.user,
		Limits:   limitsOf(f.config.Resources),

		Work: f.work, WorkMapped: f.e.mapErr == nil,

		Opens:     f.opens,
		ProcFiles: f.agent,                  // whose commands are a shell user's
		Repeats:   !f.agent && !f.temporary, // a shell would keep its /work, which is no other's, beyond its end
		// More CPUs than one would not be seen by a program that looks at its start.
		Pin: f.config.Resources.CPUMillis <= 1000,
	}
	if f.config.Network.LendConnection && !f.lends {
		return spec, &image.FieldError{
			Field:   "network.lend_connection",
			Message: fmt.Sprintf("%s/%s may not be lent connections on this engine: list it under network.lend_connections in its configuration (fre serve --config)", f.config.Tenant, f.plain),
		}
	}
	return spec, f.e.setNetwork(&spec, f.config.Network)
}

// count is what lists show of the revision that changes.
func (f *function) count() counters {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := counters{
		instances: len(f.instances), busy: f.busy, queued: len(f.waiters), fork: f.forks.describe(),
		invocations: f.invocations.Load(), failures: f.failures.Load(),
	}
	if f.shells != nil {
		now.shells = *f.shells.stats()
	}
	return now
}

// running returns the sandboxes of the instances whose start is over.
func (f *function) running() (boxes []*box) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for in := range f.instances {
		if in.state != StateStarting {
			boxes = append(boxes, in.box)
		}
	}
	return boxes
}

// counters are what changes of a function while it is deployed.
type counters struct {
	instances, busy, queued int
	fork                    string
	invocations, failures   uint64
	shells                  ShellStats
}

// retire takes the function out of service: waiting events get errRetired (their
// callers look the name up again), idle instances stop, busy ones stop when
// their last event ends.
func (f *function) retire() {
	f.mu.Lock()
	first := !f.retired
	f.retired = true
	if f.restTimer != nil {
		f.restTimer.Stop()
	}
	waiters := f.waiters
	f.waiters = nil
	idle := f.drainLocked()
	f.mu.Unlock()
	if first && f.shells != nil {
		f.shells.leave()
	}
	for _, w := range waiters {
		w.grant <- grant{err: errRetired}
	}
	f.tunnels.end()
	for _, in := range idle {
		in.stop()
	}
	f.forks.close()
}

// drainLocked has no instance take another event. The caller stops those that are idle,
// which count against no quota any more.
func (f *function) drainLocked() (idle []*instance) {
	for in := range f.instances {
		in.draining = true
		if in.state == StateIdle {
			idle = append(idle, in)
			f.releaseLocked(in)
		}
	}
	f.free = nil
	return idle
}

// warm starts instances until the template's minimum is there. A start that
// fails is tried again after a growing pause, for as long as the function is
// deployed.
func (f *function) warm() {
	if f.isPipeline() {
		return
	}
	if f.config.Instances.Min == 0 || f.config.Instances.Isolation != image.IsolationInstance {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.retired && !f.resting && len(f.instances) < f.config.Instances.Min && f.reserveLocked() == nil {
		f.startLocked()
	}
}

// rewarm calls warm after the back-off that the row of failures asks for.
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
	f.e.spawn(func() {
		t := time.NewTimer(pause)
		defer t.Stop()
		select {
		case <-t.C:
		case <-f.e.closed:
			return
		}
		f.mu.Lock()
		f.rewarming = false
		f.mu.Unlock()
		f.warm()
	})
}
