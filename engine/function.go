package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// program is what the sandboxes of one revision run: an image with its configuration, for one user
// of one tenant. It does not change once its function can be found by name.
type program struct {
	host     *host
	name     string // qualified: NAME.TENANT, or NAME in the tenant "default"
	plain    string // NAME, the name that the function itself sees
	revision int
	template string // id of the template
	version  string
	image    *store.Image
	config   image.Config // Tenant is the function's tenant, also if the image's differs
	deployed time.Time

	temporary bool // see DeployOptions
	agent     bool // an agent's sandbox: its programs can call no function
	lends     bool // may get its clients' connections

	opens *sandbox.Opens // records opened files of the root; nil: no trace

	user sandbox.User
	work string    // host directory of the tenant's /work
	dir  string    // working directory of the program; "" for /function
	logs *live.Log // all revisions of a name share it

	held    heldAnswers
	waiting atomic.Int64 // bytes of the engine's buffers with waiting answers
}

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

// ref returns the name of the function's image as users see it.
func (p *program) ref() string { return p.template + ":" + p.version }

// newRevision makes a revision from its record and image. It starts nothing; the caller sets
// logs. Error: fs.ErrNotExist if the image is missing.
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
	plain, tenant, err := template.SplitName(name)
	if err != nil {
		return nil, err
	}
	if spec.Tenant == "" && cfg.Tenant != tenant {
		return nil, fmt.Errorf("function %s of tenant %s: another function has the full name: deploy the function again", name, cfg.Tenant) // qualifyNames found no free name
	}
	cfg.Tenant = tenant
	if cfg.Protocol != image.ProtocolPipeline {
		cfg.Env = withName(live.WithLimits(cfg.Env, cfg.Resources), cfg.Contract, plain)
	}
	var user sandbox.User
	var work string
	if spec.Temporary {
		user, work, err = e.temporaryTenant(name)
	} else {
		user, work, err = e.tenants.Attach(cfg.Tenant)
	}
	if err != nil {
		return nil, err
	}
	f := &function{
		program: program{
			host: e.host, name: name, plain: plain, revision: r.Number, template: r.Template, version: r.Version, image: img, config: cfg, deployed: r.Deployed, temporary: spec.Temporary,
			user: user, work: work,
			lends: cfg.Network.LendConnection && slices.Contains(e.cfg.LendConnections, tenant+"/"+plain),
			held:  heldAnswers{bytes: int64(max(cfg.Instances.Max, 1)) * cfg.Resources.MemoryBytes},
		},
		instances: make(map[*instance]struct{}),
		queue:     admission.NewQueue(e.cfg.Queue),
		use:       e.tenants.Share(cfg.Tenant),
	}
	if spec.Temporary {
		f.use = e.tenants.Share(temporaryName)
	}
	// A fork server would keep old values of secrets.
	if cfg.Forks && f.loopbackOnly() && !spec.Trace && len(cfg.Secrets) == 0 {
		f.forks = newForker(&f.program)
	}
	return f, nil
}

// number returns the revision's number as text, for metrics and answers.
func (p *program) number() string { return strconv.Itoa(p.revision) }

// measure creates the function's usual metric series. The removal of a function by this name
// drops the series: call measure before the first event, and not during a removal.
func (f *function) measure() {
	f.warmed = f.host.metrics.start.WithLabelValues(f.name, string(StartWarm), f.number())
	f.succeeded = f.host.metrics.duration.WithLabelValues(f.name, outcome(nil), f.number())
}

// started records a start and how long the event waited for the start.
func (p *program) started(kind sandbox.StartKind, took time.Duration) {
	p.host.metrics.start.WithLabelValues(p.name, string(kind), p.number()).Observe(took.Seconds())
}

// loopbackOnly reports whether loopback is the function's only network. Forks and parked
// interpreters have loopback only: the network was joined before the function was known.
func (p *program) loopbackOnly() bool {
	return p.config.Network.Mode == template.NetworkNone || p.config.Network.Mode == ""
}

// prepare makes a function ready just before lookups by name find the function.
func (e *Engine) prepare(f *function) {
	if f.isPipeline() {
		return
	}
	if !f.loopbackOnly() || f.opens != nil {
		return
	}
	if f.interpreters = e.interpreters.use(&f.program); f.interpreters == nil {
		return
	}
	if f.furniture = f.newFurniture(); f.furniture == nil {
		f.interpreters.leave()
		f.interpreters = nil
	}
}

// environment returns the environment for an instance with a channel.
func (p *program) environment() []string {
	env := p.config.Env
	return append(env[:len(env):len(env)], "FRE_CHANNEL=3", "FRE_FILES="+answerFiles, fmt.Sprintf("FRE_KEPT_FILES=%d", channel.KeptFiles), fmt.Sprintf("FRE_CALLS=%d", channel.MostCalls), fmt.Sprintf("FRE_CONCURRENCY=%d", p.config.Instances.Concurrency))
}

// note writes a line of the engine or of the handler's logger to the log.
func (p *program) note(line live.LogLine) {
	line.Time, line.Stream, line.Revision = time.Now(), "log", p.revision
	p.logs.Append(line)
}

// channelLog returns a receiver for the log lines of one instance's handler.
func (p *program) channelLog(sandbox string) func(invocation, level, message string) {
	return func(invocation, level, message string) {
		p.note(live.LogLine{Sandbox: sandbox, Invocation: invocation, Level: level, Text: message})
	}
}

// spec returns the Spec for an instance's sandbox. Error: a *template.FieldError while the network
// is unavailable. The network's state may change between starts.
func (p *program) spec(id string) (sandbox.Spec, error) {
	if p.isPipeline() {
		return sandbox.Spec{}, nil // a pipeline starts no sandbox
	}
	spec := sandbox.Spec{
		ID:       id,
		Rootfs:   p.host.cfg.Store.Rootfs(p.image.Digest),
		Args:     p.config.Args,
		Env:      p.config.Env,
		Dir:      cmp.Or(p.dir, "/function"),
		Hostname: p.plain,
		User:     p.user,
		Limits:   live.LimitsOf(p.config.Resources),

		Work: p.work, WorkMapped: p.host.tenants.MapErr == nil,

		Opens:     p.opens,
		ProcFiles: p.agent,                  // a user of a command line expects these files
		Repeats:   !p.agent && !p.temporary, // a parked sandbox would hold the private /work after the function's end
		// Pin hides all CPUs but one. A program with a larger limit counts CPUs at its start.
		Pin: p.config.Resources.CPUMillis <= 1000,
	}
	if p.config.Network.LendConnection && !p.lends {
		return spec, &template.FieldError{
			Field:   "network.lend_connection",
			Message: fmt.Sprintf("%s/%s may not use lent connections: list the function under network.lend_connections in the engine's configuration (fre serve --config)", p.config.Tenant, p.plain),
		}
	}
	return spec, p.host.networks.Set(&spec, p.config.Network)
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
		if in.state != live.StateStarting {
			boxes = append(boxes, in.box)
		}
	}
	return boxes
}

// counters are the values of a deployed function that change.
type counters struct {
	instances, busy, queued int
	fork                    string
	invocations, failures   uint64
	interpreters            InterpreterStats
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
		in.draining = true
		if in.state == live.StateIdle {
			idle = append(idle, in)
			f.releaseLocked(in)
		}
	}
	f.free = nil
	return idle
}

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

// withName puts the function's name into the variables of AWS Lambda that hold a name
// (docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html). An image of the contract
// lambda has the template's id there, because a build does not know the name.
func withName(env []string, c template.Contract, name string) []string {
	if c != template.ContractLambda {
		return env
	}
	env = slices.Clone(env)
	for _, v := range []struct{ name, value string }{
		{"AWS_LAMBDA_FUNCTION_NAME", name},
		{"AWS_LAMBDA_LOG_GROUP_NAME", "/aws/lambda/" + name},
	} {
		// The runtime's variables come before the template's, which stay.
		if i := slices.IndexFunc(env, func(s string) bool { return strings.HasPrefix(s, v.name+"=") }); i >= 0 {
			env[i] = v.name + "=" + v.value
		}
	}
	return env
}
