// Package build makes and keeps images: builds in turns, pulls, pushes, the garbage collection and
// the check of the store.
//
// [Library] has the images of the engine. [GCPolicy] selects images to remove.
//
// Lock order: Library.gcMu, cache.mu, live.Tenants.mu. Both are held during disk I/O.
package build

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// Config wires a Library. Required: Store, Builder, Volumes, Life, Boxes, Tenants, Holds, Users,
// Collected, Log and StateDir.
type Config struct {
	Store    *store.Store
	Builder  *image.Builder // Open sets Builder.Images if it is nil
	Volumes  *volume.Manager
	Life     *live.Life
	Boxes    *live.Table
	Tenants  *live.Tenants
	Holds    *live.Holds
	Log      *slog.Logger
	StateDir string // parent directory of cache/

	Users     func() map[store.Digest]string // images in use: digest → text for messages
	Collected func(*GCReport)                // called after each garbage collection

	BuildTime          time.Duration    // limit for all steps of a build, without the wait for its turn; default an hour
	ImageLimits        oci.Limits       // for loaded, imported and pulled images; defaults of package oci
	InsecureRegistries []string         // hosts reached without TLS, beside loopback
	Outward            outward.Rule     // destinations that tenants may have the engine connect to
	Signatures         signature.Policy // signatures required of pulled images
	GC                 GCConfig
}

// Library has the images of the engine. It is safe for use by several goroutines.
type Library struct {
	cfg     Config
	store   *store.Store
	outward *http.Transport // follows cfg.Outward
	cache   cache
	tenants sync.Map   // *builds by tenant
	gcMu    sync.Mutex // one garbage collection at a time; the first in the lock order
}

// Open opens the cache of builds. The caller runs Collect.
func Open(cfg Config) (*Library, error) {
	l := &Library{cfg: cfg, store: cfg.Store, outward: cfg.Outward.Transport()}
	if cfg.Builder.Images == nil {
		cfg.Builder.Images = bases{l}
	}
	return l, l.openCache()
}

// Close ends idle connections. No build may be under way.
func (l *Library) Close() { l.outward.CloseIdleConnections() }
