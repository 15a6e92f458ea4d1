package engine

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

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

// ref returns the name of the function's image as users see it.
func (p *program) ref() string { return p.template + ":" + p.version }

// number returns the revision's number as text, for metrics and answers.
func (p *program) number() string { return strconv.Itoa(p.revision) }

// loopbackOnly reports whether loopback is the function's only network. Forks and parked
// interpreters have loopback only: the network was joined before the function was known.
func (p *program) loopbackOnly() bool {
	return p.config.Network.Mode == template.NetworkNone || p.config.Network.Mode == ""
}

// isPipeline reports whether the function is only a sequence of functions.
func (p *program) isPipeline() bool { return p.config.Protocol == image.ProtocolPipeline }

func (p *program) fresh() bool {
	return p.config.Instances.Isolation == template.IsolationEvent
}

// capacity returns how many events the function may run at once.
func (p *program) capacity() int { return p.config.Instances.Max * p.config.Instances.Concurrency }

// environment returns the environment for an instance with a channel.
func (p *program) environment() []string {
	env := p.config.Env
	return append(env[:len(env):len(env)], "FRE_CHANNEL=3", "FRE_FILES="+answerFiles, fmt.Sprintf("FRE_KEPT_FILES=%d", channel.KeptFiles), fmt.Sprintf("FRE_CALLS=%d", channel.MostCalls), fmt.Sprintf("FRE_CONCURRENCY=%d", p.config.Instances.Concurrency))
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

// restMost bounds the rest of a revision without events.
const restMost = 5 * time.Minute

func (p *program) restFor() time.Duration {
	return min(max(p.config.Instances.Idle, time.Second), restMost)
}

func (p *program) front() Front {
	return Front{Tenant: p.config.Tenant, Access: p.config.Access, CORS: p.config.CORS}
}

// changed returns the change for a function's deployment or removal.
func (p *program) changed(a store.ChangeAction) store.Change {
	return store.Change{Kind: store.ChangeFunction, Action: a, ID: p.name, Name: p.name, Attributes: map[string]string{
		"image": p.ref(), "digest": string(p.image.Digest), "tenant": p.config.Tenant, "revision": p.number(),
	}}
}

// started records a start and how long the event waited for the start.
func (p *program) started(kind sandbox.StartKind, took time.Duration) {
	p.host.metrics.start.WithLabelValues(p.name, string(kind), p.number()).Observe(took.Seconds())
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

// logFailure writes an exception to the log of the function's owner.
func (p *program) logFailure(sandbox, invocation string, e *FunctionError) {
	p.note(live.LogLine{Sandbox: sandbox, Invocation: invocation, Level: "error", Text: strings.TrimRight(e.Error()+"\n"+e.Stack, "\n")})
}

// pipes makes the outputs of one of the function's sandboxes.
func (p *program) pipes(streams ...string) ([]live.Output, error) {
	return p.logs.Pipes(p.revision, streams...)
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

// newBox describes a sandbox of the function to lists. ask is as in box.
func (p *program) newBox(id string, state func() live.State, ask func() error) *live.Box {
	return &live.Box{
		ID: id, Function: p.name, Revision: p.revision, Image: p.ref(), Digest: p.image.Digest, Limits: live.LimitsOf(p.config.Resources),
		Tenant: p.config.Tenant, Command: p.config.Args, State: state, Ask: ask,
	}
}

// endTrace stops the trace of the function.
func (p *program) endTrace() error {
	if p.opens == nil {
		return nil
	}
	return p.opens.Close()
}
