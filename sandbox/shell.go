package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/cgroup"
	"github.com/fre-engine/fre/sandbox/pool"
	"github.com/fre-engine/fre/sandbox/seccomp"
)

// shell is a sandbox made ahead of its function, stopped before what it has not
// been told yet (shell/wire.h). A bare one has its namespaces, control groups and
// /proc; an attached one all but its program. It is used once.
//
// Only the pipe is watched by the poller: a socket would wake it for having been
// read as well, in the middle of a start.
type shell struct {
	sb      *Sandbox
	control int      // the socket it waits on; -1 once closed
	reports *os.File // what it says
	said    []byte   // read, not yet parsed
}

// close ends the talk with the shell: one that still waits ends.
func (sh *shell) close() {
	if sh.control >= 0 {
		unix.Close(sh.control)
		_ = sh.reports.Close()
	}
	sh.control = -1
}

// furnishing is what attached shells are made for: a start with another needs
// other shells.
type furnishing struct {
	rootfs, work place
	hostname     string
	workMapped   bool
	user         User
	limits       Limits
	network      Network
	egress       string
	policy       seccomp.Policy
}

// furnishing looks at what the paths lead to now.
func (spec *Spec) furnishing() (furnishing, error) {
	rootfs, err := placeOf(spec.Rootfs)
	if err != nil {
		return furnishing{}, err
	}
	work, err := placeOf(spec.Work)
	return furnishing{rootfs, work, spec.Hostname, spec.WorkMapped, spec.User, spec.Limits, spec.Network, spec.Egress.String(), spec.Policy}, err
}

// place is a directory as shells have it mounted. Another may come to its path, as
// that of an image does which is removed and built again; it has another number for
// as long as a mount holds the one before.
type place struct {
	path     string
	dev, ino uint64
}

func placeOf(path string) (place, error) {
	if path == "" {
		return place{}, nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return place{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return place{path, st.Dev, st.Ino}, nil
}

// shells are the parked ones. Attached shells are made for what was started
// before with Spec.Repeats, as many as recent demand asks for.
type shells struct {
	host     *Host
	max      int64        // parked at most, of both kinds together
	parked   atomic.Int64 // waiting, or being made
	attached atomic.Int64 // of them, attached: a quarter is left for bare ones
	died     atomic.Uint64
	bare     *pool.Pool[*shell]

	mu     sync.Mutex
	closed bool
	pools  map[furnishing]*pool.Pool[*shell] // of attached ones

	stop chan struct{}
	done chan struct{}
}

// ShellStats counts parked shells.
type ShellStats struct {
	Bare, Attached int    // waiting now
	Died           uint64 // ended while they waited; others took their place
}

// Shells counts the shells that are parked now.
func (h *Host) Shells() ShellStats {
	var s ShellStats
	s.Bare, _ = h.shells.bare.Len()
	h.shells.mu.Lock()
	defer h.shells.mu.Unlock()
	for _, p := range h.shells.pools {
		ready, _ := p.Len()
		s.Attached += ready
	}
	s.Died = h.shells.died.Load()
	return s
}

// attachedIdle is for how long shells are kept for what is not started any
// more: the first minute all of them, then half as many each minute.
const attachedIdle = time.Minute

// shellBytes is what an attached shell costs the kernel at most, its network
// namespace included; a bare one a tenth of it.
const shellBytes = 512 << 10

func openShells(h *Host, ready, most int) *shells {
	s := &shells{
		host: h, max: int64(most), pools: map[furnishing]*pool.Pool[*shell]{},
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	s.bare = s.pool("bare shell", min(ready, most), most, nil, furnishing{})
	go s.forget()
	return s
}

// pool keeps shells, attached where spec says to what; of is its furnishing then.
func (s *shells) pool(name string, ready, most int, spec *Spec, of furnishing) *pool.Pool[*shell] {
	return pool.New(pool.Config[*shell]{
		Name: name, Ready: ready, Max: most, Idle: attachedIdle, Log: s.host.log,
		Make: func() (*shell, error) {
			if spec != nil {
				if now, err := spec.furnishing(); err != nil || now != of {
					return nil, pool.ErrFull // what it was made for is gone: no start asks for it any more
				}
			}
			if !s.admit(spec != nil) {
				return nil, pool.ErrFull
			}
			sh, err := s.host.park(spec)
			if err != nil {
				s.left(spec != nil)
			}
			return sh, err
		},
		Drop: func(sh *shell) error {
			s.left(spec != nil)
			if !sh.alive() {
				s.died.Add(1)
			}
			sh.drop()
			return nil
		},
		Alive: (*shell).alive,
		Busy:  func() bool { return s.host.starts.Load() > 0 },
	})
}

// admit counts a shell that is about to be made; false when there are enough.
func (s *shells) admit(attached bool) bool {
	full := s.parked.Add(1) > s.max
	if attached {
		full = s.attached.Add(1) > s.max*3/4 || full
	}
	if full {
		s.left(attached)
	}
	return !full
}

// left counts a shell that is parked no more.
func (s *shells) left(attached bool) {
	s.parked.Add(-1)
	if attached {
		s.attached.Add(-1)
	}
}

// take leases the best shell there is for a start; nil if there is none.
func (s *shells) take(spec *Spec) *shell {
	if s.max == 0 || !spec.fitsShell() || spec.Without != 0 || spec.Forks > 0 {
		return nil
	}
	bare := s.bare.TryTake
	if spec.repeats() {
		p := s.attachedPool(spec)
		if p == nil {
			return nil
		}
		if sh, ok := p.TryTake(); ok {
			s.left(true)
			return sh
		}
		bare = s.bare.Borrow
	}
	sh, ok := bare()
	if !ok {
		return nil
	}
	s.left(false)
	return sh
}

// repeats says whether attached shells are kept for spec.
func (spec *Spec) repeats() bool {
	return spec.Repeats && len(spec.Mounts) == 0 && len(spec.Secrets) == 0 && len(spec.Groups) == 0 && spec.Capabilities == 0 && spec.WorkOwner == 0 && !spec.WorkReadOnly && spec.Scratch == nil && !spec.TTY && !spec.ProcFiles
}

// attachedPool is the pool for what spec asks for, nil once the host closes, or where
// that is not there. A new one has nothing ready: it fills once it knows the demand.
func (s *shells) attachedPool(spec *Spec) *pool.Pool[*shell] {
	key, err := spec.furnishing()
	if err != nil {
		return nil // whoever makes all of it says at which step that fails
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[key]
	if p == nil && !s.closed {
		kept := &Spec{
			Rootfs: spec.Rootfs, Work: spec.Work, WorkMapped: spec.WorkMapped, Hostname: spec.Hostname,
			User: spec.User, Limits: spec.Limits, Network: spec.Network, Egress: spec.Egress, Policy: spec.Policy,
		}
		p = s.pool("attached shell", 0, int(s.max), kept, key)
		s.pools[key] = p
	}
	return p
}

// forget closes the pools that nobody has used for long.
func (s *shells) forget() {
	defer close(s.done)
	tick := time.NewTicker(attachedIdle)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		var idle []*pool.Pool[*shell]
		s.mu.Lock()
		for key, p := range s.pools {
			if ready, want := p.Len(); ready == 0 && want == 0 {
				delete(s.pools, key)
				idle = append(idle, p)
			}
		}
		s.mu.Unlock()
		for _, p := range idle {
			p.Close()
		}
	}
}

// check replaces the shells that have died.
func (s *shells) check() {
	s.bare.Check()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pools {
		p.Check()
	}
}

// close ends all shells.
func (s *shells) close() {
	close(s.stop)
	<-s.done
	s.mu.Lock()
	s.closed = true
	pools := s.pools
	s.pools = nil
	s.mu.Unlock()
	s.bare.Close()
	for _, p := range pools {
		p.Close()
	}
}

// park makes a shell: a bare one, or one attached to what spec says.
func (h *Host) park(spec *Spec) (*shell, error) {
	limits := Limits{}
	kind := StartShell
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
	sh, theirs := &shell{sb: sb, control: -1}, [2]int{-1, -1}
	if err == nil {
		theirs, err = sh.connect()
	}
	if err != nil {
		sb.release()
		return nil, fmt.Errorf("park: %w", err)
	}
	m.header.FDControl, m.header.FDReports = m.fd(theirs[0]), m.fd(theirs[1])
	m.seal()
	sp, err := h.send(sb, m)
	for _, fd := range theirs {
		unix.Close(fd)
	}
	if err != nil {
		sb.release()
		sh.close()
		return nil, fmt.Errorf("park: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.startWithin)
	defer cancel()
	if err = h.answered(ctx, sb, sp); err == nil {
		if err = sh.parked(ctx); err == nil {
			sb.parked.Store(true)
			return sh, nil
		}
		sb.Kill()
		<-sb.done
	}
	sh.close()
	return nil, fmt.Errorf("park: %w", err)
}

// connect makes the control socket and the pipe and returns the shell's ends,
// which the caller closes.
func (sh *shell) connect() (theirs [2]int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return theirs, fmt.Errorf("socketpair: %w", err)
	}
	var pipe [2]int
	if err = unix.Pipe2(pipe[:], unix.O_CLOEXEC); err == nil {
		if err = unix.SetNonblock(pipe[0], true); err != nil {
			err = errors.Join(err, unix.Close(pipe[0]), unix.Close(pipe[1]))
		}
	}
	if err != nil {
		return theirs, errors.Join(fmt.Errorf("pipe: %w", err), unix.Close(pair[0]), unix.Close(pair[1]))
	}
	sh.control, sh.reports = pair[0], os.NewFile(uintptr(pipe[0]), "shell")
	return [2]int{pair[1], pipe[1]}, nil
}

// parked waits until the shell has come to its stop.
func (sh *shell) parked(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	if err := sh.reports.SetReadDeadline(deadline); err != nil {
		return err
	}
	r, _, err := sh.read()
	switch {
	case errors.Is(err, io.EOF):
		return errShellGone
	case err != nil:
		return err
	case r.Kind == kindFailed:
		return sh.sb.startError(r)
	case r.Kind != kindParked:
		return fmt.Errorf("shell said %#x: %w", r.Kind, unix.EBADMSG)
	}
	return sh.reports.SetReadDeadline(time.Time{})
}

// read returns the next of the shell's reports; io.EOF after the last.
func (sh *shell) read() (report, *traceReport, error) {
	for {
		if n := nextReport(sh.said); n > 0 {
			b := sh.said[:n]
			sh.said = sh.said[n:]
			return parseReport(b)
		}
		buf := make([]byte, reportSize+traceSize)
		n, err := sh.reports.Read(buf)
		if err != nil {
			return report{}, nil, err
		}
		sh.said = append(sh.said, buf[:n]...)
	}
}

// alive says whether the shell still waits.
func (sh *shell) alive() bool {
	select {
	case <-sh.sb.done:
		return false
	default:
		return true
	}
}

// drop ends a shell that is not wanted any more. Its end is waited for where that
// of every sandbox is.
func (sh *shell) drop() {
	sh.close()
	sh.sb.Kill()
}

// errShellGone: the shell died before its use, or is of no use; another way is as good.
var errShellGone = errors.New("shell has ended")

// shellMemory is the least limit that a shell is given. Its group holds what its last
// lease has left and a few hundred KiB of the shell's, and must not come to its limit
// before execve: the kernel kills all that share the victim's memory, which is the
// spawner's, with every sandbox of it. What the spawner starts itself it waits for
// (CLONE_VFORK), and such a child the kernel spares.
const shellMemory = 4 * cgroup.MostKept

// fitsShell says whether a shell can have the limits of a start, and has room for
// its strings.
func (spec *Spec) fitsShell() bool {
	if spec.Limits.MemoryBytes < shellMemory {
		return false
	}
	count, size := 0, len(spec.Dir)+len(spec.Hostname)+2
	for _, list := range [][]string{spec.Args, spec.Env} {
		count += len(list)
		for _, s := range list {
			size += len(s) + 1
		}
	}
	for _, m := range spec.Mounts {
		count++
		size += len(m.Target) + 1
	}
	const standard = 64 // mounts that every sandbox has, dir and host name
	return count+standard <= maxShellStrings && size+standard <= maxShellPayload
}

// startShell has a leased shell become the sandbox that spec asks for.
func (h *Host) startShell(ctx context.Context, sh *shell, spec *Spec, clock *clock) (*Sandbox, error) {
	s := sh.sb
	s.parked.Store(false)
	if err := h.register(s, spec.ID); err != nil {
		sh.drop()
		return nil, err
	}
	defer h.starting.Done()
	defer sh.close()
	m := newStartMessage(kindRun, s.number)
	defer m.close()
	err := h.prepareRun(s, m, spec)
	clock.mark("prepared")
	if err == nil {
		err = sh.run(ctx, m, clock)
		runtime.KeepAlive(spec) // whose files were used by number
	}
	if err != nil {
		sh.drop()
		return nil, err
	}
	return s.begun(spec, clock), nil
}

func (h *Host) prepareRun(s *Sandbox, m *startMessage, spec *Spec) error {
	if s.kind == StartShell {
		if err := s.setLimits(spec.Limits); err != nil {
			return err
		}
		if err := h.furnish(s, m, spec); err != nil {
			return err
		}
		if !s.own(m) {
			return errShellGone
		}
	}
	if err := h.execution(s, m, spec); err != nil {
		return err
	}
	m.seal()
	return nil
}

// setLimits changes the limits of a parked sandbox; errShellGone if it has ended,
// and its group is perhaps another's already, or if the group holds more.
func (s *Sandbox) setLimits(l Limits) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return errShellGone
	}
	err := s.group.SetLimits(l.cgroup())
	if errors.Is(err, unix.EBUSY) {
		return errShellGone // as good as: its caller drops it
	}
	return err
}

// run sends RUN and waits for the end of the shell's reports, which comes with
// execve. A shell that is killed after it has read RUN counts as started: its end
// tells the rest.
func (sh *shell) run(ctx context.Context, m *startMessage, clock *clock) error {
	packet, err := m.bytes(true)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, sh.sb.Kill)
	defer stop()
	if err := unix.Sendmsg(sh.control, packet, unix.UnixRights(m.fds...), nil, unix.MSG_NOSIGNAL); err != nil {
		return cmp.Or(ctx.Err(), errShellGone)
	}
	clock.mark("sent")
	if err := sh.reports.SetReadDeadline(time.Now().Add(sh.sb.host.startWithin)); err != nil {
		return err
	}
	for {
		r, trace, err := sh.read()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF):
			return sh.tookIt()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errHung
		case err != nil:
			return err
		case trace != nil:
			clock.add(trace)
		case r.Kind == kindFailed:
			return sh.sb.startError(r)
		}
	}
}

// tookIt returns errShellGone if the shell has left unread what it was sent. The
// socket ends before the pipe (shell/sandbox.c), which no document promises.
func (sh *shell) tookIt() error {
	for end := time.Now().Add(sh.sb.host.startWithin); time.Now().Before(end); {
		_, _, err := unix.Recvfrom(sh.control, nil, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			<-time.After(50 * time.Microsecond)
		case err != nil:
			return errShellGone // ECONNRESET
		default:
			return nil
		}
	}
	return errHung
}
