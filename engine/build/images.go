package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/store"
)

// TagImage adds a name to an image: "name:version", or "name" for version "latest". Another
// image with this name loses the name. Errors: as of [Library.Image], and store.ErrName.
func (l *Library) TagImage(ctx context.Context, ref, name string) (*store.Image, error) {
	img, err := l.store.Image(ref)
	if err != nil {
		return nil, err
	}
	return l.store.Tag(ctx, img.Digest, name)
}

// ImageNameError says that another tenant's image, or an image without a tenant, has the
// requested name.
type ImageNameError struct{ Name string }

func (e *ImageNameError) Error() string { return fmt.Sprintf("the image's name %s is taken", e.Name) }

// Code returns [failure.NameTaken].
func (e *ImageNameError) Code() failure.Code { return failure.NameTaken }

// Next returns the user's next step.
func (e *ImageNameError) Next() string {
	return "change the template's id or version, or give a remote build's image another name"
}

// MayName returns an *[ImageNameError] if an image of tenant may not take name, "name:version".
// Another tenant may still take a free name before the image is made. So a build asks before it
// does any work, and runs under [KeepNames].
func (l *Library) MayName(name, tenant string) error {
	img, err := l.store.Image(name)
	if err == nil && ImageTenant(img) != tenant {
		return &ImageNameError{name}
	}
	return nil
}

// KeepNames returns a context for [Library.Build], [Library.TagImage] and [Library.Pull]. Under
// this context no name moves from one tenant's image to another tenant's: *[ImageNameError].
func KeepNames(ctx context.Context) context.Context {
	return store.WithNaming(ctx, func(name string, from, to *store.Image) error {
		if ImageTenant(from) != ImageTenant(to) {
			return &ImageNameError{name}
		}
		return nil
	})
}

// Removed is the result of a removal.
type Removed struct {
	Image    *store.Image // as before the removal
	Untagged []string     // removed names, and references at registries
	Deleted  bool         // the image itself is removed, too
}

// RemoveOptions configure RemoveImage.
type RemoveOptions struct {
	Force bool // remove an image with several names by its digest
}

// ErrSeveralNames says that a digest stands for an image with several names.
var ErrSeveralNames = failure.New(failure.InUse, "image has several names", "name the tag to remove, or remove the image with all tags (--force)")

// RemoveImage removes a name of an image. With the last name, or if ref is a digest, it removes
// the image. A reference at a registry, "name@sha256:…", counts as a name, and goes with the
// last "name:version" from the same repository. Error: store.ErrInUse if a function or a sandbox
// uses the image.
func (l *Library) RemoveImage(ctx context.Context, ref string, o RemoveOptions) (Removed, error) {
	img, name, err := l.store.Find(ref)
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
		return Removed{Image: img, Untagged: goes}, l.store.Untag(ctx, goes...)
	}
	l.awaitStopping(ctx, img.Digest)
	err = l.cfg.Holds.WhileUnused(ref, img.Digest, l.cfg.Users, func() error { return l.store.RemoveImage(ctx, img.Digest) })
	return Removed{Image: img, Untagged: all, Deleted: true}, err
}

// DropImage removes an image without a name after all sandboxes of the image that run now have
// ended. This may take long: instances of a replaced revision may still have events. An image
// that is in use or has a name then stays. If the engine ends first, the image stays until
// images are pruned.
func (l *Library) DropImage(digest store.Digest) error {
	if err := l.cfg.Life.Begin(); err != nil {
		return err
	}
	defer l.cfg.Life.Done()
	l.cfg.Life.Spawn(func() {
		for _, b := range l.cfg.Boxes.All() {
			if b.Digest != digest {
				continue
			}
			select {
			case <-b.Gone():
			case <-l.cfg.Life.Context().Done():
				return
			}
		}
		img, err := l.store.Image(string(digest))
		if err == nil && len(img.Names) == 0 {
			_, err = l.RemoveImage(l.cfg.Life.Context(), string(digest), RemoveOptions{})
		}
		if err != nil && !errors.Is(err, store.ErrInUse) && !errors.Is(err, fs.ErrNotExist) && l.cfg.Life.Context().Err() == nil {
			l.cfg.Log.Warn("image not removed", "image", digest, "error", err)
		}
	})
	return nil
}

// removeUnused removes an image unless it has been used since choose: much time may have passed.
func (l *Library) removeUnused(ctx context.Context, x chosenImage) (store.Swept, bool, error) {
	var swept store.Swept
	var gone bool
	err := l.cfg.Holds.WhileUnused(string(x.Image.Digest), x.Image.Digest, l.cfg.Users, func() (err error) {
		swept, gone, err = l.store.RemoveUnused(ctx, x.Image.Digest, x.used)
		return err
	})
	if errors.Is(err, store.ErrInUse) {
		err = nil
	}
	return swept, gone, err
}

// awaitStopping waits for the sandboxes of an image that are stopping, such as those of a
// function just removed.
func (l *Library) awaitStopping(ctx context.Context, d store.Digest) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	for _, b := range l.cfg.Boxes.All() {
		if s := b.State(); b.Digest == d && (s == live.StateStopping || s == live.StateExited) {
			select {
			case <-b.Gone():
			case <-ctx.Done():
				return
			}
		}
	}
}

// namesWith returns name and all references of the image that are removed with it.
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
