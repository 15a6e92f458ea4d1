package engine

import (
	"sync"
	"time"
)

// tunnels are a function's events that last until one side ends them: their functions have
// switched protocols.
type tunnels struct {
	mu    sync.Mutex
	all   map[string]func(cause error) // by the event's name; ends the event
	ended bool                         // no event becomes a tunnel any more
	cutAt time.Time                    // no event that began before cutAt becomes a tunnel
}

// add keeps an event until remove. It returns false if the event may not become a tunnel.
func (t *tunnels) add(event string, began time.Time, cancel func(cause error)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || began.Before(t.cutAt) {
		return false
	}
	if t.all == nil {
		t.all = map[string]func(error){}
	}
	t.all[event] = cancel
	return true
}

func (t *tunnels) remove(event string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, event)
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
	for _, cancel := range all {
		cancel(ErrClosed)
	}
}
