package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/image/sbom"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/store"
)

// Load stores the images of an archive, from docker save or an OCI layout. report is called from
// one goroutine at a time. Errors: those of [oci.Load].
func (l *Library) Load(ctx context.Context, r io.Reader, report func(image.Progress)) (images []*store.Image, err error) {
	err = l.cfg.Life.While(ctx, func(ctx context.Context) error {
		return l.writing(ctx, func(ctx context.Context) error {
			images, err = oci.Load(ctx, l.store, r, l.travel(report))
			return err
		})
	})
	l.imageDone(store.ActionLoad, "", images...)
	return images, err
}

// Save writes images as an archive that docker load and Load read. Errors: fs.ErrNotExist.
func (l *Library) Save(ctx context.Context, w io.Writer, refs []string) error {
	return l.cfg.Life.While(ctx, func(ctx context.Context) error {
		if err := oci.Save(ctx, l.store, w, refs, l.travel(nil)); err != nil {
			return err
		}
		for _, ref := range refs {
			if img, name, err := l.store.Find(ref); err == nil { // unless removed meanwhile
				l.imageDone(store.ActionSave, name, img)
			}
		}
		return nil
	})
}

// DiffIDs returns the diff ids of an image's layers: see [oci.DiffIDs].
func (l *Library) DiffIDs(ctx context.Context, img *store.Image) (ids []store.Digest, err error) {
	err = l.cfg.Life.While(ctx, func(ctx context.Context) error {
		ids, err = oci.DiffIDs(ctx, l.store, img)
		return err
	})
	return ids, err
}

// Import makes an image from a plain archive of a file system. Import sets o.Options. Errors:
// those of [oci.Import].
func (l *Library) Import(ctx context.Context, r io.Reader, o oci.ImportOptions, report func(image.Progress)) (img *store.Image, err error) {
	o.Options = l.travel(report)
	err = l.cfg.Life.While(ctx, func(ctx context.Context) error {
		return l.writing(ctx, func(ctx context.Context) error {
			img, err = oci.Import(ctx, l.store, r, o)
			return err
		})
	})
	if err == nil {
		l.imageDone(store.ActionImport, o.Name, img)
	}
	return img, err
}

// Pull pulls an image from its registry. auth may be nil (oci.RegistryOptions), platform empty.
// Errors: those of [oci.Pull].
func (l *Library) Pull(ctx context.Context, ref, platform string, auth *oci.Auth, report func(image.Progress)) (img *store.Image, remote oci.Remote, err error) {
	err = l.cfg.Life.While(ctx, func(ctx context.Context) error {
		l.cache.mu.RLock()
		defer l.cache.mu.RUnlock()
		return l.writing(ctx, func(ctx context.Context) error {
			img, remote, err = oci.Pull(ctx, l.store, ref, oci.PullOptions{
				RegistryOptions: l.registry(ctx, auth, report), Platform: platform, Policy: l.cfg.Signatures,
			})
			return err
		})
	})
	if err == nil {
		l.imageDone(store.ActionPull, pulledAs(ref), img)
	}
	return img, remote, err
}

// pulledAs returns the local name of a pulled image.
func pulledAs(ref string) string {
	r, err := store.ParseReference(ref)
	if err != nil {
		return ref
	}
	if r.Name = oci.Familiar(r.Name); r.Digest == "" {
		r.Version = cmp.Or(r.Version, "latest")
	}
	return r.String()
}

// PullFor is Pull for a tenant that wants to run the image. PullFor waits for a build's turn. The
// image must fit the tenant's quota, must not belong to another tenant, and takes no name from
// another tenant's image ([KeepNames]). drop removes the image if this call has pulled it and no
// caller has used it since. Errors: those of Pull, *[live.QuotaError], [ErrOthersImage].
func (l *Library) PullFor(ctx context.Context, tenant, ref string) (img *store.Image, drop func(context.Context) error, err error) {
	before := l.store.Images()
	err = l.cfg.Life.While(ctx, func(ctx context.Context) error {
		return l.Building(ctx, tenant, ref, nil, func(ctx context.Context) error {
			img, _, err = oci.Pull(KeepNames(ctx), l.store, ref, oci.PullOptions{RegistryOptions: l.registry(ctx, nil, nil), Policy: l.cfg.Signatures})
			return err
		})
	})
	if err != nil {
		return nil, nil, err
	}
	if slices.ContainsFunc(before, func(old *store.Image) bool { return old.Digest == img.Digest }) {
		return img, func(context.Context) error { return nil }, nil
	}
	l.imageDone(store.ActionPull, pulledAs(ref), img)
	brought := chosenImage{GCImage{Image: img}, l.store.LastUsed(img.Digest)}
	return img, func(ctx context.Context) error {
		_, _, err := l.removeUnused(ctx, brought)
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			err = nil
		}
		return err
	}, nil
}

// Push pushes the image ref to the registry in its name, or under the name to unless to is empty.
// Push sets o.RegistryOptions. Errors: those of [oci.Push], fs.ErrNotExist.
func (l *Library) Push(ctx context.Context, ref, to string, auth *oci.Auth, o oci.PushOptions, report func(image.Progress)) (remote oci.Remote, err error) {
	err = l.cfg.Life.While(ctx, func(ctx context.Context) error {
		img, name, err := l.store.Find(ref)
		if err != nil {
			return err
		}
		if to == "" {
			to = name
		}
		if to == "" {
			return fmt.Errorf("push %s: %w: a digest names no registry: give the image a name (fre image tag) and push the name", ref, oci.ErrReference)
		}
		o.RegistryOptions = l.registry(ctx, auth, report)
		if remote, err = oci.Push(ctx, l.store, img, to, o); err == nil {
			l.imageDone(store.ActionPush, pulledAs(to), img)
		}
		return err
	})
	return remote, err
}

// Resolve asks a registry for the digest of a reference and returns "name@sha256:…". Errors:
// those of [oci.Resolve].
func (l *Library) Resolve(ctx context.Context, ref string, auth *oci.Auth) (name string, err error) {
	err = l.cfg.Life.While(ctx, func(ctx context.Context) error {
		name, err = oci.Resolve(ctx, ref, l.registry(ctx, auth, nil))
		return err
	})
	return name, err
}

// AttachSignature stores a signature for an image at the image's registry. Errors: those of
// [oci.Attach].
func (l *Library) AttachSignature(ctx context.Context, ref string, payload []byte, sig string, auth *oci.Auth) error {
	return l.cfg.Life.While(ctx, func(ctx context.Context) error { return oci.Attach(ctx, ref, payload, sig, l.registry(ctx, auth, nil)) })
}

// Login checks a login at a registry. Errors: those of [oci.Login].
func (l *Library) Login(ctx context.Context, host string, auth *oci.Auth) error {
	return l.cfg.Life.While(ctx, func(ctx context.Context) error { return oci.Login(ctx, host, l.registry(ctx, auth, nil)) })
}

// SBOM returns an image's bill of materials, CycloneDX in JSON. Errors: fs.ErrNotExist.
func (l *Library) SBOM(ref string) ([]byte, error) {
	defer l.store.Hold()()
	img, err := l.store.Image(ref)
	if err != nil {
		return nil, err
	}
	return sbom.CycloneDX(l.store, img, l.cfg.Builder.Sites)
}

// History returns the build steps of an image, oldest first.
func (l *Library) History(ref string) ([]oci.Step, error) {
	defer l.store.Hold()()
	img, err := l.store.Image(ref)
	if err != nil {
		return nil, err
	}
	return oci.History(l.store, img)
}

func (l *Library) travel(report func(image.Progress)) oci.Options {
	return oci.Options{Limits: l.cfg.ImageLimits, Report: report}
}

func (l *Library) registry(ctx context.Context, auth *oci.Auth, report func(image.Progress)) oci.RegistryOptions {
	o := oci.RegistryOptions{
		Options: l.travel(report), Auth: auth, Insecure: l.cfg.InsecureRegistries, Sites: l.cfg.Builder.Sites, Cache: filepath.Join(l.cachePath(), "blobs"),
	}
	if outward.Of(ctx) != nil {
		o.Transport = l.outward // holds no connections of the operator's requests
	}
	return o
}

// ForTenant returns a context for a tenant's request: the engine connects only to addresses that
// Config.Outward allows. Without ForTenant a request counts as the operator's.
func (l *Library) ForTenant(ctx context.Context) context.Context {
	return outward.With(ctx, &l.cfg.Outward)
}
