package sandbox

import (
	"time"

	"golang.org/x/sys/unix"
)

// A pinned sandbox stays on one CPU for pinnedFor. While the host is busy, the pin lasts up to
// pinnedMore times longer: a Go program starts within a millisecond and an interpreter within
// forty, but all sandboxes of a burst would be released in the middle of the burst.
const (
	pinnedFor  = 50 * time.Millisecond
	pinnedMore = 9
)

// unpinLater schedules the release of the sandbox to all of the engine's CPUs.
func (s *Sandbox) unpinLater(more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return
	}
	s.unpin = time.AfterFunc(pinnedFor, func() {
		if more > 0 && s.host.busy() {
			s.unpinLater(more - 1)
		} else {
			s.unpinNow()
		}
	})
}

// unpinNow releases all threads of the sandbox. Threads and children inherit the pin, so the
// first process is not enough.
func (s *Sandbox) unpinNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return
	}
	seen := map[int]bool{}
	// A new thread inherits the CPUs of its creator: repeat until no new thread appears. Eight
	// rounds are enough even against endless creation, since by then the creators are released.
	for range 8 {
		threads, err := s.group.Threads()
		if err != nil {
			s.host.log.Warn("sandbox stays on one CPU", "sandbox", s.id, "error", err)
			return
		}
		found := false
		for _, tid := range threads {
			if !seen[tid] {
				seen[tid], found = true, true
				_ = unix.SchedSetaffinity(tid, &s.host.cpus) // ESRCH: the thread has ended
			}
		}
		if !found {
			return
		}
	}
}
