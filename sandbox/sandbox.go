// Package sandbox turns a [Spec] into an isolated process tree. Package sandbox knows nothing
// of images, functions and protocols.
//
// A small static C program, the spawner (sandbox/spawner), forks the sandboxes. The Go side
// prepares the objects that sandboxes join (cgroups, network and user namespaces, detached
// mounts), and passes them to the spawner as file descriptors. See docs/starts.md for the
// order and the cost of the operations.
package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/cgroup"
	"github.com/fre-engine/fre/sandbox/netns"
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

// Sandbox is one isolated process tree. Its methods are safe for concurrent use, even after the
// end of the sandbox. A sandbox frees all its resources when it ends.
type Sandbox struct {
	host   *shared
	id     string // "" while parked
	number uint64 // number in the protocol of the spawner
	kind   StartKind
	clock  *clock      // nil without Spec.Trace
	parked atomic.Bool // parked, waiting for use

	mounts  []Mount     // for the error of a failed step
	args0   string      // for the error of a failed step
	userns  *os.File    // the sandbox's own; nil if the tenant's
	base    uint32      // first host id of the sandbox's own range; 0 if the tenant's
	user    User        // identity of the processes
	limits  Limits      // in force; guarded by mu after the start
	server  *forkServer // only of a fork server
	parent  *Sandbox    // only of a fork: the fork server
	process uint64      // only of a fork: inode of its pidfd, never reused

	mu       sync.Mutex
	released bool             // release has run
	group    *cgroup.Group    // leased until the end
	network  lease            // leased until the end
	netns    *netns.Namespace // only of a fork
	pidfd    int              // -1 before the start and after the end
	tmp      int              // mount of /tmp; -1 after the end
	scratch  *scratchLayer    // scratch in memory; nil if none and after the end
	view     *procView        // with Spec.ProcFiles
	unpin    *time.Timer      // pending release to all CPUs
	killed   bool
	err      error // reason of a failed start
	pid      int

	ready  chan struct{} // closed after the start has succeeded or failed
	done   chan struct{} // closed after the end, when status is set
	status ExitStatus
}

// Stats is the current usage of a sandbox.
type Stats struct {
	MemoryBytes int64         // charge of the cgroup, which includes the files in /tmp
	MaxMemory   int64         // peak
	OOMKills    int64         // processes killed by the memory limit
	CPU         time.Duration // user and system time since the start
	Processes   int           // processes alive
	TmpBytes    int64         // used in /tmp
	TmpInodes   int64         // files and directories in /tmp

	// Written to a root with a Scratch in memory.
	ScratchBytes, ScratchInodes int64
}

// ID returns the sandbox's unique name.
func (s *Sandbox) ID() string { return s.id }

// Kind returns the kind of the start.
func (s *Sandbox) Kind() StartKind { return s.kind }

// Trace returns the steps of the start; nil without Spec.Trace.
func (s *Sandbox) Trace() []TraceStep {
	if s.clock == nil {
		return nil
	}
	return s.clock.marks
}

// Done returns a channel that is closed after the end of the whole process tree.
func (s *Sandbox) Done() <-chan struct{} { return s.done }

// Status waits for the end of the sandbox and returns the exit status.
func (s *Sandbox) Status() ExitStatus {
	<-s.done
	return s.status
}

// PID returns the first process's id in the engine's pid namespace. After the end PID returns
// the id only if an earlier call did, else 0.
func (s *Sandbox) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pidLocked()
}

func (s *Sandbox) pidLocked() int {
	if s.pid == 0 && s.pidfd >= 0 {
		s.pid = pidOf(s.pidfd)
	}
	return s.pid
}

// pidOf returns the id of a pidfd's process; 0 if the process is gone. Before Linux 6.13 the
// source is the line "Pid:" of fdinfo (pidfd_open(2)).
func pidOf(pidfd int) int {
	asked := unix.PidfdInfo{Mask: unix.PIDFD_INFO_PID}
	if unix.IoctlPidfdInfo(pidfd, &asked) == nil {
		return int(asked.Tgid)
	}
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(info) {
		if value, ok := bytes.CutPrefix(line, []byte("Pid:")); ok {
			pid, err := strconv.Atoi(string(bytes.TrimSpace(value)))
			if err != nil {
				return 0
			}
			return max(pid, 0)
		}
	}
	return 0
}

// Kill ends the whole tree with SIGKILL, without waiting. The first process is pid 1 of its
// namespace, and no process of the namespace outlives pid 1. Kill has no effect on an ended
// sandbox.
func (s *Sandbox) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killed = true
	if s.pidfd >= 0 {
		_ = unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0) // ESRCH: the process has ended
	}
}

// Signal sends sig to the first process. As pid 1, the process receives only SIGKILL and
// signals for which it has a handler. The error is os.ErrProcessDone if the process has ended.
func (s *Sandbox) Signal(sig unix.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pidfd < 0 {
		return os.ErrProcessDone
	}
	err := unix.PidfdSendSignal(s.pidfd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	if err != nil {
		return fmt.Errorf("signal sandbox %s: %w", s.id, err)
	}
	return nil
}

// memoryUsage returns the memory limit and the bytes in use, cached files included.
func (s *Sandbox) memoryUsage() (limit, used, cached int64, err error) {
	s.mu.Lock()
	limit = s.limits.MemoryBytes
	s.mu.Unlock()
	used, cached, err = s.group.Memory()
	return limit, used, cached, err
}

// Stats returns the current usage, by a few system calls. The error is os.ErrProcessDone if the
// sandbox has ended.
func (s *Sandbox) Stats() (Stats, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tmp < 0 {
		return Stats{}, os.ErrProcessDone
	}
	usage, err := s.group.Stats()
	if err != nil {
		return Stats{}, fmt.Errorf("stats of sandbox %s: %w", s.id, err)
	}
	processes, err := s.group.Processes()
	if err != nil {
		return Stats{}, fmt.Errorf("stats of sandbox %s: %w", s.id, err)
	}
	tmp, err := s.tmpSizeLocked()
	if err != nil {
		return Stats{}, fmt.Errorf("stats of sandbox %s: %w", s.id, err)
	}
	stats := Stats{
		MemoryBytes: usage.MemoryBytes,
		MaxMemory:   usage.MaxMemory,
		OOMKills:    usage.OOMKills,
		CPU:         usage.CPU,
		Processes:   len(processes),
		TmpBytes:    tmp.Bytes,
		TmpInodes:   tmp.Inodes,
	}
	if s.scratch != nil {
		scratch, err := s.scratch.size()
		if err != nil {
			return Stats{}, fmt.Errorf("stats of sandbox %s: %w", s.id, err)
		}
		stats.ScratchBytes, stats.ScratchInodes = scratch.Bytes, scratch.Inodes
	}
	return stats, nil
}

// Size returns the usage of /tmp and of a root with a Scratch in memory, by one system call for
// each. The cost does not depend on the number of files, since the file systems keep count. The
// error is os.ErrProcessDone if the sandbox has ended.
func (s *Sandbox) Size() (Size, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tmp < 0 {
		return Size{}, os.ErrProcessDone
	}
	size, err := s.tmpSizeLocked()
	if err == nil && s.scratch != nil {
		var scratch Size
		scratch, err = s.scratch.size()
		size.Bytes, size.Inodes = size.Bytes+scratch.Bytes, size.Inodes+scratch.Inodes
	}
	if err != nil {
		return Size{}, fmt.Errorf("size of sandbox %s: %w", s.id, err)
	}
	return size, nil
}

func (s *Sandbox) tmpSizeLocked() (Size, error) {
	size, err := sizeOf(s.tmp)
	size.Inodes-- // the root itself
	return size, err
}

// Tmp opens the sandbox's /tmp, as O_PATH. The contents exist at least until the caller closes
// the file. The error is os.ErrProcessDone if the sandbox has ended.
func (s *Sandbox) Tmp() (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tmp < 0 {
		return nil, os.ErrProcessDone
	}
	fd, err := unix.FcntlInt(uintptr(s.tmp), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/tmp of sandbox %s: %w", s.id, err)
	}
	return os.NewFile(uintptr(fd), "/tmp"), nil
}

// Processes lists the ids of the sandbox's processes in the engine's pid namespace. The error
// is os.ErrProcessDone if the sandbox has ended.
func (s *Sandbox) Processes() ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pidfd < 0 {
		return nil, os.ErrProcessDone
	}
	ids, err := s.group.Processes()
	if err != nil {
		return nil, fmt.Errorf("processes of sandbox %s: %w", s.id, err)
	}
	return ids, nil
}

// started records a successful start. The sandbox owns pidfd.
func (s *Sandbox) started(pidfd int) {
	s.mu.Lock()
	s.pidfd = pidfd
	killed := s.killed
	s.mu.Unlock()
	if killed {
		s.Kill()
	}
	close(s.ready)
}

// unreachable is started without a pidfd. The caller has the spawner kill the sandbox.
func (s *Sandbox) unreachable() {
	s.err = &StartError{Step: StepClone, Detail: "pidfd", Err: unix.EMFILE}
	close(s.ready)
}

func (s *Sandbox) failed(r report) {
	s.err = s.startError(r)
	s.release()
	close(s.ready)
}

func (s *Sandbox) startError(r report) error {
	e := &StartError{Step: r.Step, Err: unix.Errno(r.Error)}
	switch {
	case r.Step == StepExec:
		e.Detail = s.args0
	case r.Step == StepMount && int(r.Detail) < len(s.mounts):
		e.Detail = s.mounts[r.Detail].Target
	}
	return e
}

// exited handles the end of the sandbox in a goroutine of the host, since the spawner's reader
// must not wait.
func (s *Sandbox) exited(r report) {
	s.host.ending.Go(func() {
		select {
		case <-s.ready:
		default: // the spawner ended before its answer
			s.err = errSpawnerGone
			close(s.ready)
		}
		s.status = ExitStatus{
			Code:      int(r.Code),
			Signal:    int(r.Signal),
			CPU:       time.Duration(r.CPUUs) * time.Microsecond,
			MaxMemory: int64(r.MaxRSSKB) << 10,
		}
		// Read the cgroup only after a failure: in a burst, these reads would compete with
		// starts.
		if r.Code != 0 || r.Signal != 0 {
			s.readUsage()
		}
		s.release()
		close(s.done)
		if s.parked.Load() {
			s.host.replaceParked()
		}
	})
}

// readUsage adds the counters of the cgroup to the status.
func (s *Sandbox) readUsage() {
	s.mu.Lock()
	usage, err := s.group.Stats()
	s.mu.Unlock()
	if err != nil {
		s.host.log.Warn("sandbox usage not read", "sandbox", s.id, "error", err)
		return
	}
	s.status.OOMKilled = usage.OOMKills > 0
	s.status.CPU = max(usage.CPU, s.status.CPU)
	if usage.MaxMemory > 0 {
		s.status.MaxMemory = usage.MaxMemory
	}
}

// release releases all resources of the sandbox, after the end of its processes.
func (s *Sandbox) release() {
	if view := s.closeFiles(); view != nil {
		s.host.proc.remove(view)
	}
	if s.group != nil {
		s.host.cgroups.Release(s.group)
	}
	switch {
	case s.parent != nil:
		s.parent.server.forget(s.process, s.netns)
	case s.network.give != nil:
		s.network.give()
	}
	if s.userns != nil {
		_ = s.userns.Close()
	}
	if s.base != 0 {
		s.host.own.release(s.base)
	}
	if s.server != nil {
		s.server.close()
	}
	s.host.forget(s)
}

// closeFiles closes the sandbox's files, and returns the view of /proc to remove, nil for none.
func (s *Sandbox) closeFiles() *procView {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pidfd >= 0 {
		unix.Close(s.pidfd)
	}
	if s.tmp >= 0 {
		unix.Close(s.tmp)
	}
	if s.scratch != nil {
		unix.Close(s.scratch.fd)
	}
	s.pidfd, s.tmp, s.scratch, s.released = -1, -1, nil, true
	if s.unpin != nil {
		s.unpin.Stop()
	}
	return s.view
}

// errSpawnerGone is the error of a start if the spawner ended before its answer.
var errSpawnerGone = errors.New("spawner has ended")

// lease is the lease of a network namespace; the zero value is the host's network.
type lease struct {
	file   *os.File     // for setns(2); owned by the namespace
	give   func()       // ends the lease
	queued func() int64 // bytes in the namespace's netlink sockets
}
