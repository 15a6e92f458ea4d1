package engine

import (
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/sandbox/pool"
	"github.com/fre-engine/fre/volume"
)

// maxScratches limits the layers kept ready: each takes 5 MB of disk.
const maxScratches = 8

// prepareScratches starts a pool of scratch layers for the first runs of containers, sized by
// recent demand. Only layers that are file systems of their own need the pool: making such a
// layer takes tens of milliseconds.
func (e *Engine) prepareScratches() {
	if e.volumes.Kind() != volume.Image {
		return
	}
	e.scratches = pool.New(pool.Config[*volume.Volume]{
		Name: "container layer", Max: maxScratches, Log: e.log,
		Make: func() (*volume.Volume, error) { return e.volumes.Prepare(volume.Limits{Bytes: container.ScratchBytes}) },
		Drop: func(v *volume.Volume) error { return e.volumes.Remove(v.Path()) },
	})
}

func (e *Engine) closeScratches() {
	if e.scratches != nil {
		e.scratches.Close()
	}
}
