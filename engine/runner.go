package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
)

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
type buildRunner struct {
	host         *host
	interpreters *interpreters // parked tools
}

// Run runs one build step to its end.
func (r buildRunner) Run(ctx context.Context, c image.Command) error {
	ctx, cancel := context.WithTimeoutCause(ctx, buildTimeout, fmt.Errorf("%w: a step took more than %s", build.ErrBuildTime, buildTimeout))
	defer cancel()
	var written []string
	for _, b := range c.Binds {
		if b.Writable {
			written = append(written, b.Source)
		}
	}
	ctx, stop, err := build.LeaveRoomIn(ctx, written...)
	if err != nil {
		return err
	}
	defer stop()
	limits, err := r.host.cfg.Sandboxes.CutLimits(sandbox.Limits{
		MemoryBytes: buildMemory, CPUMillis: int64(runtime.NumCPU()) * 1000, Pids: buildPids, TmpBytes: buildTmp, Files: buildFiles,
	})
	if err != nil {
		return err
	}
	tail := &tailWriter{max: 8 << 10}
	env := live.LastOfEach(slices.Concat([]string{"PATH=" + live.SearchPath, "HOME=/tmp", "LANG=C.UTF-8"}, c.Env))
	var status sandbox.ExitStatus
	ran := false
	if p := r.interpreters.tool(&c, env, limits); p != nil {
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
	user, err := r.host.tenants.User(buildTenant)
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
		spec.Mounts = append(spec.Mounts, live.NetworkFiles(r.host.cfg.Builder.Settings)...)
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
	return r.host.boxes.RunToEnd(ctx, r.newBox(spec.ID, c), spec)
}

// runParked runs c by a parked tool of p. ran is false if none could be used; then nothing has
// happened.
func (r buildRunner) runParked(ctx context.Context, c *image.Command, p *interpreterPool, limits sandbox.Limits, tail *tailWriter) (status sandbox.ExitStatus, ran bool, err error) {
	f := sandbox.Furnishing{Limits: limits}
	for _, b := range c.Binds {
		if b.Writable {
			f.Mounts = append(f.Mounts, sandbox.Mount{Source: b.Source, Target: b.Target, Writable: true, Mapped: true})
		}
	}
	for pi := p.takeReady(); pi != nil; pi = p.takeReady() {
		err := ownBinds(c.Binds, live.FunctionUID)
		if err == nil {
			err = pi.sb.Furnish(f)
		}
		if errors.Is(err, os.ErrProcessDone) {
			r.interpreters.died.Add(1)
			pi.drop()
			continue
		}
		if err != nil {
			pi.drop()
			r.host.log.WarnContext(ctx, "parked program not usable: the build step starts its own", "program", c.Args[0], "error", err)
			return sandbox.ExitStatus{}, false, nil
		}
		status, err := r.finish(ctx, c, pi, tail)
		return status, true, err
	}
	return sandbox.ExitStatus{}, false, nil
}

// finish runs a furnished tool to its end.
func (r buildRunner) finish(ctx context.Context, c *image.Command, pi *interpreter, tail *tailWriter) (sandbox.ExitStatus, error) {
	defer func() { _ = pi.conn.Close() }()
	out, errs := follow(pi.stdout, c.Stdout, tail), follow(pi.stderr, c.Stderr, tail)
	b := r.newBox(pi.id, c)
	r.host.boxes.Adopt(b, pi.sb)
	loadErr := pi.conn.Load(ctx, &channel.Load{Handler: c.Args[len(c.Args)-1], Dir: c.Dir})
	if loadErr != nil {
		b.Kill()
	}
	status, err := b.WaitEnd(ctx)
	<-out
	<-errs
	return status, errors.Join(err, loadErr)
}

func (buildRunner) newBox(id string, c *image.Command) *live.Box {
	return &live.Box{ID: id, Tenant: buildTenant, Image: "build", Command: c.Args, State: func() live.State { return live.StateBusy }}
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

// buildStepFailed returns the error of a build step. The error names the limit that ended the
// step: no key of a template raises the limits of build steps.
func buildStepFailed(args []string, s sandbox.ExitStatus, output string) *image.ExitError {
	switch {
	case s.OOMKilled:
		output = fmt.Sprintf("out of memory: a build step has at most %d GiB: use less memory, for example fewer parallel jobs\n%s", int64(buildMemory)>>30, output)
	case strings.Contains(output, "No space left on device"), strings.Contains(output, "ENOSPC"):
		output += fmt.Sprintf("\n/tmp of a build step holds at most %d GiB: write to the step's working directory", int64(buildTmp)>>30)
	}
	return &image.ExitError{Args: args, Status: s.Code, Output: output}
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
