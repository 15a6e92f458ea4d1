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

// Sandbox is one isolated process tree. Its methods may be called from any
// goroutine, also after its end. It frees everything by itself when it ends.
type Sandbox struct {
	host   *Host
	id     string // "" while it is a parked shell
	number uint64 // on the wire
	kind   StartKind
	clock  *clock      // nil unless the start is traced
	parked atomic.Bool // it is a shell that waits for its use

	mounts  []Mount     // for the names of failed steps
	args0   string      // likewise
	userns  *os.File    // its own; nil where it is the tenant's
	base    uint32      // first host id of its own range; 0 where it is the tenant's
	user    User        // who its processes are
	limits  Limits      // in force, guarded by mu once it has started
	server  *forkServer // of a fork server
	parent  *Sandbox    // of a fork: its server
	process uint64      // of a fork: inode of its pidfd, never used twice

	mu       sync.Mutex
	released bool             // what follows has been given back
	group    *cgroup.Group    // leased until the end
	network  lease            // likewise
	netns    *netns.Namespace // of a fork
	pidfd    int              // -1 before the start and after the end
	tmp      int              // the mount of /tmp; -1 after the end
	scratch  *scratchLayer    // in memory; nil for none and after the end
	view     *procView        // with Spec.ProcFiles
	unpin    *time.Timer      // pending release to all CPUs
	killed   bool
	err      error // why it did not start
	pid      int

	ready  chan struct{} // closed once it has started or failed
	done   chan struct{} // closed once it has ended and status is set
	status ExitStatus
}

// Stats is what a sandbox uses now.
type Stats struct {
	MemoryBytes int64         // of the cgroup: /tmp's contents count too
	MaxMemory   int64         // peak
	OOMKills    int64         // processes killed because the cgroup's memory was used up
	CPU         time.Duration // user and system, since its start
	Processes   int           // that are alive
	TmpBytes    int64         // used in /tmp
	TmpInodes   int64         // files and directories in /tmp

	// What was written to the root, of a Scratch in memory.
	ScratchBytes, ScratchInodes int64
}

// Size is what a sandbox holds in its own file systems in memory: blocks in use,
// not the lengths of files.
type Size struct {
	Bytes  int64
	Inodes int64 // files and directories
}

// ID returns the sandbox's unique name.
func (s *Sandbox) ID() string { return s.id }

// Kind says how it was started.
func (s *Sandbox) Kind() StartKind { return s.kind }

// Trace returns the steps of its start, if Spec.Trace asked for them.
func (s *Sandbox) Trace() []TraceStep {
	if s.clock == nil {
		return nil
	}
	return s.clock.marks
}

// Done is closed once the whole tree has ended.
func (s *Sandbox) Done() <-chan struct{} { return s.done }

// Status says how it ended; valid once Done is closed.
func (s *Sandbox) Status() ExitStatus {
	<-s.done
	return s.status
}

// PID returns the first process's id in the engine's pid namespace, 0 after
// its end if it was never asked for before.
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

// pidOf asks for a pidfd's process, or where the kernel cannot be asked (before
// 6.13) reads its "Pid:" line (pidfd_open(2)); 0 if the process is gone.
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

// Kill ends the whole tree with SIGKILL: the first process is pid 1 of its
// namespace, and nothing outlives that. It does not wait; a sandbox that has
// ended is left as it is.
func (s *Sandbox) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killed = true
	if s.pidfd >= 0 {
		_ = unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0) // ESRCH: it has ended
	}
}

// Signal sends sig to the first process. Being pid 1 it sees only signals it
// has handlers for, and SIGKILL. os.ErrProcessDone if it has ended.
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

// Stats reads what the sandbox uses, by a fixed few system calls.
// os.ErrProcessDone if it has ended.
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

// Size counts /tmp and what was written to the root, of a Scratch in memory: by
// one system call each, since their file systems count, whatever there is in
// them. os.ErrProcessDone if it has ended.
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

// Tmp opens the directory that is /tmp inside, as O_PATH; the caller closes it, and
// until then what is in there stays. os.ErrProcessDone if the sandbox has ended.
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

// Processes lists the sandbox's processes by their ids in the engine's pid
// namespace. os.ErrProcessDone if it has ended.
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

// started takes ownership of pidfd.
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

// unreachable is started without a pidfd: what was started is being killed.
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

// exited runs the end in a goroutine of the host's: the spawner's reader has
// other sandboxes to hear of.
func (s *Sandbox) exited(r report) {
	s.host.ending.Go(func() {
		select {
		case <-s.ready:
		default: // the spawner ended before it answered
			s.err = errSpawnerGone
			close(s.ready)
		}
		s.status = ExitStatus{
			Code:      int(r.Code),
			Signal:    int(r.Signal),
			CPU:       time.Duration(r.CPUUs) * time.Microsecond,
			MaxMemory: int64(r.MaxRSSKB) << 10,
		}
		// Only a bad end is worth the reads: in a burst they would compete with
		// the starts.
		if r.Code != 0 || r.Signal != 0 {
			s.readUsage()
		}
		s.release()
		close(s.done)
		if s.parked.Load() {
			s.host.shells.check() // another takes its place
		}
	})
}

// readUsage completes the status with what the cgroup has counted.
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

// release gives back what the sandbox held. Its processes are gone.
func (s *Sandbox) release() {
	s.mu.Lock()
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
	view := s.view
	s.mu.Unlock()
	if view != nil {
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
