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
	"sync"
	"time"

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
