package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/cgroup"
	"github.com/fre-engine/fre/sandbox/pool"
	"github.com/fre-engine/fre/sandbox/seccomp"
)

// parkedSandbox is a sandbox made ahead of its function, and stopped before the steps that need
// the function (spawner/wire.h). A bare parked sandbox has its namespaces, cgroups and /proc. An
// attached parked sandbox has all but its program. Each parked sandbox is used once.
//
// Go's poller watches only the pipe. A watched socket would wake the poller in the middle of a
// start, when the parked sandbox reads the message.
type parkedSandbox struct {
	sb      *Sandbox
	control int      // socket to the parked sandbox; -1 after close
	reports *os.File // pipe of reports from the parked sandbox
	said    []byte   // bytes read but not yet parsed
}

// close closes the socket and the pipe. A parked sandbox still unused then ends.
func (ps *parkedSandbox) close() {
	if ps.control >= 0 {
		unix.Close(ps.control)
		_ = ps.reports.Close()
	}
	ps.control = -1
}

// furnishing is the configuration of attached parked sandboxes. A start with another furnishing
// needs other parked sandboxes.
type furnishing struct {
	rootfs, work mountedDir
	hostname     string
	workMapped   bool
	user         User
	limits       Limits
	network      Network
	egress       string
	policy       seccomp.Policy
}

// furnishing resolves the paths of spec to the directories that exist now.
func (spec *Spec) furnishing() (furnishing, error) {
	rootfs, err := mountedDirOf(spec.Rootfs)
	if err != nil {
		return furnishing{}, err
	}
	work, err := mountedDirOf(spec.Work)
	return furnishing{rootfs, work, spec.Hostname, spec.WorkMapped, spec.User, spec.Limits, spec.Network, spec.Egress.String(), spec.Policy}, err
}

// mountedDir identifies a directory that parked sandboxes have mounted. Another directory may take
// the path, for example when an image is removed and built again. The new directory has another
// inode number as long as a mount holds the old directory.
type mountedDir struct {
	path     string
	dev, ino uint64
}

func mountedDirOf(path string) (mountedDir, error) {
	if path == "" {
		return mountedDir{}, nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return mountedDir{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return mountedDir{path, st.Dev, st.Ino}, nil
}

// parkedSandboxes are the parked sandboxes of a host. Pools of attached parked sandboxes form for
// earlier starts with Spec.Repeats, and grow with recent demand.
type parkedSandboxes struct {
	host     *shared
	create   func(*Spec) (*parkedSandbox, error)
	max      int64        // most sandboxes, bare and attached together
	parked   atomic.Int64 // sandboxes parked or being made
	attached atomic.Int64 // attached ones among them, at most three quarters of max
	died     atomic.Uint64
	bare     *pool.Pool[*parkedSandbox]

	mu     sync.Mutex
	closed bool
	pools  map[furnishing]*pool.Pool[*parkedSandbox] // attached parked sandboxes

	stop chan struct{}
	done chan struct{}
}

// ParkedStats counts parked sandboxes.
type ParkedStats struct {
	Bare, Attached int    // parked now
	Died           uint64 // ended while parked, and since replaced
}

// stats counts the sandboxes parked now.
func (s *parkedSandboxes) stats() ParkedStats {
	var now ParkedStats
	now.Bare, _ = s.bare.Len()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pools {
		ready, _ := p.Len()
		now.Attached += ready
	}
	now.Died = s.died.Load()
	return now
}

// attachedIdle is the half-life of attached parked sandboxes without starts: all parked
// sandboxes stay for one minute, and every further minute halves their number.
const attachedIdle = time.Minute

// openParked makes the pools. create makes a parked sandbox: bare if the Spec is nil, else
// attached.
func openParked(h *shared, create func(*Spec) (*parkedSandbox, error), ready, most int) *parkedSandboxes {
	s := &parkedSandboxes{
		host: h, create: create, max: int64(most), pools: map[furnishing]*pool.Pool[*parkedSandbox]{},
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	h.replaceParked = s.check
	s.bare = s.pool("bare parked sandboxes", min(ready, most), most, nil, furnishing{})
	go s.forget()
	return s
}

// pool makes a pool of parked sandboxes: bare if spec is nil, else attached for spec, whose
// furnishing is of.
func (s *parkedSandboxes) pool(name string, ready, most int, spec *Spec, of furnishing) *pool.Pool[*parkedSandbox] {
	return pool.New(pool.Config[*parkedSandbox]{
		Name: name, Ready: ready, Max: most, Idle: attachedIdle, Log: s.host.log,
		Make: func() (*parkedSandbox, error) {
			if spec != nil {
				if now, err := spec.furnishing(); err != nil || now != of {
					return nil, pool.ErrFull // the directories have changed: no start asks for these parked sandboxes any more
				}
			}
			if !s.admit(spec != nil) {
				return nil, pool.ErrFull
			}
			ps, err := s.create(spec)
			if err != nil {
				s.left(spec != nil)
			}
			return ps, err
		},
		Drop: func(ps *parkedSandbox) error {
			s.left(spec != nil)
			if !ps.alive() {
				s.died.Add(1)
			}
			ps.drop()
			return nil
		},
		Alive: (*parkedSandbox).alive,
		Busy:  func() bool { return s.host.starts.Load() > 0 },
	})
}

// admit counts a parked sandbox about to be made. admit returns false, and counts nothing, at
// the maximum.
func (s *parkedSandboxes) admit(attached bool) bool {
	full := s.parked.Add(1) > s.max
	if attached {
		full = s.attached.Add(1) > s.max*3/4 || full
	}
	if full {
		s.left(attached)
	}
	return !full
}

// left counts a sandbox as no longer parked.
func (s *parkedSandboxes) left(attached bool) {
	s.parked.Add(-1)
	if attached {
		s.attached.Add(-1)
	}
}

// take leases the best parked sandbox for a start; nil if no parked sandbox suits.
func (s *parkedSandboxes) take(spec *Spec) *parkedSandbox {
	if s.max == 0 || !spec.fitsParked() || spec.Without != 0 || spec.Forks > 0 {
		return nil
	}
	bare := s.bare.TryTake
	if spec.repeats() {
		p := s.attachedPool(spec)
		if p == nil {
			return nil
		}
		if ps, ok := p.TryTake(); ok {
			s.left(true)
			return ps
		}
		bare = s.bare.Borrow
	}
	ps, ok := bare()
	if !ok {
		return nil
	}
	s.left(false)
	return ps
}

// repeats reports whether the host keeps attached parked sandboxes for spec.
func (spec *Spec) repeats() bool {
	return spec.Repeats && len(spec.Mounts) == 0 && len(spec.Secrets) == 0 && len(spec.Groups) == 0 && spec.Capabilities == 0 && spec.WorkOwner == 0 && !spec.WorkReadOnly && spec.Scratch == nil && !spec.TTY && !spec.ProcFiles
}

// attachedPool returns the pool of attached parked sandboxes for spec; nil after close or if a
// directory is missing. A new pool is empty and fills with demand.
func (s *parkedSandboxes) attachedPool(spec *Spec) *pool.Pool[*parkedSandbox] {
	key, err := spec.furnishing()
	if err != nil {
		return nil // the start by the spawner reports the failed step
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[key]
	if p == nil && !s.closed {
		kept := &Spec{
			Rootfs: spec.Rootfs, Work: spec.Work, WorkMapped: spec.WorkMapped, Hostname: spec.Hostname,
			User: spec.User, Limits: spec.Limits, Network: spec.Network, Egress: spec.Egress, Policy: spec.Policy,
		}
		p = s.pool("attached parked sandboxes", 0, int(s.max), kept, key)
		s.pools[key] = p
	}
	return p
}

// forget closes pools that have been idle for long.
func (s *parkedSandboxes) forget() {
	defer close(s.done)
	tick := time.NewTicker(attachedIdle)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		var idle []*pool.Pool[*parkedSandbox]
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

// check has the pools replace dead parked sandboxes.
func (s *parkedSandboxes) check() {
	s.bare.Check()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pools {
		p.Check()
	}
}

// close ends all parked sandboxes.
func (s *parkedSandboxes) close() {
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

// connect makes the control socket and the pipe. The caller closes the result, the parked
// sandbox's ends.
func (ps *parkedSandbox) connect() (theirs [2]int, err error) {
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
	ps.control, ps.reports = pair[0], os.NewFile(uintptr(pipe[0]), "parked sandbox")
	return [2]int{pair[1], pipe[1]}, nil
}

// awaitParked waits until the new sandbox has stopped at its parking point.
func (ps *parkedSandbox) awaitParked(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	if err := ps.reports.SetReadDeadline(deadline); err != nil {
		return err
	}
	r, _, err := ps.read()
	switch {
	case errors.Is(err, io.EOF):
		return errParkedGone
	case err != nil:
		return err
	case r.Kind == kindFailed:
		return ps.sb.startError(r)
	case r.Kind != kindParked:
		return fmt.Errorf("parked sandbox sent report %#x: %w", r.Kind, unix.EBADMSG)
	}
	return ps.reports.SetReadDeadline(time.Time{})
}

// read returns the next report of the parked sandbox; io.EOF after the last.
func (ps *parkedSandbox) read() (report, *traceReport, error) {
	for {
		if n := nextReport(ps.said); n > 0 {
			b := ps.said[:n]
			ps.said = ps.said[n:]
			return parseReport(b)
		}
		buf := make([]byte, reportSize+traceSize)
		n, err := ps.reports.Read(buf)
		if err != nil {
			return report{}, nil, err
		}
		ps.said = append(ps.said, buf[:n]...)
	}
}

// alive reports whether the parked sandbox has not ended.
func (ps *parkedSandbox) alive() bool {
	select {
	case <-ps.sb.done:
		return false
	default:
		return true
	}
}

// drop kills an unwanted parked sandbox. As with every sandbox, exited handles the end.
func (ps *parkedSandbox) drop() {
	ps.close()
	ps.sb.Kill()
}

// errParkedGone reports that the parked sandbox has ended or is unusable. The caller tries
// another way.
var errParkedGone = errors.New("parked sandbox has ended")

// parkedMemory is the least memory limit for which a start uses a parked sandbox. The group of a
// parked sandbox holds the remains of the group's last lease and a few hundred KiB of the
// parked sandbox. The group must not reach its limit before execve: a parked sandbox shares the
// memory of the spawner, and the kernel kills all processes that share the victim's memory, so
// the spawner and all its sandboxes would die. For a start by the spawner the danger does not
// exist: the spawner waits for the child (CLONE_VFORK), and the kernel spares such a child.
const parkedMemory = 4 * cgroup.MostKept

// fitsParked reports whether a parked sandbox can have spec's memory limit and has room for
// spec's strings.
func (spec *Spec) fitsParked() bool {
	if spec.Limits.MemoryBytes < parkedMemory {
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
	const standard = 64 // mounts of every sandbox, dir and host name
	return count+standard <= maxParkedStrings && size+standard <= maxParkedPayload
}

// run sends RUN and waits for the end of the parked sandbox's reports, which comes with execve.
// A parked sandbox that is killed after reading RUN counts as started; the end of the sandbox
// reports the rest.
func (ps *parkedSandbox) run(ctx context.Context, m *startMessage, clock *clock) error {
	packet, err := m.encode(true)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, ps.sb.Kill)
	defer stop()
	if err := unix.Sendmsg(ps.control, packet, unix.UnixRights(m.fds...), nil, unix.MSG_NOSIGNAL); err != nil {
		return cmp.Or(ctx.Err(), errParkedGone)
	}
	clock.mark("sent")
	if err := ps.reports.SetReadDeadline(time.Now().Add(ps.sb.host.startWithin)); err != nil {
		return err
	}
	for {
		r, trace, err := ps.read()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF):
			return ps.tookIt()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errHung
		case err != nil:
			return err
		case trace != nil:
			clock.add(trace)
		case r.Kind == kindFailed:
			return ps.sb.startError(r)
		}
	}
}

// tookIt returns nil if the parked sandbox has read RUN, and errParkedGone if RUN is unread. The
// parked sandbox closes the socket before the pipe (spawner/sandbox.c), but no document promises
// that order; so tookIt waits for the end of the socket.
func (ps *parkedSandbox) tookIt() error {
	for end := time.Now().Add(ps.sb.host.startWithin); time.Now().Before(end); {
		_, _, err := unix.Recvfrom(ps.control, nil, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			<-time.After(50 * time.Microsecond)
		case err != nil:
			return errParkedGone // ECONNRESET
		default:
			return nil
		}
	}
	return errHung
}

// setLimits changes the limits of a parked sandbox. The error is errParkedGone if the sandbox
// has ended, since its group may already have another lessee, or if the group uses more memory
// than l.
func (s *Sandbox) setLimits(l Limits) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return errParkedGone
	}
	err := s.group.SetLimits(l.cgroup())
	if errors.Is(err, unix.EBUSY) {
		return errParkedGone // unusable: the caller drops the parked sandbox
	}
	return err
}
