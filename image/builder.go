// Package image builds images from template directories. It reads the template, resolves and locks
// packages, and combines base, packages, bootstrap and code from the store's shared parts. A
// [Runtime] describes a language, a [Site] a source of packages.
package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Builder builds images from templates. It is safe for concurrent use; the caller sets the fields
// before the first call.
type Builder struct {
	Store    *store.Store // required
	Bases    []Base       // required
	Runtimes []Runtime    // required
	Sites    []Site       // sources of packages
	Run      Runner       // required if a base, runtime or site runs programs
	Git      Repository   // required for templates with code from git
	Settings Settings

	// Archive opens the Debian archive of a release by its codename; "" means Release. Builder
	// calls Archive once for each base environment it builds, and drops the archive afterwards,
	// because the index is large.
	Archive func(release string) (Archive, error)

	// Release is the codename of the default release of bases; "" if unknown.
	Release string

	Images Images // source of bases that FRE does not make; nil: none

	Log *slog.Logger // nil: discarded

	mu    sync.Mutex
	locks map[string]*keyLock // by image name: builds under way
}

// Archive is a source of Debian packages: *debian.Archive.
type Archive interface {
	Codename() string
	Resolve(ctx context.Context, roots, exclude []string) ([]debian.Package, error)
	ResolveOver(ctx context.Context, requests []string, installed map[string]string, exclude []string) ([]debian.Package, error)
	ResolveLibraries(ctx context.Context, sonames []string, installed map[string]string, exclude []string, has func(soname string) bool) ([]debian.Package, error)
	Find(ctx context.Context, name, version string) (debian.Package, error)
	Extract(ctx context.Context, p debian.Package, w debian.Writer, keep func(path string) bool) (skipped []string, err error)
	Unpack(ctx context.Context, pkgs []debian.Package, w debian.Writer, keep func(path string) bool, report func(name string, done, total int64)) error
}

// Parse reads a fret.yaml with the builder's bases, runtimes and sites, without comparing the
// template with them. Errors: [template.Errors].
func (b *Builder) Parse(name string, src []byte) (*template.Template, error) {
	return Dialect(b.Bases, b.Runtimes, b.Sites).Parse(name, src)
}

// Template reads the template in dir as [Builder.Parse] does. Errors also: fs.ErrNotExist without a
// fret.yaml.
func (b *Builder) Template(dir *os.Root) (*template.Template, error) {
	src, err := readSmall(dir, template.FileName, template.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: run the command in a function's directory, or create a function with fre new", err)
	}
	if err != nil {
		return nil, err
	}
	return b.Parse(template.FileName, src)
}

// buildOf is the state shared by the steps of one Build.
type buildOf struct {
	dir     *os.Root // the template's directory
	t       *template.Template
	base    *store.Image
	debs    map[string]string // Debian packages of the base and their versions
	release string            // of the base; "" for the host's release
	env     []string          // environment of a base that FRE did not make
	program string            // runs the function, in a base that FRE did not make
	left    *LeftOut          // of the base
	lock    *Lock             // the lock of this build
	labels  map[string]string // of the image

	programs []string // directories of links to the packages' programs: see [Programs]
	report   func(Progress)
}

// serial serialises calls of report, because a runtime may report from several goroutines.
func serial(report func(Progress)) func(Progress) {
	if report == nil {
		return func(Progress) {}
	}
	var mu sync.Mutex
	return func(e Progress) {
		mu.Lock()
		defer mu.Unlock()
		report(e)
	}
}

// runtime finds a runtime by name and contract; contract "" means fre.
func (b *Builder) runtime(name string, contract template.Contract) (Runtime, error) {
	for _, r := range b.Runtimes {
		if r.Name() != name {
			continue
		}
		if of := ofContract(r, contract); of != nil {
			return of, nil
		}
	}
	return nil, fmt.Errorf("unknown runtime %q for the contract %q", name, contract)
}

func (b *Builder) base(name string) (*Base, error) {
	for i := range b.Bases {
		if b.Bases[i].Name == name {
			return &b.Bases[i], nil
		}
	}
	return nil, fmt.Errorf("%w %q", ErrUnknownBase, name)
}

func (b *Builder) log() *slog.Logger {
	if b.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return b.Log
}

// keyLock serialises the builds of one key. The holder has taken the token from the channel.
type keyLock struct {
	users int
	token chan struct{}
}

// lock waits until no other build of key runs. A caller that waited looks into the store again,
// because the result is usually there now. It is not a singleflight, so that a waiter can take over
// when the first builder is cancelled.
func (b *Builder) lock(ctx context.Context, key string) (unlock func(), err error) {
	b.mu.Lock()
	if b.locks == nil {
		b.locks = map[string]*keyLock{}
	}
	l := b.locks[key]
	if l == nil {
		l = &keyLock{token: make(chan struct{}, 1)}
		l.token <- struct{}{}
		b.locks[key] = l
	}
	l.users++
	b.mu.Unlock()

	leave := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(b.locks, key)
		}
	}
	select {
	case <-l.token:
		return func() { l.token <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// Images brings ordinary images into the store. engine implements Images with package image/oci.
type Images interface {
	// Pull finds the image of a registry reference in the store, or pulls it. digest is the
	// registry's digest of the image. Unless empty, pinned is the required digest.
	Pull(ctx context.Context, ref string, pinned store.Digest, report func(Progress)) (img *store.Image, digest store.Digest, err error)

	// Resolve asks a registry for the digest of a reference, with the login that the build request
	// brought for the registry, and returns "name@sha256:…". It returns "" if the build brought no
	// login, or the store has the image by the name; Pull gets the image then.
	Resolve(ctx context.Context, ref string, pinned store.Digest) (name string, err error)

	// Take pulls the image that Resolve returned, with the same login, and gives it no name.
	Take(ctx context.Context, name string, report func(Progress)) (*store.Image, error)

	// Load reads an archive of images, and gives them no names.
	Load(ctx context.Context, r io.Reader, report func(Progress)) ([]*store.Image, error)
}

func (b *Builder) put(ctx context.Context, name, version string, parts []store.Part, config Config) (*store.Image, error) {
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	return b.Store.PutImage(ctx, store.Manifest{Name: name, Version: version, Parts: parts, Config: raw})
}

// find returns the newest image with the name and the same spec, or nil.
func (b *Builder) find(name, hash string) *store.Image {
	for _, img := range b.Store.Images() {
		if img.Name != name {
			continue
		}
		if c, err := ConfigOf(img); err == nil && c.Labels[LabelSpec] == hash && b.Store.Use(img.Digest) {
			return img
		}
	}
	return nil
}

// release returns the codename of ref's release.
func (b *Builder) release(ref template.BaseRef) string { return cmp.Or(ref.Release, b.Release) }
