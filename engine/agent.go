package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

// An agent's sandbox is a function with one instance. No user deploys this function, and no
// event finds it by name. It runs FRE's own program in an image of the caller's choice and has
// its own /work. Commands and file accesses are events (function/adapter/agent.go),
// so all rules for functions apply without a second mechanism:
//
//	create ─▶ event, event, … ─▶ removed, idle for too long, too old, or the engine ended
//
// A snapshot, an image like any other, keeps the content of /work.

// ErrNoAgent reports an unknown agent's sandbox. It wraps fs.ErrNotExist.
var ErrNoAgent = failure.Wrap(failure.NotFound, fmt.Errorf("no such agent's sandbox: %w", fs.ErrNotExist), "the sandbox may have expired: list sandboxes with fre agent ls, or create one with fre agent create")

// Defaults and limits of agents' sandboxes.
const (
	agentMemory      = 512 << 20
	agentLeastMemory = 32 << 20
	agentCPU         = 1000
	agentPids        = 256
	agentTmp         = 64 << 20
	agentFiles       = 1024
	agentIdle        = 15 * time.Minute
	agentAge         = 8 * time.Hour
	agentMostAge     = 7 * 24 * time.Hour
	agentEvents      = 32 // at once; the program has its own limit of commands
	agentEventTime   = time.Hour + time.Minute
	agentsOfTenant   = 128
)

// AgentOptions configure an agent's sandbox. The zero value means the tenant "default" and the
// base "agent".
type AgentOptions struct {
	Tenant   string
	Image    string // name of a base, or an image; "agent" if empty
	Snapshot string // an image made by TakeSnapshot with the first content of /work

	MemoryBytes, CPUMillis, WorkBytes int64
	Network                           template.Network
	Idle                              time.Duration // lifetime after the last use
	Age                               time.Duration // lifetime after creation
	By                                string        // the creator, for the record
}

// Agent describes an agent's sandbox in lists. The caller owns it.
type Agent struct {
	ID        string
	Tenant    string
	Image     string // as named in AgentOptions
	Digest    store.Digest
	Snapshot  store.Digest // "" for none
	Network   template.Network
	Created   time.Time
	Used      time.Time
	Expires   time.Time // if the sandbox is not used before
	By        string
	Busy      int // events under way
	Running   bool
	OOMKills  int64 // processes killed since the program began because of the memory limit; 0 in lists
	Resources template.Resources
	WorkBytes int64 // limit of /work; 0: none
}

// Agents is the table of all agents' sandboxes, safe for use by several goroutines. See
// [Engine.Agents].
type Agents struct {
	e *Engine

	mu   sync.Mutex
	byID map[string]*agent
}

func newAgents(e *Engine) *Agents { return &Agents{e: e, byID: make(map[string]*agent)} }

type agent struct {
	f     *function
	shown Agent // the fields that never change

	idle, age time.Duration

	mu    sync.Mutex
	used  time.Time
	busy  int
	ended bool
	timer *time.Timer
}

func (o *AgentOptions) complete() error {
	o.Tenant, o.Image = cmp.Or(o.Tenant, template.DefaultTenant), cmp.Or(o.Image, "agent")
	o.MemoryBytes, o.CPUMillis = cmp.Or(o.MemoryBytes, agentMemory), cmp.Or(o.CPUMillis, agentCPU)
	o.Idle, o.Age = cmp.Or(o.Idle, agentIdle), cmp.Or(o.Age, agentAge)
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("agent's sandbox: %w", &template.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case !template.ValidName(o.Tenant):
		return bad("tenant", "%q is not a tenant's name", o.Tenant)
	case o.MemoryBytes < agentLeastMemory:
		return bad("memory_bytes", "must be at least %d", agentLeastMemory)
	case o.CPUMillis < 1:
		return bad("cpu_millis", "%d is not positive", o.CPUMillis)
	case o.WorkBytes < 0 || o.WorkBytes > 0 && o.WorkBytes < volume.MinBytes:
		return bad("work_bytes", "a limit is %d at least", int64(volume.MinBytes))
	case o.Idle < time.Second || o.Idle > agentMostAge:
		return bad("idle", "%s is not within 1s and %s", o.Idle, agentMostAge)
	case o.Age < time.Second || o.Age > agentMostAge:
		return bad("age", "%s is not within 1s and %s", o.Age, agentMostAge)
	case o.Network.Mode == template.NetworkHost, o.Network.LendConnection:
		return bad("network", "unknown mode for an agent's sandbox: write none or egress")
	}
	return nil
}

// Create makes a sandbox and returns once its program runs. Errors: *template.FieldError,
// *QuotaError, fs.ErrNotExist for an unknown image or snapshot, and those of Invoke.
func (t *Agents) Create(ctx context.Context, o AgentOptions) (*Agent, error) {
	if err := t.e.life.Begin(); err != nil {
		return nil, err
	}
	defer t.e.life.Done()
	if err := o.complete(); err != nil {
		return nil, err
	}
	defer t.e.cfg.Store.Hold()()
	img, err := t.image(ctx, &o)
	if err != nil {
		return nil, err
	}
	var snapshot *store.Image
	if o.Snapshot != "" {
		if snapshot, err = t.Snapshot(o.Snapshot); err == nil {
			if of, _ := image.IsSnapshot(snapshot); of != o.Tenant || !t.e.cfg.Store.Use(snapshot.Digest) {
				err = fmt.Errorf("snapshot %s: %w", o.Snapshot, fs.ErrNotExist)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	a, err := t.enter(&o, img, snapshot)
	if err != nil {
		return nil, err
	}
	if err := t.start(ctx, a, snapshot); err != nil {
		return nil, errors.Join(err, t.end(a))
	}
	a.mu.Lock()
	a.used, a.timer = time.Now(), time.AfterFunc(min(a.idle, a.age), func() { t.expire(a) })
	a.mu.Unlock()
	return a.describe(), nil
}

// image returns the requested image with the agent's program added.
func (t *Agents) image(ctx context.Context, o *AgentOptions) (*store.Image, error) {
	b := t.e.cfg.Builder
	base := slices.ContainsFunc(b.Bases, func(b image.Base) bool { return b.Name == o.Image })
	var of *store.Image
	var err error
	if base {
		of, err = t.e.Base(ctx, o.Image, func(image.Progress) {})
	} else if of, err = t.e.cfg.Store.Image(o.Image); err == nil && !agentMayHave(of, o.Tenant) {
		err = fmt.Errorf("image %s: %w", o.Image, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	img, err := b.Agent(ctx, of)
	if err == nil && !t.e.cfg.Store.Use(img.Digest) {
		err = fmt.Errorf("image %s is being removed: %w", o.Image, fs.ErrNotExist)
	}
	return img, err
}

// agentMayHave reports whether an image belongs to the tenant or to no tenant. Images of
// KindTools name no tenant, yet may hold a tenant's files: agents' own images do.
func agentMayHave(img *store.Image, tenant string) bool {
	cfg, err := image.ConfigOf(img)
	of := build.ImageTenant(img)
	return err == nil && cfg.Labels[image.LabelKind] != image.KindTools && (of == "" || of == tenant)
}

// enter adds a sandbox to the table and counts its share of the tenant's quota of bytes.
func (t *Agents) enter(o *AgentOptions, img, snapshot *store.Image) (*agent, error) {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // it never fails
	now := time.Now()
	a := &agent{idle: o.Idle, age: o.Age, used: now, shown: Agent{
		ID: "agent-" + hex.EncodeToString(random), Tenant: o.Tenant, Image: o.Image, Digest: img.Digest, Network: o.Network, Created: now.UTC(), By: o.By,
		Resources: template.Resources{MemoryBytes: o.MemoryBytes, CPUMillis: o.CPUMillis, Pids: agentPids, TmpBytes: agentTmp, Files: agentFiles, Timeout: agentEventTime},
		WorkBytes: cmp.Or(o.WorkBytes, t.e.cfg.Work.Of(o.Tenant)),
	}}
	if snapshot != nil {
		a.shown.Snapshot = snapshot.Digest
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var count, taken int64
	for _, other := range t.byID {
		if other.shown.Tenant == o.Tenant {
			count++
			taken += other.shown.WorkBytes
		}
	}
	if count >= agentsOfTenant {
		return nil, &live.QuotaError{Tenant: o.Tenant, What: "agents' sandboxes", Limit: agentsOfTenant}
	}
	if most := t.e.tenants.Quotas(o.Tenant).WorkBytes; most > 0 {
		if o.WorkBytes == 0 { // a quarter, so that several sandboxes fit
			a.shown.WorkBytes = max(most/4, volume.MinBytes)
		}
		if taken+a.shown.WorkBytes > most {
			return nil, &live.QuotaError{Tenant: o.Tenant, What: "bytes in /work of agents' sandboxes", Limit: most}
		}
	}
	if snapshot != nil && a.shown.WorkBytes > 0 && snapshot.Size > a.shown.WorkBytes { // the file system enforces no quota on restore
		return nil, fmt.Errorf("agent's sandbox: %w", &template.FieldError{Field: "work_bytes", Message: fmt.Sprintf("the snapshot's files have %d bytes, and /work has a limit of %d", snapshot.Size, a.shown.WorkBytes)})
	}
	if a.shown.WorkBytes > 0 {
		if err := t.e.volumes.CanLimit(); err != nil {
			return nil, fmt.Errorf("agent's sandbox: %w", &template.FieldError{Field: "work_bytes", Message: err.Error()})
		}
	}
	t.byID[a.shown.ID] = a
	return a, nil
}

// start makes the files of an entered sandbox and starts its program.
func (t *Agents) start(ctx context.Context, a *agent, snapshot *store.Image) error {
	s := &a.shown
	img, err := t.e.cfg.Store.Image(string(s.Digest))
	if err != nil {
		return err
	}
	env, err := image.AgentEnv(img)
	if err != nil {
		return err
	}
	if err := live.CheckLimits(t.e.cfg.Sandboxes, s.Resources); err != nil {
		return fmt.Errorf("agent's sandbox: %w", err)
	}
	user, err := t.e.tenants.User(s.Tenant)
	if err != nil {
		return err
	}
	id := int(user.HostBase + live.FunctionUID)
	if t.e.tenants.MapErr == nil {
		id = live.FunctionUID
	}
	work, err := t.e.tenants.AttachOther(s.ID, s.WorkBytes, id)
	if err != nil {
		return err
	}
	if snapshot != nil {
		if err := t.restore(ctx, work, snapshot, id); err != nil {
			return err
		}
	}
	f := &function{
		program: program{
			host: t.e.host, name: template.QualifiedName(s.ID, s.Tenant), plain: s.ID, revision: 1, template: img.Name, version: img.Version, image: img, deployed: s.Created, agent: true,
			config: image.Config{
				Base: s.Image, Args: image.AgentCommand(), Env: live.WithLimits(env, s.Resources), Protocol: image.ProtocolChannel, Tenant: s.Tenant,
				Instances: template.Instances{Isolation: template.IsolationInstance, Concurrency: agentEvents, Max: 1, Idle: 2 * agentMostAge},
				Resources: s.Resources, Network: s.Network,
			},
			dir: "/work", user: user, work: work,
			held: heldAnswers{bytes: s.Resources.MemoryBytes},
		},
		instances: make(map[*instance]struct{}),
		queue:     admission.NewQueue(t.e.cfg.Queue),
		use:       t.e.tenants.Share(s.Tenant),
	}
	if _, err := f.spec(""); err != nil {
		return fmt.Errorf("agent's sandbox: %w", err)
	}
	logs := filepath.Join(filepath.Dir(t.e.tenants.WorkPath(filepath.Join(temporaryName, s.ID))), "log")
	if f.logs, err = live.OpenLog(logs, f.name, t.e.cfg.LogBytes, 1); err != nil {
		return err
	}
	f.measure()
	t.mu.Lock()
	a.f = f
	t.mu.Unlock()
	l, err := f.lease(ctx, anyInstance)
	if errors.Is(err, errRetired) { // removed meanwhile
		return fmt.Errorf("%q: %w", s.ID, ErrNoAgent)
	}
	if err != nil {
		return err
	}
	l.in.release(0)
	return nil
}

// end removes a sandbox with all its files. Several calls are allowed.
func (t *Agents) end(a *agent) error {
	a.mu.Lock()
	first := !a.ended
	a.ended = true
	if a.timer != nil {
		a.timer.Stop()
	}
	a.mu.Unlock()
	if !first {
		return nil
	}
	if f := a.f; f != nil {
		f.retire()
		for _, b := range t.e.boxes.All() {
			if b.Function == f.name {
				b.Kill()
				<-b.Gone()
			}
		}
		f.logs.Close()
		t.e.metrics.forget(f.name, 0)
	}
	err := t.e.removeTemporary(a.shown.ID)
	t.mu.Lock()
	delete(t.byID, a.shown.ID) // last: the sandbox's bytes count until then
	t.mu.Unlock()
	return err
}

// expire ends a sandbox after its lifetime, or sets the timer again.
func (t *Agents) expire(a *agent) {
	if t.e.life.Begin() != nil {
		return
	}
	defer t.e.life.Done()
	a.mu.Lock()
	left := time.Until(a.expiresLocked())
	if left > 0 && !a.ended {
		a.timer.Reset(left)
	}
	a.mu.Unlock()
	if left > 0 {
		return
	}
	if err := t.end(a); err != nil {
		t.e.log.Error("agent's sandbox not removed", "sandbox", a.shown.ID, "error", err)
	}
}

// expiresLocked returns when the sandbox ends without further use. An event under way is a use.
func (a *agent) expiresLocked() time.Time {
	used := a.used
	if a.busy > 0 {
		used = time.Now()
	}
	idle, old := used.Add(a.idle), a.shown.Created.Add(a.age)
	if old.Before(idle) {
		return old
	}
	return idle
}

func (a *agent) describe() *Agent {
	out := a.shown
	a.mu.Lock()
	out.Used, out.Expires, out.Busy = a.used.UTC(), a.expiresLocked().UTC(), a.busy
	a.mu.Unlock()
	if a.f != nil {
		out.Running = a.f.count().instances > 0
	}
	return &out
}

// find returns a started sandbox, or ErrNoAgent.
func (t *Agents) find(id string) (*agent, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.byID[id]
	if a == nil || a.f == nil {
		return nil, fmt.Errorf("%q: %w", id, ErrNoAgent)
	}
	return a, nil
}

func (t *Agents) all() []*agent {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*agent
	for _, a := range t.byID {
		if a.f != nil {
			out = append(out, a)
		}
	}
	return out
}

// List lists the agents' sandboxes, oldest first.
func (t *Agents) List() []*Agent {
	var out []*Agent
	for _, a := range t.all() {
		out = append(out, a.describe())
	}
	slices.SortFunc(out, func(a, b *Agent) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	return out
}

// Get describes a sandbox. Error: ErrNoAgent for an unknown id.
func (t *Agents) Get(id string) (*Agent, error) {
	a, err := t.find(id)
	if err != nil {
		return nil, err
	}
	out := a.describe()
	for _, box := range a.f.running() { // at most one
		if stats, err := box.Sandbox().Stats(); err == nil { // otherwise the sandbox has ended
			out.OOMKills += stats.OOMKills
		}
	}
	return out, nil
}

// Remove kills the processes of a sandbox and removes the sandbox with its /work.
func (t *Agents) Remove(id string) error {
	if err := t.e.life.Begin(); err != nil {
		return err
	}
	defer t.e.life.Done()
	a, err := t.find(id)
	if err != nil {
		return err
	}
	return t.end(a)
}

// Invoke hands an event to a sandbox's program. Errors: as of Invoke, and ErrNoAgent.
func (t *Agents) Invoke(ctx context.Context, id string, r *Request) (*Response, error) {
	if err := t.e.life.Begin(); err != nil {
		return nil, err
	}
	a, err := t.find(id)
	if err == nil && !a.enter() {
		err = fmt.Errorf("%q: %w", id, ErrNoAgent)
	}
	if err != nil {
		t.e.life.Done()
		return nil, err
	}
	ev := newEvent(t.e, a.f, invocationName(t.e.nextID.Add(1)), r)
	resp, err := ev.invoke(ctx, r)
	if err != nil {
		if a.leave() || errors.Is(err, errRetired) { // removed meanwhile
			err = fmt.Errorf("%q: %w", id, ErrNoAgent)
		}
		t.e.life.Done()
		return nil, ev.failed(err)
	}
	resp.Body = &agentBody{ReadCloser: resp.Body, a: a}
	return resp, nil
}

// agentBody is an answer. Its Close ends the use that Invoke began.
type agentBody struct {
	io.ReadCloser
	a    *agent
	once sync.Once
}

func (b *agentBody) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(func() { b.a.leave() })
	return err
}

func (a *agent) enter() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return false
	}
	a.busy++
	return true
}

// leave undoes enter and reports whether the sandbox has ended.
func (a *agent) leave() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy--
	a.used = time.Now()
	if a.ended {
		a.f.host.metrics.forget(a.f.name, 0) // end forgot the metrics before this event was counted
	}
	return a.ended
}

// close closes logs and timers at the engine's end. The next start removes the
// directories, as after a crash.
func (t *Agents) close() {
	for _, a := range t.all() {
		a.f.logs.Close()
		a.mu.Lock()
		if a.timer != nil {
			a.timer.Stop()
		}
		a.mu.Unlock()
	}
}
