package sandbox

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Start starts a sandbox and returns after the execve of its program. Start uses an attached
// parked sandbox, else a bare parked sandbox, else the spawner. A [StartError] tells the failed
// step; the error is fs.ErrExist if the ID is in use, and fs.ErrClosed if the host is closed.
// If ctx ends first, Start kills the new sandbox. Start kills a spawner that does not answer,
// with all its sandboxes. The caller may close spec's files after the return.
func (h *Host) Start(ctx context.Context, spec Spec) (*Sandbox, error) {
	spec.setDefaults()
	if err := errors.Join(spec.check(), h.checkFiles(spec.Limits)); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if spec.Background || spec.Opens != nil { // no caller waits, or the parked sandbox's earlier opens would be missing
		return h.startSpawner(ctx, &spec, newClock(spec.Trace))
	}
	clock := newClock(spec.Trace)
	h.starts.Add(1)
	defer func() {
		h.lastStart.Store(monotonic())
		h.starts.Add(-1)
	}()
	select {
	case h.admitted <- struct{}{}:
		defer func() { <-h.admitted }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	clock.mark("admitted")
	for ps := h.parked.take(&spec); ps != nil; ps = h.parked.take(&spec) {
		sb, err := h.startParked(ctx, ps, &spec, clock)
		if !errors.Is(err, errParkedGone) {
			return sb, err
		}
		h.parked.died.Add(1)
	}
	return h.startSpawner(ctx, &spec, clock)
}

// Busy reports whether starts are in progress, or ended within the last 20 ms. Starts with
// Background or Opens do not count. Background work should wait while the host is busy.
func (h *Host) Busy() bool {
	return h.busy()
}

// begun completes every successful start.
func (s *Sandbox) begun(spec *Spec, clock *clock) *Sandbox {
	clock.mark("executed")
	clock.sort()
	s.clock = clock
	if !spec.Background {
		s.group.Watch(s.Kill, s.network.queued)
	}
	if spec.Pin {
		s.unpinLater(pinnedMore)
	}
	return s
}

// startSpawner has the spawner make the whole sandbox.
func (h *Host) startSpawner(ctx context.Context, spec *Spec, clock *clock) (*Sandbox, error) {
	s := h.newSandbox(StartSpawner)
	s.clock = clock
	if err := h.register(s, spec.ID); err != nil {
		return nil, err
	}
	defer h.starting.Done()
	sp, err := h.launch(s, spec)
	if err != nil {
		s.release()
		return nil, err
	}
	if err := h.answered(ctx, s, sp); err != nil {
		return nil, err
	}
	return s.begun(spec, clock), nil
}

// launch sends a spawner the whole START message. After an error the caller releases s.
func (h *Host) launch(s *Sandbox, spec *Spec) (*spawner, error) {
	m := newStartMessage(kindStart, s.number)
	defer m.close()
	if err := h.join(s, m, spec.cgroup()); err != nil {
		return nil, err
	}
	if err := h.furnish(s, m, spec); err != nil {
		return nil, err
	}
	s.own(m)
	if err := h.execution(s, m, spec); err != nil {
		return nil, err
	}
	m.seal()
	s.clock.mark("prepared")
	sp, err := h.send(s, m)
	runtime.KeepAlive(spec) // the kernel uses spec's files by number
	return sp, err
}

// send sends a message to a spawner. After an error the caller releases s.
func (h *Host) send(s *Sandbox, m *startMessage) (*spawner, error) {
	sp, err := h.spawners.pick(s.number)
	if err != nil {
		return nil, err
	}
	return sp, sp.start(s, m)
}

// answered waits until the spawner has started s or the start has failed. On failure s is or
// will be released.
func (h *Host) answered(ctx context.Context, s *Sandbox, sp *spawner) error {
	hung := time.NewTimer(h.startWithin)
	defer hung.Stop()
	select {
	case <-s.ready:
	case <-hung.C:
		s.Kill()
		sp.hung() // the reader of sp then releases s
		return errHung
	case <-ctx.Done():
		s.Kill() // at once, or when the start is complete
		return ctx.Err()
	}
	return s.err
}

// park makes a parked sandbox: bare if spec is nil, else attached for spec.
func (h *Host) park(spec *Spec) (*parkedSandbox, error) {
	limits := Limits{}
	kind := StartBare
	if spec != nil {
		limits, kind = spec.Limits, StartAttached
	}
	limits.setDefaults()
	sb := h.newSandbox(kind)
	m := newStartMessage(kindPark, sb.number)
	defer m.close()
	err := h.join(sb, m, limits.cgroup())
	if err == nil && spec != nil {
		if err = h.furnish(sb, m, spec); err == nil {
			sb.own(m)
		}
	}
	ps, theirs := &parkedSandbox{sb: sb, control: -1}, [2]int{-1, -1}
	if err == nil {
		theirs, err = ps.connect()
	}
	if err != nil {
		sb.release()
		return nil, fmt.Errorf("park: %w", err)
	}
	m.header.FDControl, m.header.FDReports = m.addFD(theirs[0]), m.addFD(theirs[1])
	m.seal()
	sp, err := h.send(sb, m)
	for _, fd := range theirs {
		unix.Close(fd)
	}
	if err != nil {
		sb.release()
		ps.close()
		return nil, fmt.Errorf("park: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.startWithin)
	defer cancel()
	if err = h.answered(ctx, sb, sp); err == nil {
		if err = ps.awaitParked(ctx); err == nil {
			sb.parked.Store(true)
			return ps, nil
		}
		sb.Kill()
		<-sb.done
	}
	ps.close()
	return nil, fmt.Errorf("park: %w", err)
}

// startParked turns a leased parked sandbox into the sandbox of spec.
func (h *Host) startParked(ctx context.Context, ps *parkedSandbox, spec *Spec, clock *clock) (*Sandbox, error) {
	s := ps.sb
	s.parked.Store(false)
	if err := h.register(s, spec.ID); err != nil {
		ps.drop()
		return nil, err
	}
	defer h.starting.Done()
	defer ps.close()
	m := newStartMessage(kindRun, s.number)
	defer m.close()
	err := h.prepareRun(s, m, spec)
	clock.mark("prepared")
	if err == nil {
		err = ps.run(ctx, m, clock)
		runtime.KeepAlive(spec) // the kernel uses spec's files by number
	}
	if err != nil {
		ps.drop()
		h.forget(s) // the next way to start the sandbox needs the name
		return nil, err
	}
	return s.begun(spec, clock), nil
}

func (h *Host) prepareRun(s *Sandbox, m *startMessage, spec *Spec) error {
	if s.kind == StartBare {
		if err := s.setLimits(spec.Limits); err != nil {
			return err
		}
		if err := h.furnish(s, m, spec); err != nil {
			return err
		}
		if !s.own(m) {
			return errParkedGone
		}
	}
	if err := h.execution(s, m, spec); err != nil {
		return err
	}
	m.seal()
	return nil
}
