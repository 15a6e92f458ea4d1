package sandbox

import (
	"errors"
	"fmt"
	"os"
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

// ErrForks is the error of Fork if the server already has Spec.Forks forks.
var ErrForks = errors.New("fork server reached the limit of forks")

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
