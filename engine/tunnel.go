package engine

import (
	"sync"
	"time"
)

// tunnels are the events of a function that last until one of their sides ends them.
type tunnels struct {
	mu    sync.Mutex
	all   map[*event]struct{}
	ended bool      // there are to be no more
	cutAt time.Time // nor of events that began before
}

// becomeTunnel takes the time limit from an event whose function has changed its
// protocol: from now on it lasts as long as both sides and the deployment.
func (ev *event) becomeTunnel() {
	ev.ctx.lift()
	ev.tunnel.Store(true)
	ev.leave(0) // what waits for its client for hours must not keep others from theirs
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

// end ends them all: nobody else would.
func (t *tunnels) end() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.cut()
}

// cut ends those there are, and what becomes one of an event that is under way.
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
