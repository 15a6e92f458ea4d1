package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/cgroup"
)

// StartKind tells how much of a sandbox existed before its start.
type StartKind string

// The kinds of a start.
const (
	StartSpawner  StartKind = "spawner"  // nothing existed: the spawner made the whole sandbox
	StartBare     StartKind = "bare"     // a bare parked sandbox, for any image and tenant
	StartAttached StartKind = "attached" // a parked sandbox with this image, tenant and limits
	StartForked   StartKind = "forked"   // a fork of another sandbox's process
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
	return h.starts.Load() > 0 || monotonic()-h.lastStart.Load() < int64(20*time.Millisecond)
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
	if err := h.join(s, m, spec.limits()); err != nil {
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

func (h *Host) newSandbox(kind StartKind) *Sandbox {
	return &Sandbox{
		host: h, number: h.next.Add(1), kind: kind,
		pidfd: -1, tmp: -1, ready: make(chan struct{}), done: make(chan struct{}),
	}
}

// send sends a message to a spawner. After an error the caller releases s.
func (h *Host) send(s *Sandbox, m *startMessage) (*spawner, error) {
	sp, err := h.spawner(s.number)
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

// join adds the cgroups to a message.
func (h *Host) join(s *Sandbox, m *startMessage, l cgroup.Limits) (err error) {
	s.group, err = h.cgroups.Acquire(l)
	if err != nil {
		return err
	}
	m.header.FDCgroup = int16(len(m.fds))
	for _, f := range s.group.Files() {
		m.fd(int(f.Fd()))
		m.header.Cgroups++
	}
	if s.group.V2() {
		m.header.Flags |= flagCgroup2
	}
	return nil
}

func (spec *Spec) limits() cgroup.Limits {
	l := spec.Limits.cgroup()
	l.Background = spec.Background
	return l
}

func (l Limits) cgroup() cgroup.Limits {
	return cgroup.Limits{MemoryBytes: l.MemoryBytes, CPUMillis: l.CPUMillis, Pids: l.Pids}
}

// furnish adds all that distinguishes an attached parked sandbox from a bare one: network,
// mounts, identity. The message owns these objects until the sandbox does (own).
func (h *Host) furnish(s *Sandbox, m *startMessage, spec *Spec) error {
	user, base, err := h.furnishUser(s, m, spec)
	if err != nil {
		return err
	}
	if err := h.furnishNetwork(m, spec); err != nil {
		return err
	}
	s.mounts = h.mounts(spec)
	if err := h.furnishRoot(m, spec, s.mounts, user, base); err != nil {
		return err
	}
	if m.tmp, err = newTmp(spec.Limits.TmpBytes, spec.Limits.TmpInodes, base); err != nil {
		return err
	}
	m.undo = append(m.undo, func() { unix.Close(m.tmp) })
	m.fd(m.tmp)
	if err := h.furnishMounts(m, spec, s.mounts[2:], user, base); err != nil {
		return err
	}
	if len(spec.Secrets) > 0 {
		if err := m.secrets(spec, base); err != nil {
			return err
		}
		s.mounts = append(s.mounts, Mount{Target: secretsTarget})
	}
	if err := h.furnishProc(s, m, spec); err != nil {
		return err
	}
	for _, mount := range s.mounts {
		m.targets = append(m.targets, mount.Target)
	}
	m.host = spec.Hostname
	return nil
}

// furnishUser adds the user namespace, the ids and the rights of the program. It returns the
// namespace and its first id on the host.
func (h *Host) furnishUser(s *Sandbox, m *startMessage, spec *Spec) (*os.File, uint32, error) {
	user, base, err := h.identity(m, spec.User)
	if err == nil && spec.Forks > 0 {
		if s.server, err = h.newForkServer(spec); err == nil {
			user = s.server.userns
		}
	}
	if err != nil {
		return nil, 0, err
	}
	s.limits, s.user = spec.Limits, spec.User
	m.header.FDUserns = m.fd(int(user.Fd()))
	m.header.UID, m.header.GID = spec.User.UID, spec.User.GID
	m.header.NGroups = uint16(copy(m.header.Groups[:], spec.Groups))
	if spec.User.UID == 0 {
		m.header.Capabilities = spec.Capabilities
	}
	m.header.Filter = spec.filter()
	m.header.Flags |= spec.Without.flags()
	if spec.Forks > 0 {
		m.header.Flags |= flagForks
	}
	if spec.TTY {
		m.header.Flags |= flagTTY
	}
	return user, base, nil
}

func (h *Host) furnishNetwork(m *startMessage, spec *Spec) (err error) {
	if m.network, err = h.network(spec); err != nil {
		return err
	}
	if m.network.file != nil {
		m.undo = append(m.undo, m.network.give)
		m.header.FDNetns = m.fd(int(m.network.file.Fd()))
	}
	return nil
}

// mounts returns the mounts below the root, /dev and /tmp first.
func (h *Host) mounts(spec *Spec) []Mount {
	mounts := []Mount{{Target: "/dev"}, {Target: "/tmp"}}
	if spec.Work != "" {
		mounts = append(mounts, Mount{Source: spec.Work, Target: "/work", Writable: !spec.WorkReadOnly, Mapped: spec.WorkMapped})
	}
	mounts = append(mounts, spec.Mounts...)
	if spec.Network == NetworkEgress {
		mounts = append(mounts, Mount{Source: resolvConf(h.cfg.Dir), Target: "/etc/resolv.conf"})
	}
	return mounts
}

func (m *startMessage) secrets(spec *Spec, base uint32) error {
	fd, err := newSecrets(spec.Secrets, base+spec.User.UID, base+spec.User.GID)
	if err != nil {
		return err
	}
	m.trees = append(m.trees, fd)
	m.fd(fd)
	return nil
}

// furnishRoot adds the root, read-only or with a layer of its own, and /dev.
func (h *Host) furnishRoot(m *startMessage, spec *Spec, mounts []Mount, user *os.File, base uint32) (err error) {
	const bind, readonly = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, unix.MOUNT_ATTR_RDONLY
	if spec.Scratch == nil {
		m.header.FDRoot, err = m.tree(spec.Rootfs, spec.mountAttr(bind|readonly))
		if err == nil && spec.Opens != nil {
			err = spec.Opens.mark(m.trees[len(m.trees)-1])
		}
	} else {
		err = h.furnishScratch(m, spec, mounts, user, base)
	}
	if err != nil {
		return err
	}
	m.header.FDMount, err = m.tree(devDir(h.cfg.Dir), spec.mountAttr(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC|readonly))
	return err
}

// furnishMounts adds clones of mounts: /work and those of the Spec.
func (h *Host) furnishMounts(m *startMessage, spec *Spec, mounts []Mount, user *os.File, base uint32) error {
	owners, err := h.workOwners(spec, base)
	if err != nil {
		return err
	}
	if owners != nil {
		defer owners.Close()
	}
	for _, mount := range mounts {
		mapped := user
		if owners != nil && mount.Target == "/work" {
			mapped = owners
		}
		fd, err := mount.clone(spec.mountAttr(mount.attr()), mapped)
		if err != nil {
			return err
		}
		m.trees = append(m.trees, fd)
		m.fd(fd)
	}
	return nil
}

// furnishProc adds the files of /proc to the message if the Spec has them. The message owns the
// sandbox's view until the sandbox does (own).
func (h *Host) furnishProc(s *Sandbox, m *startMessage, spec *Spec) error {
	if !spec.ProcFiles {
		return nil
	}
	cpus := max(1, min((s.limits.CPUMillis+999)/1000, int64(h.cpus.Count())))
	view, mounts, trees, err := h.proc.add(s, cpus)
	if err != nil {
		return err
	}
	m.view = view
	m.undo = append(m.undo, func() { h.proc.remove(view) })
	for _, fd := range trees {
		m.trees = append(m.trees, fd)
		m.fd(fd)
	}
	s.mounts = append(s.mounts, mounts...)
	m.header.Flags |= flagProcFiles
	return nil
}

// workOwners returns a user namespace that maps the owner of /work on disk to the sandbox's
// user; nil if /work needs no such namespace. The caller closes the file.
func (h *Host) workOwners(spec *Spec, base uint32) (*os.File, error) {
	if spec.Work == "" || !spec.WorkMapped || spec.WorkOwner == 0 || spec.WorkOwner == spec.User.UID && spec.WorkOwner == spec.User.GID {
		return nil, nil
	}
	return newMappedUserns(h.program, idMap{spec.WorkOwner, base + spec.User.UID, 1}, idMap{spec.WorkOwner, base + spec.User.GID, 1}, 0)
}

// furnishScratch adds a writable root with the mount points of mounts.
func (h *Host) furnishScratch(m *startMessage, spec *Spec, mounts []Mount, user *os.File, base uint32) error {
	root, layer, err := h.scratchRoot(spec, mounts, user, base)
	if err != nil {
		return err
	}
	m.trees = append(m.trees, root)
	m.header.FDRoot = m.fd(root)
	if m.scratch = layer; layer != nil {
		m.undo = append(m.undo, func() { unix.Close(layer.fd) })
	}
	return nil
}

// execution adds the parts that are new in every start: program, environment, streams.
func (h *Host) execution(s *Sandbox, m *startMessage, spec *Spec) error {
	null := int16(-1)
	stream := func(f *os.File) int16 {
		if f == nil {
			return null
		}
		return m.fd(int(f.Fd())) // Fd sets the file to blocking, as programs expect
	}
	if spec.Stdin == nil || spec.Stdout == nil || spec.Stderr == nil {
		// Open /dev/null for each sandbox: two sandboxes with a common open file could signal
		// each other by its flags and owner (F_SETFL, F_SETOWN).
		fd, err := unix.Openat(int(h.devices.Fd()), "null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/null: %w", err)
		}
		m.trees = append(m.trees, fd)
		null = m.fd(fd)
	}
	m.header.FDStdin, m.header.FDStdout, m.header.FDStderr = stream(spec.Stdin), stream(spec.Stdout), stream(spec.Stderr)
	if spec.Channel != nil {
		m.header.FDChannel = m.fd(int(spec.Channel.Fd()))
	}
	m.header.Nofile = uint64(spec.Limits.Files)
	if spec.Pin {
		m.header.Flags |= flagPin
	}
	if spec.Trace {
		m.header.Flags |= flagTrace
	}
	m.args, m.env, m.dir = spec.Args, spec.Env, spec.Dir
	s.args0 = spec.Args[0]
	return nil
}

// tree adds a detached mount of path. The message owns the mount.
func (m *startMessage) tree(path string, attr uint64) (int16, error) {
	fd, err := cloneTree(path, attr)
	if err != nil {
		return -1, err
	}
	m.trees = append(m.trees, fd)
	return m.fd(fd), nil
}

// close releases the objects that the message owns.
func (m *startMessage) close() {
	for _, fd := range m.trees {
		unix.Close(fd)
	}
	for _, undo := range m.undo {
		undo()
	}
	m.trees, m.undo = nil, nil
}

// own moves the network, /tmp, the scratch layer, the view of /proc and the user namespace from
// the message to the sandbox. A parked sandbox may already have ended: then own returns false
// and the message keeps the objects.
func (s *Sandbox) own(m *startMessage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return false
	}
	s.network, s.tmp, s.scratch, s.view, s.userns, s.base = m.network, m.tmp, m.scratch, m.view, m.userns, m.base
	m.undo = nil
	return true
}

// clock records the times of the steps of a start; nil records nothing. All times are of
// CLOCK_MONOTONIC, as are the times reported by the sandbox.
type clock struct {
	began int64
	marks []TraceStep
}

// TraceStep is a step of a start and the time of its completion, since the begin of the start.
type TraceStep struct {
	Name string
	Done time.Duration
}

func newClock(wanted bool) *clock {
	if !wanted {
		return nil
	}
	return &clock{began: monotonic()}
}

func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // fails only for an unknown clock
	return ts.Nano()
}

func (c *clock) mark(name string) {
	if c != nil {
		c.marks = append(c.marks, TraceStep{name, time.Duration(monotonic() - c.began)})
	}
}

// sort orders the steps of both sides: the sandbox may finish a step before the engine records
// the message that caused it.
func (c *clock) sort() {
	if c != nil {
		slices.SortStableFunc(c.marks, func(a, b TraceStep) int { return cmp.Compare(a.Done, b.Done) })
	}
}

// add adds the times that the sandbox has recorded.
func (c *clock) add(r *traceReport) {
	if c == nil {
		return
	}
	for step, at := range r.Done {
		if at != 0 {
			c.marks = append(c.marks, TraceStep{Step(step).String(), time.Duration(int64(at) - c.began)})
		}
	}
}
