package engine

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
)

// host holds the parts of the engine that its functions share: their instances, fork servers and
// parked interpreters need no more of the engine. Open sets the parts before any function exists.
type host struct {
	cfg       Config
	log       *slog.Logger
	metrics   *metrics
	boxes     *live.Table
	life      *live.Life
	tenants   *live.Tenants
	networks  live.Networks
	buffers   *buffer.Pool
	admission *admission.Controller
	slots     *slots
	explainer *image.Explainer
	forks     budget       // memory for fork servers
	received  atomic.Int64 // bytes of bodies that are read before their events take a slot
}

// budget limits the sum of the memory limits of all fork servers.
type budget struct {
	mu   sync.Mutex
	left int64 // bytes
}

var errNoRoom = errors.New("fork servers have used up their memory limit (fre serve --forks)")

func (b *budget) take(bytes int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if bytes > b.left {
		return errNoRoom
	}
	b.left -= bytes
	return nil
}

func (b *budget) give(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += bytes
}
