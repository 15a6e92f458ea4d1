// Package oci moves images between the store and the outside: docker archives, OCI layouts, plain
// archives and registries become images of the store, and the store's images become archives and
// registry images again.
//
// A layer becomes one tree of the store, whiteouts included (store.Part.Diff). The store finds it
// by the digest of the uncompressed archive, its *diff id*: an image that shares a layer neither
// downloads nor unpacks it again. Beside its files a tree keeps the layer's *recipe*: the bytes of
// the archive around the files. With the recipe, saving and pushing give the same bytes and the
// image keeps its id. The parts of an image that FRE built become layers with the same bytes each
// time.
//
//	archive, registry → source → layers in parallel: decompress → count, hash → tar → store.Writer
//	                             configuration    → image.Config, and its bytes beside the layers
//
// Set-id bits, extended attributes, devices and fifos stay out of the tree, with a warning; the
// recipe keeps them. Paths and hard links that lead out of the layer are refused with [ErrLayer].
// Of two entries of a path the last counts, and links are followed inside the layer. A failed call
// leaves at most complete layers, and the next sweep removes them.
package oci

import (
	"archive/tar"
	"fmt"
	"io"
	"path"
	"sync"
	"sync/atomic"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/store"
)

// Errors that callers distinguish; each is wrapped with the object and the reason.
var (
	// ErrArchive: the input is no archive of images, or contradicts itself.
	ErrArchive = failure.New(failure.BadRequest, "not a sound image archive", "")
	// ErrLayer: a layer holds an entry that no image may hold.
	ErrLayer = failure.New(failure.BadRequest, "layer refused", "")
	// ErrLimit: more bytes, entries or compression than [Limits] allow.
	ErrLimit = failure.New(failure.TooLarge, "image is over the limit", "take a smaller image")
	// ErrPlatform: the image is made for another system or processor.
	ErrPlatform = failure.New(failure.WrongPlatform, "image is for another platform", "")
	// ErrReference: not a name of an image in a registry.
	ErrReference = failure.New(failure.BadRequest, "malformed image reference", "")
	// ErrChange: not a Dockerfile instruction that changes a configuration.
	ErrChange = failure.New(failure.BadRequest, "malformed change", "")
	// ErrSignature: the image lacks the signature that the policy requires.
	ErrSignature = signature.ErrSignature
	// ErrRegistry: the registry refused or cannot be reached.
	ErrRegistry = failure.New(failure.Registry, "registry", "")
)

// Limits bound the data that one call may unpack. Zero values mean the defaults.
type Limits struct {
	Bytes   int64 // of all files of an image, unpacked; default 32 GiB
	Entries int64 // files, directories and links of an image, implied directories too; default 2,000,000
	Names   int64 // bytes of paths and link targets, which stay in memory; default 512 MiB
	Ratio   int64 // unpacked bytes for each packed byte, beyond the first Free of a layer; default 200
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

// Options adjust all calls.
type Options struct {
	Limits Limits
	// Nameless: Load and Pull give the images no names.
	Nameless bool
	// Report receives progress, from one goroutine at a time; may be nil. Steps: "read", "layer",
	// "warning", "link", "push", "verify".
	Report func(image.Progress)
}

// maxJSON bounds each manifest and configuration, as registries do.
const maxJSON = 8 << 20

// maxLayers is far above the limits of builders (docker's overlay2: 128).
const maxLayers = 1000

// job is the state that the goroutines of one call share.
type job struct {
	store  *store.Store
	limits Limits
	// trusted: a party that this engine trusts has signed the image.
	trusted bool

	bytes, entries, names atomic.Int64 // unpacked until now

	mu     sync.Mutex // guards report and warned
	report func(image.Progress)
	warned map[string]int
}

func newJob(s *store.Store, o Options) *job {
	o.Limits.setDefaults()
	return &job{store: s, limits: o.Limits, report: o.Report, warned: map[string]int{}}
}

func (j *job) event(e image.Progress) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.report != nil {
		j.report(e)
	}
}

// warn reports the first few warnings of each kind.
func (j *job) warn(kind, path string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	const most = 3
	if j.warned[kind]++; j.report != nil && j.warned[kind] <= most {
		j.report(image.Progress{Step: "warning", Name: path, Message: kind})
	}
}

// grow counts unpacked entries and bytes against the limits.
func (j *job) grow(entries, bytes int64) error {
	if n := j.entries.Add(entries); n > j.limits.Entries {
		return fmt.Errorf("%w of %d files and directories", ErrLimit, j.limits.Entries)
	}
	if n := j.bytes.Add(bytes); n > j.limits.Bytes || n < 0 {
		return fmt.Errorf("%w of %d bytes", ErrLimit, j.limits.Bytes)
	}
	return nil
}

// enter counts an entry of a layer, with the parent directories that the layer lacks: a short path
// of many elements makes many directories.
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

// counted is a reader that counts bytes against the limits.
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
