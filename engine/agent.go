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
	"sync"
	"time"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

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
	img, err := t.agentImage(ctx, &o)
	if err != nil {
		return nil, err
	}
	snapshot, err := t.firstContent(&o)
	if err != nil {
		return nil, err
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

// firstContent returns the requested snapshot, or nil for an empty /work.
func (t *Agents) firstContent(o *AgentOptions) (*store.Image, error) {
	if o.Snapshot == "" {
		return nil, nil
	}
	snapshot, err := t.Snapshot(o.Snapshot)
	if err != nil {
		return nil, err
	}
	if of, _ := image.IsSnapshot(snapshot); of != o.Tenant || !t.e.cfg.Store.Use(snapshot.Digest) {
		return nil, fmt.Errorf("snapshot %s: %w", o.Snapshot, fs.ErrNotExist)
	}
	return snapshot, nil
}

// agentImage returns the requested image with the agent's program added.
func (t *Agents) agentImage(ctx context.Context, o *AgentOptions) (*store.Image, error) {
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
