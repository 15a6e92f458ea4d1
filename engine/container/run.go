package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

// outputGrace limits how long the end of a run waits until attached clients have read the last
// output.
const outputGrace = 2 * time.Second

// StartContainer starts a stopped container on the scratch layer of its last run. Errors: those
// of Container, ErrContainerRunning, a *live.QuotaError if the tenant's quotas have no room, a
// *sandbox.StartError if the program cannot be executed.
func (m *Manager) StartContainer(ctx context.Context, ref string) error {
	if err := m.life.Begin(); err != nil {
		return err
	}
	defer m.life.Done()
	c, err := m.containers.find(ref)
	if err != nil {
		return err
	}
	c.op.Lock()
	defer c.op.Unlock()
	c.mu.Lock()
	running, removed := c.box != nil, c.removed
	c.mu.Unlock()
	switch {
	case removed:
		return fmt.Errorf("container %q: %w", ref, fs.ErrNotExist)
	case running:
		return fmt.Errorf("start container %s: %w", ref, ErrContainerRunning)
	}
	if err := c.start(ctx); err != nil {
		return fmt.Errorf("start container %s: %w", c.describe().Config.Name, c.notStarted(err))
	}
	return nil
}

// notStarted records why a start failed and returns err. It ends the streams of the clients that
// attached for this run.
func (c *container) notStarted(err error) error {
	code := 128
	var start *sandbox.StartError
	if errors.As(err, &start) && start.Step == sandbox.StepExec {
		code = 126
		if errors.Is(err, fs.ErrNotExist) {
			code = 127
		}
	}
	exit := &sandbox.ExitStatus{Code: code}
	saveErr := c.update(func(rec *Container) {
		rec.Error, rec.Exit = err.Error(), exit
	}, func() {
		c.row.Change(func(s *live.Sandbox) {
			if s.State == live.StateExited {
				s.Exit = exit
			}
		})
		c.streams.end()
		c.streams = newStreams(c.m.life.Context())
		c.runs++
	})
	if c.describe().Config.AutoRemove {
		return errors.Join(err, c.m.dropContainer(c))
	}
	return errors.Join(err, saveErr)
}

// start makes the sandbox. The caller holds op.
func (c *container) start(ctx context.Context) (err error) {
	m, rec := c.m, c.describe()
	var undo []func()
	defer func() {
		for i := len(undo) - 1; i >= 0 && err != nil; i-- {
			undo[i]()
		}
	}()
	release, err := m.tenants.ReserveRun(rec.Config.Tenant, rec.Config.Limits)
	if err != nil {
		return err
	}
	undo = append(undo, release)
	spec, err := m.containerSpec(rec)
	if err != nil {
		return err
	}
	scratch, err := m.attachScratch(c.dir, rec.Config)
	if err != nil {
		return err
	}
	undo = append(undo, func() { _ = scratch.Detach() })
	spec.Scratch = &sandbox.Scratch{Dir: scratch.Dir(), ReadOnly: rec.Config.ReadOnly}
	spec.Mounts = append([]sandbox.Mount{{Source: filepath.Join(c.dir, "hosts"), Target: "/etc/hosts"}}, spec.Mounts...)

	ends, err := c.connect(rec.Config, &spec)
	if err != nil {
		return err
	}
	undo = append(undo, ends.close)

	b := &live.Box{
		ID: rec.ID, Image: rec.Config.Image, Digest: rec.Digest, Limits: rec.Config.Limits, Tenant: rec.Config.Tenant, Command: rec.Args,
		State: func() live.State { return live.StateRunning }, Row: c.row, Written: c.written, Name: rec.Config.Name, Labels: rec.Config.Labels,
		StopSignal: rec.Config.StopSignal, More: []string{"network", string(rec.Config.Network), "work", string(rec.Config.Work)},
	}
	c.mu.Lock()
	s := c.streams
	c.mu.Unlock()
	b.Ended = func(show func()) {
		release() // before finish: an observer of the end may start a container in the freed quota
		c.finish(b, scratch, ends, s, show)
	}
	if err := s.open(ends.master, terminalSize{rec.Config.Rows, rec.Config.Columns}); err != nil {
		return err
	}
	c.log.Resume()
	sb, err := m.boxes.Launch(ctx, b, spec)
	if err != nil {
		c.log.Pause()
		return err
	}
	ends.closeTheirs()
	s.begin(ends.stdin, rec.Config.StdinOnce && !rec.Config.TTY) // a client may leave a terminal and return
	for _, out := range ends.outputs {
		ends.pumps.Go(func() {
			defer out.from.Close()
			out.s = s
			stream := "stdout"
			if out.stderr {
				stream = "stderr"
			}
			c.log.CopyLines(out, live.LogLine{Sandbox: rec.ID, Stream: stream})
		})
	}
	m.life.Spawn(func() {
		ends.pumps.Wait()
		close(ends.drained)
	})
	// An engine that dies before the record is on disk leaves the state from before the run, as
	// if the run had not happened. Lists and changes show the run only after the write.
	if err := c.update(func(rec *Container) {
		rec.State, rec.Started, rec.Finished, rec.Exit, rec.Error = live.StateRunning, time.Now().UTC(), time.Time{}, nil, ""
	}, func() {
		c.box, c.scratch, c.terminal = b, scratch, ends.master
		m.boxes.Adopt(b, sb)
	}); err != nil {
		m.log.ErrorContext(ctx, "container's start not saved", "container", rec.ID, "error", err)
	}
	return nil
}

// finish records the end of a run. It stores the record first: lists, changes, the log and the
// streams s show the end afterwards.
func (c *container) finish(b *live.Box, scratch *volume.Volume, ends *streamEnds, s *streams, show func()) {
	if ends.master != nil {
		// The processes with the terminal open are dead. The master closes after its output is
		// read.
		defer ends.master.Close()
	}
	late := time.NewTimer(outputGrace)
	defer late.Stop()
	select {
	case <-ends.drained:
	case <-late.C: // attached clients read too slowly; they still get all output
	}
	exit, remove := b.Sandbox().Status(), false
	used, err := scratch.Usage()
	plain, dir := scratch.Kind() == volume.Plain, scratch.Dir()
	err = errors.Join(err, scratch.Detach(), c.update(func(rec *Container) {
		rec.State, rec.Finished, rec.Exit = live.StateExited, time.Now().UTC(), &exit
		if !plain && err == nil {
			rec.Scratch = used
		}
	}, func() {
		c.box, c.scratch, c.terminal, c.streams = nil, nil, nil, newStreams(c.m.life.Context())
		c.runs++
		remove = c.c.Config.AutoRemove && c.restarts == 0
		show()
		c.log.Pause()
	}))
	if err != nil {
		c.m.log.Error("container's end not noted", "container", c.id, "error", err)
	}
	c.m.life.Spawn(func() {
		<-ends.drained
		s.end()
	})
	switch {
	case remove:
		c.m.life.Spawn(func() {
			if err := c.m.removeContainer(c, false); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrContainerRunning) {
				c.m.log.Error("container not removed", "container", c.id, "error", err)
			}
		})
	case plain:
		c.m.life.Spawn(func() { c.measure(dir) })
	}
}

// measure counts the size of a scratch layer without a quota once, after the run.
func (c *container) measure(dir string) {
	used, err := volume.Walk(c.m.life.Context(), dir)
	if err != nil {
		return // the container runs again or is removed, or the engine stops
	}
	c.op.Lock()
	defer c.op.Unlock()
	c.mu.Lock()
	rests := c.box == nil && !c.removed
	c.mu.Unlock()
	if !rests { // a new run writes to the layer, or the container is removed
		return
	}
	if err := c.update(func(rec *Container) { rec.Scratch = used }, nil); err != nil {
		c.m.log.Error("size of a container's writable layer not recorded", "container", c.id, "error", err)
	}
}

// containerSpec returns the Spec of a container, without scratch layer and streams.
func (m *Manager) containerSpec(rec *Container) (sandbox.Spec, error) {
	cfg := rec.Config
	user, work, err := m.tenants.Attach(cfg.Tenant)
	if err != nil {
		return sandbox.Spec{}, err
	}
	rootfs := m.store.Rootfs(rec.Digest)
	who, err := userOf(rootfs, cfg.User, cfg.Groups)
	if err != nil {
		return sandbox.Spec{}, err
	}
	capabilities, err := cfg.capabilities()
	if err != nil {
		return sandbox.Spec{}, err
	}
	user.UID, user.GID = who.uid, who.gid
	spec := sandbox.Spec{
		ID: rec.ID, Rootfs: rootfs, Args: rec.Args, Env: rec.Env, Dir: cfg.Dir, Hostname: cfg.Hostname,
		User: user, Groups: who.groups, Capabilities: capabilities, TTY: cfg.TTY, Limits: cfg.Limits, ProcFiles: true,
	}
	if cfg.Work != WorkNone {
		spec.Work, spec.WorkMapped, spec.WorkOwner = work, m.tenants.MapErr == nil, live.FunctionUID
		spec.WorkReadOnly = cfg.Work == WorkReadOnly
	}
	if err := m.networks.Set(&spec, template.Network{Mode: cfg.Network}); err != nil {
		return sandbox.Spec{}, err
	}
	return spec, nil
}

// attachScratch attaches a container's scratch layer, limited if the host can enforce limits.
func (m *Manager) attachScratch(dir string, cfg Config) (*volume.Volume, error) {
	path := filepath.Join(dir, "scratch")
	if m.scratches != nil && cmp.Or(cfg.ScratchBytes, ScratchBytes) == ScratchBytes {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			if prepared, ok := m.scratches.TryTake(); ok {
				v, err := m.volumes.AttachPrepared(path, prepared)
				if err == nil {
					return v, nil
				}
				m.log.Warn("prepared layer of a container cannot be used", "path", path, "error", err)
			}
		}
	}
	limits := volume.Limits{Bytes: cfg.ScratchBytes}
	if limits.Bytes == 0 && m.volumes.Kind() != volume.Plain {
		limits.Bytes = ScratchBytes
	}
	return m.volumes.Attach(path, limits)
}

// streamEnds holds the engine's and the sandbox's ends of a run's streams.
type streamEnds struct {
	theirs  []*os.File
	stdin   *os.File // owned by the streams once they have begun
	outputs []*pump
	master  *os.File // of the terminal; nil without one
	pumps   sync.WaitGroup
	drained chan struct{} // closed after all output has been read and delivered
}

func (s *streamEnds) closeTheirs() {
	for _, f := range s.theirs {
		_ = f.Close()
	}
	s.theirs = nil
}

// close undoes connect.
func (s *streamEnds) close() {
	s.closeTheirs()
	if s.stdin != nil {
		_ = s.stdin.Close()
	}
	for _, out := range s.outputs {
		_ = out.from.Close()
	}
	if s.master != nil {
		_ = s.master.Close()
	}
}

// connect makes the streams of a run and sets the sandbox's ends in spec.
func (c *container) connect(cfg Config, spec *sandbox.Spec) (_ *streamEnds, err error) {
	s := &streamEnds{drained: make(chan struct{})}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if cfg.TTY {
		return s, s.terminal(cfg, spec)
	}
	for _, out := range []struct {
		to     **os.File
		stderr bool
	}{{&spec.Stdout, false}, {&spec.Stderr, true}} {
		r, w, err := live.OutputPipe()
		if err != nil {
			return nil, fmt.Errorf("make pipe: %w", err)
		}
		*out.to = w
		s.theirs = append(s.theirs, w)
		s.outputs = append(s.outputs, &pump{from: r, stderr: out.stderr})
	}
	if cfg.OpenStdin {
		if spec.Stdin, s.stdin, err = inputPipe(); err != nil {
			return nil, fmt.Errorf("make pipe: %w", err)
		}
		s.theirs = append(s.theirs, spec.Stdin)
	}
	return s, nil
}

// terminal makes a terminal owned by the container's user. One terminal carries input and
// output. Without OpenStdin there is no input.
func (s *streamEnds) terminal(cfg Config, spec *sandbox.Spec) error {
	master, terminal, err := sandbox.OpenTerminal(spec.User.HostBase + spec.User.UID)
	if err != nil {
		return err
	}
	s.master, s.theirs = master, []*os.File{terminal}
	spec.Stdin, spec.Stdout, spec.Stderr = terminal, terminal, terminal
	out, err := duplicate(master)
	if err != nil {
		return err
	}
	s.outputs = []*pump{{from: out}}
	if cfg.OpenStdin {
		s.stdin, err = duplicate(master)
	}
	return err
}

// duplicate returns a second os.File for the same open file description. The poller watches
// both.
func duplicate(f *os.File) (*os.File, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, failed := -1, error(nil)
	err = conn.Control(func(old uintptr) { fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// inputPipe makes a pipe. The poller watches the write end. The read end blocks, as programs
// expect of stdin.
func inputPipe() (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[1], true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// WaitCondition is the condition that WaitContainer waits for.
type WaitCondition string

// The conditions of WaitContainer.
const (
	WaitNotRunning WaitCondition = "not-running" // true at once if the container does not run
	WaitNextExit   WaitCondition = "next-exit"
	WaitRemoved    WaitCondition = "removed"
)

// WaitContainer waits for a condition and returns the container's state at that time. The
// removal of the container ends every wait. Errors: those of Container, the cause of ctx,
// live.ErrClosed if the engine stops before the condition is met.
func (m *Manager) WaitContainer(ctx context.Context, ref string, until WaitCondition) (*Container, error) {
	w, err := m.AwaitContainer(ref, until)
	if err != nil {
		return nil, err
	}
	return w(ctx)
}

// AwaitContainer is WaitContainer in two steps: the returned function also sees an exit that
// happens between AwaitContainer's return and its own call.
func (m *Manager) AwaitContainer(ref string, until WaitCondition) (func(context.Context) (*Container, error), error) {
	c, err := m.containers.find(ref)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	before := c.runs
	c.mu.Unlock()
	return func(ctx context.Context) (*Container, error) {
		for {
			c.mu.Lock()
			met := c.removed
			switch until {
			case WaitNotRunning:
				met = met || c.box == nil
			case WaitNextExit:
				met = met || c.runs > before
			case WaitRemoved:
			}
			now, changed := c.c, c.changed
			c.mu.Unlock()
			if met {
				return &now, nil
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-m.life.Ended(): // the end of the engine has killed the sandbox; this exit counts
				select {
				case <-changed:
				default:
					return nil, live.ErrClosed
				}
			}
		}
	}, nil
}

// StopContainer sends the stop signal of the container, or of o, and kills the container after
// the grace period. It returns after the container's end. Error: live.ErrContainerStopped if the
// container does not run.
func (m *Manager) StopContainer(ctx context.Context, ref string, o live.StopOptions) error {
	_, b, err := m.runningContainer(ref)
	if err != nil {
		return err
	}
	m.boxes.Stop(ctx, b, o)
	return nil
}

// RestartContainer stops a running container, as StopContainer does, and starts it on the same
// scratch layer. AutoRemove does not apply meanwhile. Errors as of StartContainer, except
// ErrContainerRunning: a concurrent start has the same effect.
func (m *Manager) RestartContainer(ctx context.Context, ref string, o live.StopOptions) error {
	c, err := m.containers.find(ref)
	if err != nil {
		return err
	}
	c.restarting(1)
	defer c.restarting(-1)
	if err := m.StopContainer(ctx, c.id, o); err != nil && !errors.Is(err, live.ErrContainerStopped) {
		return err
	}
	if err := m.StartContainer(ctx, c.id); err != nil && !errors.Is(err, ErrContainerRunning) {
		return err
	}
	m.store.Changes().Add(c.change(store.ActionRestart))
	return nil
}

func (c *container) restarting(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restarts += n
}

// SignalContainer sends a signal to a container's first process. As pid 1 the process gets only
// signals with a handler, and SIGKILL and SIGSTOP (pid_namespaces(7)). Error:
// live.ErrContainerStopped.
func (m *Manager) SignalContainer(ref string, sig unix.Signal) error {
	_, b, err := m.runningContainer(ref)
	if err != nil {
		return err
	}
	return m.boxes.Signal(b, sig)
}

func (m *Manager) runningContainer(ref string) (*container, *live.Box, error) {
	c, err := m.containers.find(ref)
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.box == nil {
		return nil, nil, fmt.Errorf("container %s: %w", c.c.Config.Name, live.ErrContainerStopped)
	}
	return c, c.box, nil
}

// ResizeContainer sets the size of a running container's terminal, in characters.
func (m *Manager) ResizeContainer(ref string, rows, columns uint16) error {
	c, _, err := m.runningContainer(ref)
	if err != nil {
		return err
	}
	c.mu.Lock()
	terminal, name := c.terminal, c.c.Config.Name
	c.mu.Unlock()
	if terminal == nil {
		return fmt.Errorf("container %s has no terminal: %w", name, unix.ENOTTY)
	}
	if err := sandbox.ResizeTerminal(terminal, rows, columns); err != nil {
		return err
	}
	c.resized(rows, columns)
	return nil
}

func (c *container) resized(rows, columns uint16) {
	c.m.store.Changes().Add(c.change(store.ActionResize, "rows", strconv.Itoa(int(rows)), "columns", strconv.Itoa(int(columns))))
}

// ContainerScratch returns the size of a container's scratch layer: of a running container by
// one or two system calls, of a stopped container from the record.
func (m *Manager) ContainerScratch(ref string) (volume.Usage, error) {
	c, err := m.containers.find(ref)
	if err != nil {
		return volume.Usage{}, err
	}
	return c.written()
}

func (c *container) written() (volume.Usage, error) {
	c.mu.Lock()
	scratch, recorded := c.scratch, c.c.Scratch
	c.mu.Unlock()
	if scratch == nil {
		return recorded, nil
	}
	used, err := scratch.Usage()
	if errors.Is(err, fs.ErrClosed) { // the run has ended meanwhile
		return recorded, nil
	}
	return used, err
}

// ContainerLogs emits the output of all runs of a container, oldest first, as Engine.Logs does
// for functions. With o.Follow it returns at the end of the run.
func (m *Manager) ContainerLogs(ctx context.Context, ref string, o live.LogOptions, emit func(live.LogLine) error) error {
	c, err := m.containers.find(ref)
	if err != nil {
		return err
	}
	return c.log.Read(ctx, m.life.Closed(), o, emit)
}
