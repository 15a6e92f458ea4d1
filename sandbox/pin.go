package sandbox

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// pinnedFor is how long a sandbox that begins on one CPU keeps to it. A Go
// program has started within a millisecond, an interpreter within forty; in a
// burst all of them would ask for their release at once.
const pinnedFor = 50 * time.Millisecond

// unpinLater lets the sandbox use all of the engine's CPUs after a while.
func (s *Sandbox) unpinLater() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.released {
		s.unpin = time.AfterFunc(pinnedFor, s.unpinNow)
	}
}

func (s *Sandbox) unpinNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pidfd < 0 {
		return
	}
	// The directory stays the process's, whoever has its number later: what was
	// alive after it was opened is who is in it.
	dir, err := os.Open("/proc/" + strconv.Itoa(pidOf(s.pidfd)) + "/task")
	if err != nil {
		return
	}
	defer dir.Close()
	if unix.PidfdSendSignal(s.pidfd, 0, nil, 0) != nil {
		return
	}
	// A thread made meanwhile has its maker's CPUs: look until all have been seen.
	for seen := map[string]bool{}; ; {
		names, _ := dir.Readdirnames(-1)
		found := false
		for _, name := range names {
			if tid, err := strconv.Atoi(name); err == nil && !seen[name] {
				seen[name], found = true, true
				_ = unix.SchedSetaffinity(tid, &s.host.cpus) // ESRCH: it has ended
			}
		}
		if _, err := dir.Seek(0, 0); err != nil || !found {
			return
		}
	}
}
