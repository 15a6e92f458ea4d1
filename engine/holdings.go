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
	groups, err := e.cfg.Sandboxes.Cgroups()
	return Holdings{Buffers: e.buffers.Stats(), Sandboxes: e.boxes.Len(), Cgroups: groups}, err
}
