package engine

import (
	"sync"
	"time"
)

// tunnel is an event whose function has switched protocols. cancel ends the event.
type tunnel interface{ cancel(cause error) }

// tunnels are a function's events that last until one side ends them.
type tunnels struct {
	mu    sync.Mutex
	all   map[tunnel]struct{}
	ended bool      // no event becomes a tunnel any more
	cutAt time.Time // no event that began before cutAt becomes a tunnel
}

// add keeps an event until remove. It returns false if the event may not become a tunnel.
func (t *tunnels) add(ev tunnel, began time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || began.Before(t.cutAt) {
		return false
	}
	if t.all == nil {
		t.all = map[tunnel]struct{}{}
	}
	t.all[ev] = struct{}{}
	return true
}

func (t *tunnels) remove(ev tunnel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, ev)
}

// end ends all tunnels, and lets none begin.
func (t *tunnels) end() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.cut()
}

// cut ends the present tunnels, and every event under way that becomes a tunnel later.
func (t *tunnels) cut() {
	t.mu.Lock()
	t.cutAt = time.Now()
	all := t.all
	t.all = nil
	t.mu.Unlock()
	for ev := range all {
		ev.cancel(ErrClosed)
	}
}
