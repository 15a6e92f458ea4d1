package sandbox

import (
	"time"

	"golang.org/x/sys/unix"
)

// A sandbox that begins on one CPU keeps to it for pinnedFor, and then while the
// host is busy, as often as pinnedMore: a Go program has started within a
// millisecond and an interpreter within forty, but all of a burst would ask for
// their release in the midst of it.
const (
	pinnedFor  = 50 * time.Millisecond
	pinnedMore = 9
)

// unpinLater lets the sandbox use all of the engine's CPUs after a while.
func (s *Sandbox) unpinLater(more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return
	}
	s.unpin = time.AfterFunc(pinnedFor, func() {
		if more > 0 && s.host.Busy() {
			s.unpinLater(more - 1)
		} else {
			s.unpinNow()
		}
	})
}

// unpinNow widens all that runs in the sandbox by now: what began on one CPU has
// handed it on to its threads and children.
func (s *Sandbox) unpinNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return
	}
	seen := map[int]bool{}
	// A thread made meanwhile has its maker's CPUs: look until all have been seen.
	// One that starts others without end has had its makers widened by then.
	for range 8 {
		threads, err := s.group.Threads()
		if err != nil {
			s.host.log.Warn("sandbox keeps to one CPU", "sandbox", s.id, "error", err)
			return
		}
		found := false
		for _, tid := range threads {
			if !seen[tid] {
				seen[tid], found = true, true
				_ = unix.SchedSetaffinity(tid, &s.host.cpus) // ESRCH: it has ended
			}
		}
		if !found {
			return
		}
	}
}
