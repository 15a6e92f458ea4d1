package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

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
// *sandbox.StartError for a command that cannot be executed, *QuotaError beyond the tenant's
// quotas.
func (e *Engine) Run(ctx context.Context, r RunRequest) (RunResult, error) {
	if err := e.life.Begin(); err != nil {
		return RunResult{}, err
	}
	defer e.life.Done()
	// A lease keeps the image until the live sandboxes show this one.
	release := e.cfg.Store.Hold()
	b, spec, err := e.runSpec(r)
	gone := func() {}
	if err == nil {
		gone, err = e.tenants.ReserveRun(b.Tenant, b.Limits)
	}
	if err != nil {
		release()
		return RunResult{}, err
	}
	defer gone()
	err = e.boxes.Start(ctx, b, spec)
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

func (e *Engine) runSpec(r RunRequest) (*live.Box, sandbox.Spec, error) {
	fail := func(err error) (*live.Box, sandbox.Spec, error) { return nil, sandbox.Spec{}, err }
	img, err := e.cfg.Store.Image(r.Image)
	if err != nil {
		return fail(err)
	}
	if !e.cfg.Store.Use(img.Digest) {
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
		return e.runContainerSpec(r, img)
	}
	user, work, err := e.tenants.Attach(r.Tenant)
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
		ID: live.NewID(), Rootfs: e.cfg.Store.Rootfs(img.Digest), Args: args, Dir: "/work",
		Env:  withLimits(lastOfEach(slices.Concat([]string{"PATH=" + searchPath, "HOME=/work"}, cfg.Env, r.Env)), res),
		User: user, Work: work, WorkMapped: e.tenants.MapErr == nil,
		Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Trace: r.Trace,
		Limits: live.LimitsOf(res),
	}
	if err := e.networks.Set(&spec, cfg.Network); err != nil {
		return fail(fmt.Errorf("run: %w", err))
	}
	b := &live.Box{ID: spec.ID, Image: img.Name + ":" + img.Version, Digest: img.Digest, Limits: spec.Limits, Tenant: r.Tenant, Command: spec.Args, State: func() State { return StateBusy }}
	return b, spec, nil
}

// runContainerSpec is runSpec for an ordinary image: a container without a record.
func (e *Engine) runContainerSpec(r RunRequest, img *store.Image) (*live.Box, sandbox.Spec, error) {
	fail := func(err error) (*live.Box, sandbox.Spec, error) { return nil, sandbox.Spec{}, err }
	cfg := ContainerConfig{Image: r.Image, Tenant: r.Tenant, Env: r.Env, Work: WorkWrite}
	if len(r.Args) > 0 {
		cfg.Cmd = r.Args
	}
	rec := Container{ID: live.NewID()}
	if err := e.completeContainer(&rec, img, cfg); err != nil {
		return fail(err)
	}
	spec, err := e.containerSpec(&rec)
	if err != nil {
		return fail(err)
	}
	spec.Scratch = &sandbox.Scratch{Bytes: spec.Limits.MemoryBytes / 2}
	spec.Stdin, spec.Stdout, spec.Stderr, spec.Trace = r.Stdin, r.Stdout, r.Stderr, r.Trace
	b := &live.Box{
		ID: rec.ID, Image: img.Name + ":" + img.Version, Digest: img.Digest, Limits: spec.Limits, Tenant: rec.Config.Tenant, Command: rec.Args,
		State: func() State { return StateBusy }, StopSignal: rec.Config.StopSignal,
	}
	return b, spec, nil
}

const searchPath = "/usr/local/bin:/usr/bin:/bin"

// Limits of a build step, cut to what the host can enforce. They are generous, so that resolvers
// and compilers run, but bounded, because packages run code of their own.
const (
	buildMemory  = 4 << 30
	buildTmp     = 2 << 30
	buildPids    = 1024
	buildFiles   = 16384
	buildTimeout = 15 * time.Minute
	buildTenant  = "_build"
)

// buildRunner is the daemon's image.Runner: each step runs in a sandbox, as an unprivileged user
// of the builder's own tenant.
type buildRunner struct{ e *Engine }

// Run runs one build step to its end.
func (r buildRunner) Run(ctx context.Context, c image.Command) error {
	ctx, cancel := context.WithTimeoutCause(ctx, buildTimeout, fmt.Errorf("%w: a step took more than %s", ErrBuildTime, buildTimeout))
	defer cancel()
	var written []string
	for _, b := range c.Binds {
		if b.Writable {
			written = append(written, b.Source)
		}
	}
	ctx, stop, err := leaveRoom(ctx, written...)
	if err != nil {
		return err
	}
	defer stop()
	limits, err := r.e.cfg.Sandboxes.CutLimits(sandbox.Limits{
		MemoryBytes: buildMemory, CPUMillis: int64(runtime.NumCPU()) * 1000, Pids: buildPids, TmpBytes: buildTmp, Files: buildFiles,
	})
	if err != nil {
		return err
	}
	tail := &tailWriter{max: 8 << 10}
	env := lastOfEach(slices.Concat([]string{"PATH=" + searchPath, "HOME=/tmp", "LANG=C.UTF-8"}, c.Env))
	var status sandbox.ExitStatus
	ran := false
	if p := r.e.interpreters.tool(&c, env, limits); p != nil {
		p.running.Add(1)
		defer p.running.Add(-1)
		status, ran, err = r.runParked(ctx, &c, p, limits, tail)
	}
	if !ran {
		status, err = r.runFresh(ctx, &c, env, limits, tail)
	}
	switch {
	case err != nil:
		return fmt.Errorf("run %s: %w", c.Args[0], err)
	case status.OOMKilled || status.Code != 0:
		return buildStepFailed(c.Args, status, tail.String())
	}
	return nil
}

// runFresh runs a program in a new sandbox of the builder's tenant to its end.
func (r buildRunner) runFresh(ctx context.Context, c *image.Command, env []string, limits sandbox.Limits, tail *tailWriter) (status sandbox.ExitStatus, err error) {
	user, err := r.e.tenants.User(buildTenant)
	if err != nil {
		return status, err
	}
	if err := ownBinds(c.Binds, int(user.HostBase+live.FunctionUID)); err != nil {
		return status, err
	}
	spec := sandbox.Spec{ID: live.NewID(), Rootfs: c.Rootfs, Args: c.Args, Env: env, Dir: c.Dir, User: user, Limits: limits}
	for _, b := range c.Binds {
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Source: b.Source, Target: b.Target, Writable: b.Writable})
	}
	if c.Network {
		spec.Network = sandbox.NetworkHost
		spec.Mounts = append(spec.Mounts, live.NetworkFiles(r.e.cfg.Builder.Settings)...)
	}
	out, err := collect(c.Stdout, tail)
	if err != nil {
		return status, err
	}
	defer out.wait()
	errs, err := collect(c.Stderr, tail)
	if err != nil {
		return status, err
	}
	defer errs.wait()
	spec.Stdout, spec.Stderr = out.w, errs.w
	return r.e.boxes.RunToEnd(ctx, r.newBox(spec.ID, c), spec)
}

func (buildRunner) newBox(id string, c *image.Command) *live.Box {
	return &live.Box{ID: id, Tenant: buildTenant, Image: "build", Command: c.Args, State: func() State { return StateBusy }}
}

// ownBinds gives the writable binds to the sandbox's user.
func ownBinds(binds []image.Bind, id int) error {
	for _, b := range binds {
		if b.Writable {
			if err := os.Lchown(b.Source, id, id); err != nil {
				return fmt.Errorf("bind %s: %w", b.Target, err)
			}
		}
	}
	return nil
}

// collector copies a pipe to a writer and to the tail that error messages quote.
type collector struct {
	w    *os.File
	done <-chan struct{}
}

func collect(to, tail io.Writer) (*collector, error) {
	r, w, err := live.OutputPipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	return &collector{w: w, done: follow(r, to, tail)}, nil
}

// follow copies r to tail and, unless nil, to the writer to. At the end of r it closes r and the
// returned channel.
func follow(r *os.File, to, tail io.Writer) <-chan struct{} {
	if to != nil {
		tail = io.MultiWriter(to, tail)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.Close()
		_, err := io.Copy(tail, r)
		if err != nil && !errors.Is(err, os.ErrClosed) {
			_, _ = io.Copy(io.Discard, r) // keep the program from blocking
		}
	}()
	return done
}

// wait closes the write end and waits until all output is copied.
func (c *collector) wait() {
	_ = c.w.Close()
	<-c.done
}

// tailWriter keeps the last max bytes that its writers wrote. It is safe for concurrent use.
type tailWriter struct {
	mu  sync.Mutex
	buf []byte
	max int
}

func (t *tailWriter) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.max; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tailWriter) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.ToValidUTF8(t.buf, []byte("?")))
}
