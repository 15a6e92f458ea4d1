package container

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// RunRequest is one command in a sandbox of its own, with the tenant's /work. An ordinary image
// runs the command as the image says, on a scratch layer in memory. The sandbox counts against
// the tenant's quotas as a container does.
type RunRequest struct {
	Image                 string // reference
	Args                  []string
	Env                   []string
	Tenant                string   // "default" if empty
	Trace                 bool     // note when each step of the start was done
	Stdin, Stdout, Stderr *os.File // the caller keeps and closes them
}

// RunResult says how a command started and how it ended.
type RunResult struct {
	sandbox.ExitStatus
	Start sandbox.StartKind
	Trace []sandbox.TraceStep // if RunRequest.Trace was set
}

// Run runs a command and returns how it ended. When ctx ends, Run kills the sandbox. Errors:
// *sandbox.StartError for a command that cannot be executed, *live.QuotaError beyond the tenant's
// quotas.
func (m *Manager) Run(ctx context.Context, r RunRequest) (RunResult, error) {
	if err := m.life.Begin(); err != nil {
		return RunResult{}, err
	}
	defer m.life.Done()
	// A lease keeps the image until the live sandboxes show this one.
	release := m.store.Hold()
	b, spec, err := m.runSpec(r)
	gone := func() {}
	if err == nil {
		gone, err = m.tenants.ReserveRun(b.Tenant, b.Limits)
	}
	if err != nil {
		release()
		return RunResult{}, err
	}
	defer gone()
	err = m.boxes.Start(ctx, b, spec)
	release()
	if err != nil {
		return RunResult{}, err
	}
	status, err := b.WaitEnd(ctx)
	if err != nil {
		return RunResult{}, err
	}
	return RunResult{status, b.Sandbox().Kind(), b.Sandbox().Trace()}, nil
}

func (m *Manager) runSpec(r RunRequest) (*live.Box, sandbox.Spec, error) {
	fail := func(err error) (*live.Box, sandbox.Spec, error) { return nil, sandbox.Spec{}, err }
	img, err := m.store.Image(r.Image)
	if err != nil {
		return fail(err)
	}
	if !m.store.Use(img.Digest) {
		return fail(fmt.Errorf("image %q is being removed: %w", r.Image, fs.ErrNotExist))
	}
	cfg, err := image.ConfigOf(img)
	if err != nil {
		return fail(err)
	}
	if r.Tenant == "" {
		r.Tenant = template.DefaultTenant
	}
	if !template.ValidName(r.Tenant) { // names a directory; the builder's tenant is no valid name either
		return fail(fmt.Errorf("run: %w", &template.FieldError{Field: "tenant", Message: fmt.Sprintf("%q is not a tenant's name", r.Tenant)}))
	}
	if cfg.Container != nil {
		return m.runContainerSpec(r, img)
	}
	user, work, err := m.tenants.Attach(r.Tenant)
	if err != nil {
		return fail(err)
	}
	args := r.Args
	if len(args) == 0 {
		args = cfg.Args
	}
	if len(args) == 0 || args[0] == "" {
		return fail(fmt.Errorf("run: %w", &template.FieldError{Field: "command", Message: "the image has no default command: name a command"}))
	}
	res := cfg.Resources
	spec := sandbox.Spec{
		ID: live.NewID(), Rootfs: m.store.Rootfs(img.Digest), Args: args, Dir: "/work",
		Env:  live.WithLimits(live.LastOfEach(slices.Concat([]string{"PATH=" + live.SearchPath, "HOME=/work"}, cfg.Env, r.Env)), res),
		User: user, Work: work, WorkMapped: m.tenants.MapErr == nil,
		Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Trace: r.Trace,
		Limits: live.LimitsOf(res),
	}
	if err := m.networks.Set(&spec, cfg.Network); err != nil {
		return fail(fmt.Errorf("run: %w", err))
	}
	b := &live.Box{ID: spec.ID, Image: img.Name + ":" + img.Version, Digest: img.Digest, Limits: spec.Limits, Tenant: r.Tenant, Command: spec.Args, State: func() live.State { return live.StateBusy }}
	return b, spec, nil
}

// runContainerSpec is runSpec for an ordinary image: a container without a record.
func (m *Manager) runContainerSpec(r RunRequest, img *store.Image) (*live.Box, sandbox.Spec, error) {
	fail := func(err error) (*live.Box, sandbox.Spec, error) { return nil, sandbox.Spec{}, err }
	cfg := Config{Image: r.Image, Tenant: r.Tenant, Env: r.Env, Work: WorkWrite}
	if len(r.Args) > 0 {
		cfg.Cmd = r.Args
	}
	rec := Container{ID: live.NewID()}
	if err := m.completeContainer(&rec, img, cfg); err != nil {
		return fail(err)
	}
	spec, err := m.containerSpec(&rec)
	if err != nil {
		return fail(err)
	}
	spec.Scratch = &sandbox.Scratch{Bytes: spec.Limits.MemoryBytes / 2}
	spec.Stdin, spec.Stdout, spec.Stderr, spec.Trace = r.Stdin, r.Stdout, r.Stderr, r.Trace
	b := &live.Box{
		ID: rec.ID, Image: img.Name + ":" + img.Version, Digest: img.Digest, Limits: spec.Limits, Tenant: rec.Config.Tenant, Command: rec.Args,
		State: func() live.State { return live.StateBusy }, StopSignal: rec.Config.StopSignal,
	}
	return b, spec, nil
}
