// Package oci makes images travel: docker archives, OCI layouts, plain
// archives and registries become images of the store, and the store's images
// become those again.
//
// A layer becomes one tree of the store, whiteouts included (store.Part.Diff),
// found again by the digest of its uncompressed archive, its *diff id*: an image
// that shares it neither downloads nor unpacks it. Beside its files a tree keeps
// the layer's *recipe*, what the archive holds around them, so that saving and
// pushing give the same bytes and the image keeps its id. The parts of an image
// that FRE built become layers made anew, the same each time.
//
//	archive, registry → source → layers in parallel: decompress → count, hash → tar → store.Writer
//	                             configuration    → image.Config, and as it is beside the layers
//
// What no sandbox may have does not come in: set-id bits, extended attributes,
// devices and fifos stay behind with a warning (and come back with the recipe), and
// paths and hard links that lead out of the layer are refused with [ErrLayer]. Of two
// entries of a path the last one counts, and links are followed inside the layer. Whatever
// fails leaves nothing but layers that are whole, which the next sweep takes.
package oci

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"sync/atomic"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/store"
)

// Errors callers tell apart; each is wrapped with what and where.
var (
	// ErrArchive: the input is no archive of images, or contradicts itself.
	ErrArchive = errors.New("not a sound image archive")
	// ErrLayer: a layer holds what no image may.
	ErrLayer = errors.New("layer refused")
	// ErrLimit: more bytes, entries or compression than [Limits] allow.
	ErrLimit = errors.New("image is over the limit")
	// ErrPlatform: the image is made for another system or processor.
	ErrPlatform = errors.New("image is for another platform")
	// ErrReference: not a name of an image in a registry.
	ErrReference = errors.New("malformed image reference")
	// ErrChange: not a Dockerfile instruction that changes a configuration.
	ErrChange = errors.New("malformed change")
	// ErrSignature: the image is not signed as the policy wants it.
	ErrSignature = signature.ErrSignature
	// ErrRegistry: the registry refused or cannot be reached.
	ErrRegistry = errors.New("registry")
)

// Limits bound what one call may unpack. Zero values mean the defaults.
type Limits struct {
	Bytes   int64 // of all files of an image, unpacked; default 32 GiB
	Entries int64 // files, directories and links of an image, implied directories too; default 2,000,000
	Names   int64 // bytes of their paths and of what links name, which are kept in memory; default 512 MiB
	Ratio   int64 // unpacked bytes to packed ones, beyond the first Free of a layer; default 200
	Free    int64 // bytes; default 1 GiB
}

func (l *Limits) setDefaults() {
	if l.Bytes == 0 {
		l.Bytes = 32 << 30
	}
	if l.Entries == 0 {
		l.Entries = 2_000_000
	}
	if l.Names == 0 {
		l.Names = 512 << 20
	}
	if l.Ratio == 0 {
		l.Ratio = 200
	}
	if l.Free == 0 {
		l.Free = 1 << 30
	}
}

// Options adjust what all calls do.
type Options struct {
	Limits Limits
	// Nameless: Load and Pull give the images no names.
	Nameless bool
	// Report is called by one goroutine at a time; nil: nobody listens. Steps:
	// "read", "layer", "warning", "link", "push".
	Report func(image.Event)
}

// maxJSON bounds each manifest and configuration, as registries do.
const maxJSON = 8 << 20

// maxLayers is far more than any builder makes (docker's overlay2: 128).
const maxLayers = 1000

// job is what the goroutines of one call share.
type job struct {
	store  *store.Store
	limits Limits
	// trusted: somebody whom this engine trusts vouches for what comes.
	trusted bool

	bytes, entries, names atomic.Int64 // unpacked so far

	mu     sync.Mutex // guards report and warned
	report func(image.Event)
	warned map[string]int
}

func newJob(s *store.Store, o Options) *job {
	o.Limits.setDefaults()
	return &job{store: s, limits: o.Limits, report: o.Report, warned: map[string]int{}}
}

func (j *job) event(e image.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.report != nil {
		j.report(e)
	}
}

// warn reports the first few of each kind.
func (j *job) warn(kind, path string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	const most = 3
	if j.warned[kind]++; j.report != nil && j.warned[kind] <= most {
		j.report(image.Event{Step: "warning", Name: path, Message: kind})
	}
}

// grow counts what is unpacked.
func (j *job) grow(entries, bytes int64) error {
	if n := j.entries.Add(entries); n > j.limits.Entries {
		return fmt.Errorf("%w of %d files and directories", ErrLimit, j.limits.Entries)
	}
	if n := j.bytes.Add(bytes); n > j.limits.Bytes || n < 0 {
		return fmt.Errorf("%w of %d bytes", ErrLimit, j.limits.Bytes)
	}
	return nil
}

// enter counts an entry of a layer, with the directories above it that the layer
// lacks: a short path of many elements makes many of them.
func (j *job) enter(w *store.Writer, h *tar.Header, name string) error {
	entries, names := int64(1), int64(len(name)+len(h.Linkname))
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if _, ok := w.Lookup(dir); ok {
			break
		}
		entries, names = entries+1, names+int64(len(dir))
	}
	if n := j.names.Add(names); n > j.limits.Names {
		return fmt.Errorf("%w of %d bytes of paths", ErrLimit, j.limits.Names)
	}
	return j.grow(entries, 0)
}

// counted is a reader that counts what passes against the limits.
type counted struct {
	r io.Reader
	j *job
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if over := c.j.grow(0, int64(n)); over != nil {
		return 0, over
	}
	return n, err
}
