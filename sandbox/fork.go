package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/netns"
)

// A fork server is a sandbox (Spec.Forks > 0) whose program forks children that become
// sandboxes of their own:
//
//	engine                        server                  child
//	  │ Sandbox.Fork
//	  │ (channel, streams) ─────────▶│ unshare(pid), fork ──▶│
//	  │                              │       unshare(mnt, ipc, uts, net)
//	  │ ◀──────────────────────────────────────────── pidfd │ from the kernel
//	  │ Fork.Adopt: verify the child; cgroups, /proc, /tmp, loopback
//	  │ ────────────────────────────────────────── go on ──▶│ drops its capability
//
// Linux cannot move a process into a new pid namespace: the child must be born inside, so the
// parent needs CAP_SYS_ADMIN. The server has CAP_SYS_ADMIN in a user namespace of its own.
// There the capability allows the server only to make namespaces, up to a limit. The server has
// run the tenant's code, so the engine treats the server as hostile: the engine believes
// nothing the server says and asks the kernel.

// forkServer is the additional state of a sandbox with Spec.Forks.
type forkServer struct {
	userns *os.File
	base   uint32 // first host id of the server's range
	max    int    // most forks at once

	mu     sync.Mutex
	closed bool
	own    []uint64        // inodes of the server's own namespaces, in the order of forkKinds
	live   map[uint64]bool // inodes of the forks' pidfds
	forks  int             // requested or running
	idle   []*netns.Namespace
}

// Fork is the right of a fork server to make one child. The caller ends the right with Adopt or
// Cancel.
type Fork struct {
	server *Sandbox
	netns  *netns.Namespace // nil: the child makes a network namespace
}

// ForkSpec describes the differences of a fork from its server.
type ForkSpec struct {
	ID     string // unique name; "" lets Adopt choose one
	Limits Limits // limits of the fork; Files is ignored: the server's applies
}

// maxForks bounds Spec.Forks.
const maxForks = 4096

// forkKinds are the namespaces that a fork must not share. (A fork makes its cgroup namespace
// after the engine has moved the fork into its own cgroup.)
var forkKinds = []uint{
	unix.PIDFD_GET_PID_NAMESPACE, unix.PIDFD_GET_MNT_NAMESPACE, unix.PIDFD_GET_NET_NAMESPACE,
	unix.PIDFD_GET_IPC_NAMESPACE, unix.PIDFD_GET_UTS_NAMESPACE,
}

// CanFork returns nil if this kernel supports fork servers, else the reason. Fork servers need
// the procfs option pidns, and pidfds that tell exit status and namespaces: Linux 6.17.
func CanFork() error {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("open pidfd: %w", err)
	}
	defer unix.Close(pidfd)
	if err := unix.IoctlPidfdInfo(pidfd, &unix.PidfdInfo{Mask: unix.PIDFD_INFO_PID | unix.PIDFD_INFO_EXIT}); err != nil {
		return fmt.Errorf("pidfd information: %w", err)
	}
	mount, err := newProc(pidfd)
	if err != nil {
		return err
	}
	unix.Close(mount)
	return nil
}

// newProc returns a detached /proc of the pid namespace of pidfd's process.
func newProc(pidfd int) (int, error) {
	pidns, err := unix.IoctlRetInt(pidfd, unix.PIDFD_GET_PID_NAMESPACE)
	if err != nil {
		return -1, fmt.Errorf("open pid namespace: %w", err)
	}
	defer unix.Close(pidns)
	fd, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen proc: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.FsconfigSetString(fd, "subset", "pid"); err != nil {
		return -1, fmt.Errorf("proc subset=pid: %w", err)
	}
	if err := unix.FsconfigSetFd(fd, "pidns", pidns); err != nil {
		return -1, fmt.Errorf("proc of another pid namespace (Linux 6.17): %w", err)
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return -1, fmt.Errorf("create proc: %w", err)
	}
	mount, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC,
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsmount proc: %w", err)
	}
	return mount, nil
}

// namespaces returns the inodes of the namespaces of pidfd's process, in the order of
// forkKinds.
func namespaces(pidfd int) ([]uint64, error) {
	inodes := make([]uint64, len(forkKinds))
	for i, kind := range forkKinds {
		fd, err := unix.IoctlRetInt(pidfd, kind)
		if err != nil {
			return nil, fmt.Errorf("open namespace: %w", err)
		}
		inodes[i], err = inodeOf(fd)
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
	}
	return inodes, nil
}

func inodeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("stat: %w", err)
	}
	return st.Ino, nil
}

// ErrForks is the error of Fork if the server already has Spec.Forks forks.
var ErrForks = errors.New("fork server reached the limit of forks")

// errNotFork is the reason not to adopt a process: the server is hostile or broken.
var errNotFork = errors.New("not a fork in new private namespaces")

// newForkServer makes the additional state of a fork server.
func (h *Host) newForkServer(spec *Spec) (*forkServer, error) {
	// The namespaces of a fork end a little after the fork, so allow twice as many.
	file, err := newUserns(h.program, spec.User.HostBase, 2*spec.Forks+16)
	if err != nil {
		return nil, fmt.Errorf("fork server of tenant %s: %w", spec.User.Tenant, err)
	}
	return &forkServer{userns: file, base: spec.User.HostBase, max: spec.Forks}, nil
}

// Fork returns the right to make one more child of a fork server. The error is [ErrForks] at
// the limit, os.ErrProcessDone if the server has ended, and EINVAL if s is no fork server.
func (s *Sandbox) Fork() (*Fork, error) {
	server := s.server
	if server == nil {
		return nil, fmt.Errorf("sandbox %s is no fork server: %w", s.id, unix.EINVAL)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if server.closed {
		return nil, os.ErrProcessDone
	}
	if server.forks == server.max {
		return nil, fmt.Errorf("sandbox %s: %w", s.id, ErrForks)
	}
	if server.own == nil {
		s.mu.Lock()
		own, err := namespaces(s.pidfd)
		s.mu.Unlock()
		if err != nil {
			return nil, fmt.Errorf("sandbox %s: %w", s.id, err)
		}
		server.own, server.live = own, map[uint64]bool{}
	}
	server.forks++
	f := &Fork{server: s}
	if last := len(server.idle) - 1; last >= 0 {
		f.netns, server.idle = server.idle[last], server.idle[:last]
	}
	return f, nil
}

// Network returns the network namespace that the child must join (setns(2)); nil if the child
// must make one. The Fork owns the file. To join a clean namespace of an earlier fork costs a
// microsecond; to make one costs a millisecond in the kernel.
func (f *Fork) Network() *os.File {
	if f.netns == nil {
		return nil
	}
	return f.netns.File()
}

// Cancel ends the right to a fork that was not made. Cancel discards the network namespace,
// which the server may have used.
func (f *Fork) Cancel() {
	if f.netns != nil {
		_ = f.netns.Close()
	}
	f.server.server.forget(0, nil)
}

// forget ends one fork.
func (server *forkServer) forget(process uint64, network *netns.Namespace) {
	if network != nil && !network.Clean() {
		_ = network.Close()
		network = nil
	}
	server.mu.Lock()
	server.forks--
	delete(server.live, process)
	if network != nil && !server.closed {
		server.idle = append(server.idle, network)
		network = nil
	}
	server.mu.Unlock()
	if network != nil {
		_ = network.Close()
	}
}

// close releases the resources of a fork server that has ended.
func (server *forkServer) close() {
	server.mu.Lock()
	idle := server.idle
	server.closed, server.idle = true, nil
	server.mu.Unlock()
	for _, network := range idle {
		_ = network.Close()
	}
	_ = server.userns.Close()
}

// claim verifies pidfd's process: the process is the first in a pid namespace two below the
// server's, shares no namespace with the server, and is not a fork already. (The pid namespace
// in between is the server's own: the server can return only to a namespace that its user
// namespace owns.) A server that names the wrong process gains nothing, since the server has
// power over all its children anyway. The result identifies the process and is never reused.
func (server *forkServer) claim(pidfd int, network *netns.Namespace) (process uint64, err error) {
	if err := server.verify(pidfd, network); err != nil {
		return 0, err
	}
	if process, err = inodeOf(pidfd); err != nil { // never reused
		return 0, err
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	switch {
	case server.closed:
		return 0, os.ErrProcessDone
	case server.live[process]:
		return 0, errNotFork
	}
	server.live[process] = true
	return process, nil
}

// verify returns errNotFork unless pidfd's process stands where claim says, in the network given.
func (server *forkServer) verify(pidfd int, network *netns.Namespace) error {
	theirs, err := namespaces(pidfd)
	if err != nil {
		return err
	}
	above, err := grandparent(pidfd)
	if err != nil {
		return err
	}
	if above != server.own[0] || !first(pidfd) {
		return errNotFork
	}
	for i := range theirs {
		if theirs[i] == server.own[i] {
			return errNotFork
		}
	}
	if network == nil {
		return nil
	}
	given, err := inodeOf(int(network.File().Fd()))
	if err == nil && theirs[2] != given {
		err = errNotFork
	}
	return err
}

// grandparent returns the inode of the pid namespace two above that of pidfd's process. The
// error is EPERM if no such namespace exists.
func grandparent(pidfd int) (uint64, error) {
	fd, err := unix.IoctlRetInt(pidfd, unix.PIDFD_GET_PID_NAMESPACE)
	for range 2 {
		if err != nil {
			break
		}
		below := fd
		fd, err = unix.IoctlRetInt(below, unix.NS_GET_PARENT)
		unix.Close(below)
	}
	if err != nil {
		return 0, fmt.Errorf("open pid namespaces above: %w", err)
	}
	defer unix.Close(fd)
	return inodeOf(fd)
}

// first reports whether pidfd's process is the first in its pid namespace: the last number of
// the line "NSpid:" is 1.
func first(pidfd int) bool {
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return false
	}
	for line := range bytes.Lines(info) {
		if value, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			numbers := bytes.Fields(value)
			return len(numbers) > 1 && string(numbers[len(numbers)-1]) == "1"
		}
	}
	return false
}

// Adopt turns a child of a fork server into a sandbox. pidfd names the child, which waits
// meanwhile. Adopt moves the child into a cgroup of its own, and gives the child a /proc, an
// empty /tmp and loopback. Then the child may go on. Adopt owns pidfd, which must come from the
// kernel (SCM_PIDFD). If the adoption fails, Adopt kills the child. Other threads and processes
// of the child stay in the server's cgroup.
//
// The sandbox ends at the latest with its server. Its ExitStatus is correct as long as the
// server reaps its children.
func (f *Fork) Adopt(pidfd int, spec ForkSpec) (*Sandbox, error) {
	h := f.server.host
	s := h.newSandbox(StartForked)
	s.pidfd, s.parent, s.netns = pidfd, f.server, f.netns
	if err := h.register(s, spec.ID); err != nil {
		s.refuse()
		return nil, err
	}
	defer h.starting.Done()
	wait, err := s.adopt(spec.Limits)
	if err != nil {
		s.refuse()
		return nil, fmt.Errorf("adopt fork of sandbox %s: %w", f.server.id, err)
	}
	close(s.ready)
	h.ending.Go(func() { s.watch(wait) })
	return s, nil
}

// refuse kills a process that is not adopted, and releases its resources. Since the process may
// take a while to end, the network namespace is discarded; the pool reuses the cgroup only when
// empty. A hostile server may have passed its channel to a process of another sandbox: refuse
// does not kill such a process.
func (s *Sandbox) refuse() {
	if above, err := grandparent(s.pidfd); err == nil && above == s.parent.server.own[0] {
		s.Kill()
	}
	if s.netns != nil {
		_ = s.netns.Close()
		s.netns = nil
	}
	s.release()
}

// adopt gives the child the resources of a sandbox. The returned file becomes readable at the
// end of the child.
func (s *Sandbox) adopt(l Limits) (*os.File, error) {
	l.setDefaults()
	var err error
	if s.process, err = s.parent.server.claim(s.pidfd, s.netns); err != nil {
		return nil, err
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_PID}
	if err := unix.IoctlPidfdInfo(s.pidfd, &info); err != nil {
		return nil, fmt.Errorf("ask for the pid: %w", err)
	}
	s.group, err = s.host.cgroups.Acquire(l.cgroup())
	if err != nil {
		return nil, err
	}
	if err := s.group.Add(int(info.Tgid)); err != nil {
		return nil, err
	}
	proc, err := newProc(s.pidfd)
	if err != nil {
		return nil, err
	}
	defer unix.Close(proc)
	if s.tmp, err = newTmp(l.TmpBytes, l.TmpInodes, s.parent.server.base); err != nil {
		return nil, err
	}
	if s.netns == nil {
		err := s.host.visitor.visit(s.pidfd, unix.CLONE_NEWNET, func() (err error) {
			s.netns, err = netns.Adopt()
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	s.group.Watch(s.Kill, s.netns.Queued)
	// The sandbox already runs its tenant's code. The sandbox cannot see the visitor, which
	// stays in the engine's pid namespace. The sandbox cannot mount, so /proc and /tmp lead
	// nowhere else. attach follows no symbolic link.
	err = s.host.visitor.visit(s.pidfd, unix.CLONE_NEWNS, func() error {
		return errors.Join(attach(proc, "/proc"), attach(s.tmp, "/tmp"))
	})
	if err != nil {
		return nil, fmt.Errorf("mount /proc and /tmp: %w", err)
	}
	s.limits = l
	return pollable(s.pidfd)
}

// pollable returns a duplicate of pidfd that Go's poller can wait for.
func pollable(pidfd int) (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate pidfd: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set up pidfd: %w", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// reapWithin is the longest time that a server may leave a dead child unreaped. The dead child
// keeps its cgroup for as long.
const reapWithin = 5 * time.Second

// watch waits for the end of a fork and of its whole pid namespace: the kernel reports the
// first process last. watch kills a server that does not reap.
func (s *Sandbox) watch(pidfd *os.File) {
	defer pidfd.Close()
	info := unix.PidfdInfo{}
	over := func(events int16) bool {
		if err := pollFor(pidfd, events); err != nil {
			s.host.log.Error("sandbox's end not seen", "sandbox", s.id, "error", err)
			return true
		}
		info.Mask = unix.PIDFD_INFO_EXIT
		err := unix.IoctlPidfdInfo(s.pidfd, &info)
		return err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0
	}
	if !over(unix.POLLIN) {
		_ = pidfd.SetReadDeadline(time.Now().Add(reapWithin))
		if !over(unix.POLLHUP) {
			s.host.log.Warn("fork server killed: it does not reap its children", "sandbox", s.parent.id)
			s.parent.Kill()
			_ = pidfd.SetReadDeadline(time.Time{})
			over(unix.POLLHUP)
		}
	}
	s.status = ExitStatus{Code: -1, Signal: int(unix.SIGKILL)}
	if info.Mask&unix.PIDFD_INFO_EXIT != 0 {
		s.status = exitStatus(unix.WaitStatus(info.Exit_code))
	}
	// No rusage holds the usage of a fork; read the cgroup.
	s.readUsage()
	if s.status.Code == 0 {
		s.status.OOMKilled = false
	}
	s.release()
	close(s.done)
}

// pollFor blocks until pidfd reports one of events, or until its deadline.
func pollFor(pidfd *os.File, events int16) error {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var polled error
	err = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: events}}
		var n int
		n, polled = unix.Poll(p, 0)
		return polled != nil && !errors.Is(polled, unix.EINTR) || n > 0 && p[0].Revents&events != 0
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return errors.Join(err, polled)
}

func exitStatus(w unix.WaitStatus) ExitStatus {
	if w.Signaled() {
		return ExitStatus{Code: -1, Signal: int(w.Signal())}
	}
	return ExitStatus{Code: w.ExitStatus()}
}
