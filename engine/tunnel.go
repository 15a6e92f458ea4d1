package engine

import (
	"sync"
	"time"
)

// tunnels are a function's events that last until one side ends them.
type tunnels struct {
	mu    sync.Mutex
	all   map[*event]struct{}
	ended bool      // no event becomes a tunnel any more
	cutAt time.Time // no event that began before cutAt becomes a tunnel
}

// becomeTunnel lifts the time limit of an event whose function has switched protocols. The event
// then lasts as long as both sides and the deployment.
func (ev *event) becomeTunnel() {
	ev.ctx.lift()
	ev.tunnel.Store(true)
	ev.leave(0) // a tunnel may idle for hours: give back its engine slot
	t := &ev.f.tunnels
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || ev.began.Before(t.cutAt) {
		ev.cancel(ErrClosed)
		return
	}
	if t.all == nil {
		t.all = map[*event]struct{}{}
	}
	t.all[ev] = struct{}{}
}

func (t *tunnels) remove(ev *event) {
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
