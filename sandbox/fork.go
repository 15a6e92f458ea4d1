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

// A fork server is a sandbox (Spec.Forks > 0) whose program forks children that
// become sandboxes of their own:
//
//	engine                        server                  child
//	  │ Sandbox.Fork
//	  │ (channel, streams) ─────────▶│ unshare(pid), fork ──▶│
//	  │                              │       unshare(mnt, ipc, uts, net)
//	  │ ◀──────────────────────────────────────────── pidfd │ from the kernel
//	  │ Fork.Adopt: is it what it should be? cgroups, /proc, /tmp, loopback
//	  │ ────────────────────────────────────────── go on ──▶│ drops its capability
//
// Linux has no way to put another process into new namespaces: the child must
// be born in them, so that its parent needs CAP_SYS_ADMIN. The server has it in
// a user namespace nobody else uses; what it can do with it is make namespaces,
// up to a limit. The server has run the tenant's code and is taken to be
// hostile: nothing it says is believed, the kernel is asked.

// forkServer is what a Sandbox with Spec.Forks has beside the others.
type forkServer struct {
	userns *os.File
	base   uint32 // first host id of its range
	max    int    // forks at once

	mu     sync.Mutex
	closed bool
	own    []uint64        // inodes of the server's own namespaces, as in forkKinds
	live   map[uint64]bool // inodes of its forks' pidfds
	forks  int             // asked for or running
	idle   []*netns.Namespace
}

// Fork is leave for a fork server to make one child. Either Adopt or Cancel ends
// it.
type Fork struct {
	server *Sandbox
	netns  *netns.Namespace // nil: the child makes one
}

// ForkSpec says what a fork becomes that differs from its server.
type ForkSpec struct {
	ID     string // unique name; "" lets Adopt choose one
	Limits Limits // of the fork; Files is not looked at: it has the server's
}

// maxForks bounds Spec.Forks.
const maxForks = 4096

// forkKinds are the namespaces a fork has to itself. (Of cgroups it makes one
// when it has been moved into its own.)
var forkKinds = []uint{
	unix.PIDFD_GET_PID_NAMESPACE, unix.PIDFD_GET_MNT_NAMESPACE, unix.PIDFD_GET_NET_NAMESPACE,
	unix.PIDFD_GET_IPC_NAMESPACE, unix.PIDFD_GET_UTS_NAMESPACE,
}

// CanFork says why this kernel cannot have fork servers; nil if it can. They
// need the procfs option pidns and pidfds that tell exit status and namespaces:
// Linux 6.17.
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

// namespaces returns the inodes of forkKinds of pidfd's process, in order.
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

// ErrForks is what Fork returns when the server has as many forks as Spec.Forks
// allows.
var ErrForks = errors.New("fork server has all the forks it may have")

// errNotFork is why a process is not adopted: its server is hostile, or broken.
var errNotFork = errors.New("not a fork in new namespaces of its own")

// newForkServer makes what a fork server has beside the others.
func (h *Host) newForkServer(spec *Spec) (*forkServer, error) {
	// What forks have used goes a little after them.
	file, err := newUserns(h.program, spec.User.HostBase, 2*spec.Forks+16)
	if err != nil {
		return nil, fmt.Errorf("fork server of tenant %s: %w", spec.User.Tenant, err)
	}
	return &forkServer{userns: file, base: spec.User.HostBase, max: spec.Forks}, nil
}

// Fork asks leave for one more child of a fork server. [ErrForks];
// os.ErrProcessDone if the server has ended; EINVAL if it is no fork server.
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

// Network is the network namespace the child is to join (setns(2)), nil if it is
// to make one. It stays the Fork's. One that an earlier fork has left clean costs
// a microsecond, a new one a millisecond of the kernel's.
func (f *Fork) Network() *os.File {
	if f.netns == nil {
		return nil
	}
	return f.netns.File()
}

// Cancel gives up a fork that was not made. Its network namespace is not used
// again: who knows.
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

// close gives back what a fork server held that has ended.
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

// claim makes sure that pidfd's process is the first one of a pid namespace two
// below the server's, that it shares no namespace with the server, and that it is
// no fork already. (Between the pid namespaces lies the one the server has made
// for itself: it can return only to one that its user namespace owns.) A server
// that lies about which process is its new child gains nothing: it has power
// over them all in any case. It returns what tells this process from all others.
func (server *forkServer) claim(pidfd int, network *netns.Namespace) (process uint64, err error) {
	theirs, err := namespaces(pidfd)
	if err != nil {
		return 0, err
	}
	above, err := grandparent(pidfd)
	if err != nil {
		return 0, err
	}
	if above != server.own[0] || !first(pidfd) {
		return 0, errNotFork
	}
	for i := range theirs {
		if theirs[i] == server.own[i] {
			return 0, errNotFork
		}
	}
	if network != nil {
		given, err := inodeOf(int(network.File().Fd()))
		if err != nil {
			return 0, err
		}
		if theirs[2] != given {
			return 0, errNotFork
		}
	}
	if process, err = inodeOf(pidfd); err != nil { // never used twice
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

// grandparent returns the inode of the pid namespace two above that of pidfd's
// process; EPERM where there is none.
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

// first says whether pidfd's process is the first of its pid namespace: the last
// number of its line "NSpid:" is 1.
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

// Adopt makes a child of a fork server a sandbox: it takes the process that
// pidfd names, which waits, into a cgroup of its own and gives it a /proc, an
// empty /tmp and loopback. Then the child may go on. Adopt owns pidfd, which
// must come from the kernel (SCM_PIDFD). A child that cannot be adopted is killed. A
// child with threads or processes of its own leaves them behind in the server's
// cgroup.
//
// The sandbox ends with its server at the latest. Its ExitStatus tells signal
// and exit status as long as the server reaps its children.
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

// refuse kills what is not adopted and gives back what it was to have. It may
// take its time to end: the network namespace is not used again, and a cgroup is
// not before it is empty. A process of another sandbox, to which a hostile server
// has given its channel, is let be.
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

// adopt gives the child what a sandbox has of its own. The file returned is to
// wait for its end by.
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
	// The sandbox runs its tenant's code by now. It cannot see the visitor, which
	// stays in the engine's pid namespace; it cannot mount, so that the two names
	// lead nowhere else; and no symbolic link is followed.
	err = s.host.visitor.visit(s.pidfd, unix.CLONE_NEWNS, func() error {
		return errors.Join(attach(proc, "/proc"), attach(s.tmp, "/tmp"))
	})
	if err != nil {
		return nil, fmt.Errorf("mount /proc and /tmp: %w", err)
	}
	s.limits = l
	return pollable(s.pidfd)
}

// pollable returns a file of its own for pidfd that the runtime can wait for.
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

// reapWithin is how long a server may leave a dead child unreaped: it holds a
// cgroup as long.
const reapWithin = 5 * time.Second

// watch waits for the end of a fork, and of everything in its pid namespace: the
// kernel reports the first process last. A server that does not reap is killed.
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
			s.host.log.Warn("fork server does not reap its children and is killed", "sandbox", s.parent.id)
			s.parent.Kill()
			_ = pidfd.SetReadDeadline(time.Time{})
			over(unix.POLLHUP)
		}
	}
	s.status = ExitStatus{Code: -1, Signal: int(unix.SIGKILL)}
	if info.Mask&unix.PIDFD_INFO_EXIT != 0 {
		s.status = exitStatus(unix.WaitStatus(info.Exit_code))
	}
	// Nobody's rusage tells what a fork has used: its cgroup does.
	s.readUsage()
	if s.status.Code == 0 {
		s.status.OOMKilled = false
	}
	s.release()
	close(s.done)
}

// pollFor blocks until pidfd reports one of events, or its deadline.
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
