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
	"sync/atomic"
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

// cache holds the downloads of builds: packages and indexes, verified at use. Any file may be
// missing, but none may vanish during a build.
type cache struct {
	mu     sync.RWMutex // builds hold it for reading; removal of the cache takes it whole, by TryLock
	volume atomic.Pointer[volume.Volume]
}

// Image finds an image by name, name:version, digest or a prefix of the digest.
func (l *Library) Image(ref string) (*store.Image, error) { return l.store.Image(ref) }

// ImageList returns the images of the store from memory, newest first, and the
// generation of the last change.
func (l *Library) ImageList() ([]*store.Image, uint64) { return l.store.ImageList() }

// ImageSizes returns the sizes of images on disk, from memory.
func (l *Library) ImageSizes() *store.Sizes { return l.store.Sizes() }

// Hold protects the images that are built or requested from now on until release is called:
// neither [Library.GC] nor a prune removes an image between build and deployment. Call Hold
// before a build whose image is to be deployed or named.
func (l *Library) Hold() (release func()) { return l.store.Hold() }
