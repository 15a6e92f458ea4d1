package engine

import "github.com/fre-engine/fre/buffer"

// Holdings counts resources that the engine holds now.
type Holdings struct {
	Buffers   buffer.Stats
	Sandboxes int
	Cgroups   int // in use and ready
}

// Holdings returns the current counts.
func (e *Engine) Holdings() (Holdings, error) {
	e.boxes.mu.Lock()
	live := len(e.boxes.live)
	e.boxes.mu.Unlock()
	groups, err := e.cfg.Sandboxes.Cgroups()
	return Holdings{Buffers: e.buffers.Stats(), Sandboxes: live, Cgroups: groups}, err
}
