package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// Build makes an image of the template in dir and returns it with the lock to
// write beside the template, once it is its tenant's turn. report is called from one
// goroutine at a time. Errors: those of the builder, *[QuotaError], [ErrBuildTime].
func (e *Engine) Build(ctx context.Context, dir *os.Root, report func(image.Event)) (img *store.Image, lock *image.Lock, err error) {
	err = e.while(ctx, func(ctx context.Context) error {
		t, err := image.TemplateIn(dir)
		if err != nil { // the builder says why, with what it has to say besides
			img, lock, err = e.cfg.Builder.Build(ctx, dir, report)
			return err
		}
		return e.building(ctx, t.Tenant, t.ID, report, func(ctx context.Context) error {
			img, lock, err = e.cfg.Builder.Build(ctx, dir, report)
			return err
		})
	})
	if err != nil {
		return nil, nil, err
	}
	return img, lock, nil
}

// Hold keeps the images that builds make and requests use from now on, until release is called:
// neither [Engine.GC] nor a prune removes one between its build and its deployment. Whoever
// builds an image in order to deploy or to name it holds before the build.
func (e *Engine) Hold() (release func()) { return e.cfg.Store.Hold() }

// Base builds the named base environment, or finds it in the local registry.
func (e *Engine) Base(ctx context.Context, name string, report func(image.Event)) (img *store.Image, err error) {
	err = e.while(ctx, func(ctx context.Context) error {
		e.cache.mu.RLock()
		defer e.cache.mu.RUnlock()
		return e.writing(ctx, func(ctx context.Context) error {
			img, err = e.cfg.Builder.Base(ctx, name, report)
			return err
		})
	})
	return img, err
}

// ImageList lists the local registry from memory, newest first, with the
// generation of its last change.
func (e *Engine) ImageList() ([]*store.Image, uint64) { return e.cfg.Store.ImageList() }

// Image finds an image by name, name:version, digest or a prefix of it.
func (e *Engine) Image(ref string) (*store.Image, error) { return e.cfg.Store.Image(ref) }

// TagImage gives an image one more name, "name:version" or "name" for version
// "latest", which another image loses. Errors: as of [Engine.Image], and
// store.ErrName.
func (e *Engine) TagImage(ctx context.Context, ref, name string) (*store.Image, error) {
	img, err := e.cfg.Store.Image(ref)
	if err != nil {
		return nil, err
	}
	return e.cfg.Store.Tag(ctx, img.Digest, name)
}

// ImageNameError says that an image has the name that a build's is to get, and is another
// tenant's, or nobody's.
type ImageNameError struct{ Name string }

func (e *ImageNameError) Error() string { return fmt.Sprintf("the image's name %s is taken", e.Name) }

// MayName refuses a name, "name:version", for an image that is to be a tenant's:
// *[ImageNameError]. What is free then may be another's when the image is made: so a build
// asks before it does any work, and runs under [KeepNames].
func (e *Engine) MayName(name, tenant string) error {
	img, err := e.cfg.Store.Image(name)
	if err == nil && ImageTenant(img) != tenant {
		return &ImageNameError{name}
	}
	return nil
}

// KeepNames returns a context for [Engine.Build], [Engine.TagImage] and [Engine.Pull] under
// which no name goes from one tenant's image to another's: *[ImageNameError].
func KeepNames(ctx context.Context) context.Context {
	return store.WithNaming(ctx, func(name string, from, to *store.Image) error {
		if ImageTenant(from) != ImageTenant(to) {
			return &ImageNameError{name}
		}
		return nil
	})
}

// Removed says what became of an image that was to be removed.
type Removed struct {
	Image    *store.Image // as it was
	Untagged []string     // names that are gone, and what registries call it
	Deleted  bool         // so is the image
}

// RemoveOptions adjust RemoveImage.
type RemoveOptions struct {
	Force bool // an image with several names may be removed by its digest
}

// ErrSeveralNames says that a digest stands for more names than one.
var ErrSeveralNames = errors.New("image has several names")

// RemoveImage takes an image's name away, and with its last name, or where ref
// is a digest, the image. What the registry of a name calls the image,
// "name@sha256:…", is a name as well, and goes with the last "name:version" of
// that registry's. What a function or a sandbox uses stays: store.ErrInUse.
func (e *Engine) RemoveImage(ctx context.Context, ref string, o RemoveOptions) (Removed, error) {
	img, name, err := e.cfg.Store.Find(ref)
	if err != nil {
		return Removed{}, err
	}
	all := slices.Concat(img.Names, img.Remotes)
	goes := all
	if r, err := store.ParseReference(ref); err == nil && slices.Contains(img.Remotes, store.Reference{Name: r.Name, Digest: r.Digest}.String()) {
		goes = []string{store.Reference{Name: r.Name, Digest: r.Digest}.String()}
	} else if name != "" {
		goes = namesWith(img, name)
	} else if len(img.Names) > 1 || len(img.Names) == 1 && len(namesWith(img, img.Names[0])) < len(all) {
		if !o.Force {
			return Removed{}, fmt.Errorf("remove image %s: %w: %s", ref, ErrSeveralNames, strings.Join(all, ", "))
		}
	}
	if len(goes) < len(all) {
		return Removed{Image: img, Untagged: goes}, e.cfg.Store.Untag(ctx, goes...)
	}
	e.awaitStopping(ctx, img.Digest)
	err = e.whileUnused(ref, img.Digest, func() error { return e.cfg.Store.RemoveImage(ctx, img.Digest) })
	return Removed{Image: img, Untagged: all, Deleted: true}, err
}

// DropImage removes an image that has no name once the sandboxes that run of it now have
// ended, however long that takes: those of a replaced revision may have an event yet. What
// is used then, or has a name, stays; so it does where the engine ends first, until
// images are pruned.
func (e *Engine) DropImage(digest store.Digest) error {
	if err := e.begin(); err != nil {
		return err
	}
	defer e.flight.Done()
	e.spawn(func() {
		for _, b := range e.boxes.all() {
			if b.digest != digest {
				continue
			}
			select {
			case <-b.gone:
			case <-e.life.Done():
				return
			}
		}
		img, err := e.cfg.Store.Image(string(digest))
		if err == nil && len(img.Names) == 0 {
			_, err = e.RemoveImage(e.life, string(digest), RemoveOptions{})
		}
		if err != nil && !errors.Is(err, store.ErrInUse) && !errors.Is(err, fs.ErrNotExist) && e.life.Err() == nil {
			e.log.Warn("image not removed", "image", digest, "error", err)
		}
	})
	return nil
}

// awaitStopping waits for the sandboxes of an image that are about to end, as those of a
// function are that has just been removed.
func (e *Engine) awaitStopping(ctx context.Context, d store.Digest) {
	ctx, cancel := context.WithTimeout(ctx, 2*stopGrace)
	defer cancel()
	for _, b := range e.boxes.all() {
		if s := b.state(); b.digest == d && (s == StateStopping || s == StateExited) {
			select {
			case <-b.gone:
			case <-ctx.Done():
				return
			}
		}
	}
}

// namesWith are the names of an image that go with one of them.
func namesWith(img *store.Image, name string) []string {
	repository := nameOnly(name)
	goes := []string{name}
	for _, other := range img.Names {
		if other != name && nameOnly(other) == repository {
			return goes
		}
	}
	for _, remote := range img.Remotes {
		if strings.HasPrefix(remote, repository+"@") {
			goes = append(goes, remote)
		}
	}
	return goes
}

// ImageSizes are what images take on disk, from memory.
func (e *Engine) ImageSizes() *store.Sizes { return e.cfg.Store.Sizes() }
