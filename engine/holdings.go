package engine

import "github.com/fre-engine/fre/buffer"

// Holdings are what the engine has out now.
type Holdings struct {
	Buffers   buffer.Stats
	Sandboxes int // live
	Cgroups   int // in use and ready
}

// Holdings counts them.
func (e *Engine) Holdings() (Holdings, error) {
	e.boxes.mu.Lock()
	live := len(e.boxes.live)
	e.boxes.mu.Unlock()
	groups, err := e.cfg.Sandboxes.Cgroups()
	return Holdings{Buffers: e.buffers.Stats(), Sandboxes: live, Cgroups: groups}, err
}
