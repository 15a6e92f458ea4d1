package sandbox

import (
	"fmt"
	"math"
	"sync"

	"golang.org/x/sys/unix"
)

// ranges allocates ranges of host ids to sandboxes with User.Own.
type ranges struct {
	first uint32

	mu   sync.Mutex
	next uint32   // number of ranges allocated so far
	free []uint32 // released ranges
}

func (r *ranges) acquire() (uint32, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.free); n > 0 {
		base := r.free[n-1]
		r.free = r.free[:n-1]
		return base, nil
	}
	base := r.first + r.next*idCount
	if base < r.first || base > math.MaxUint32-idCount {
		return 0, fmt.Errorf("no host ids left above %d: %w", r.first, unix.EAGAIN)
	}
	r.next++
	return base, nil
}

// release frees the range of a sandbox that has ended. Files that the sandbox left on disk have
// mapped ids, not ids of the range.
func (r *ranges) release(base uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = append(r.free, base)
}
