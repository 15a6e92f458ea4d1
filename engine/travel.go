package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/image/sbom"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/store"
)

// Load stores the images of an archive, from docker save or an OCI layout. report is called from
// one goroutine at a time. Errors: those of [oci.Load].
func (e *Engine) Load(ctx context.Context, r io.Reader, report func(image.Event)) (images []*store.Image, err error) {
	err = e.life.While(ctx, func(ctx context.Context) error {
		return e.writing(ctx, func(ctx context.Context) error {
			images, err = oci.Load(ctx, e.cfg.Store, r, e.travel(report))
			return err
		})
	})
	e.imageDone(store.ActionLoad, "", images...)
	return images, err
}

// Save writes images as an archive that docker load and Load read. Errors: fs.ErrNotExist.
func (e *Engine) Save(ctx context.Context, w io.Writer, refs []string) error {
	return e.life.While(ctx, func(ctx context.Context) error {
		if err := oci.Save(ctx, e.cfg.Store, w, refs, e.travel(nil)); err != nil {
			return err
		}
		for _, ref := range refs {
			if img, name, err := e.cfg.Store.Find(ref); err == nil { // unless removed meanwhile
				e.imageDone(store.ActionSave, name, img)
			}
		}
		return nil
	})
}

// DiffIDs returns the diff ids of an image's layers: see [oci.DiffIDs].
func (e *Engine) DiffIDs(ctx context.Context, img *store.Image) (ids []store.Digest, err error) {
	err = e.life.While(ctx, func(ctx context.Context) error {
		ids, err = oci.DiffIDs(ctx, e.cfg.Store, img)
		return err
	})
	return ids, err
}

// Import makes an image from a plain archive of a file system. Import sets o.Options. Errors:
// those of [oci.Import].
func (e *Engine) Import(ctx context.Context, r io.Reader, o oci.ImportOptions, report func(image.Event)) (img *store.Image, err error) {
	o.Options = e.travel(report)
	err = e.life.While(ctx, func(ctx context.Context) error {
		return e.writing(ctx, func(ctx context.Context) error {
			img, err = oci.Import(ctx, e.cfg.Store, r, o)
			return err
		})
	})
	if err == nil {
		e.imageDone(store.ActionImport, o.Name, img)
	}
	return img, err
}

// Pull pulls an image from its registry. auth may be nil (oci.RegistryOptions), platform empty.
// Errors: those of [oci.Pull].
func (e *Engine) Pull(ctx context.Context, ref, platform string, auth *oci.Auth, report func(image.Event)) (img *store.Image, remote oci.Remote, err error) {
	err = e.life.While(ctx, func(ctx context.Context) error {
		e.cache.mu.RLock()
		defer e.cache.mu.RUnlock()
		return e.writing(ctx, func(ctx context.Context) error {
			img, remote, err = oci.Pull(ctx, e.cfg.Store, ref, oci.PullOptions{
				RegistryOptions: e.registry(ctx, auth, report), Platform: platform, Policy: e.cfg.Signatures,
			})
			return err
		})
	})
	if err == nil {
		e.imageDone(store.ActionPull, pulledAs(ref), img)
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
// caller has used it since. Errors: those of Pull, *[QuotaError], [ErrOthersImage].
func (e *Engine) PullFor(ctx context.Context, tenant, ref string) (img *store.Image, drop func(context.Context) error, err error) {
	before := e.cfg.Store.Images()
	err = e.life.While(ctx, func(ctx context.Context) error {
		return e.building(ctx, tenant, ref, nil, func(ctx context.Context) error {
			img, _, err = oci.Pull(KeepNames(ctx), e.cfg.Store, ref, oci.PullOptions{RegistryOptions: e.registry(ctx, nil, nil), Policy: e.cfg.Signatures})
			return err
		})
	})
	if err != nil {
		return nil, nil, err
	}
	if slices.ContainsFunc(before, func(old *store.Image) bool { return old.Digest == img.Digest }) {
		return img, func(context.Context) error { return nil }, nil
	}
	e.imageDone(store.ActionPull, pulledAs(ref), img)
	brought := chosenImage{GCImage{Image: img}, e.cfg.Store.LastUsed(img.Digest)}
	return img, func(ctx context.Context) error {
		_, _, err := e.removeUnused(ctx, brought)
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			err = nil
		}
		return err
	}, nil
}

// Push pushes the image ref to the registry in its name, or under the name to unless to is empty.
// Push sets o.RegistryOptions. Errors: those of [oci.Push], fs.ErrNotExist.
func (e *Engine) Push(ctx context.Context, ref, to string, auth *oci.Auth, o oci.PushOptions, report func(image.Event)) (remote oci.Remote, err error) {
	err = e.life.While(ctx, func(ctx context.Context) error {
		img, name, err := e.cfg.Store.Find(ref)
		if err != nil {
			return err
		}
		if to == "" {
			to = name
		}
		if to == "" {
			return fmt.Errorf("push %s: %w: a digest names no registry: give the image a name (fre image tag) and push the name", ref, oci.ErrReference)
		}
		o.RegistryOptions = e.registry(ctx, auth, report)
		if remote, err = oci.Push(ctx, e.cfg.Store, img, to, o); err == nil {
			e.imageDone(store.ActionPush, pulledAs(to), img)
		}
		return err
	})
	return remote, err
}

// Resolve asks a registry for the digest of a reference and returns "name@sha256:…". Errors:
// those of [oci.Resolve].
func (e *Engine) Resolve(ctx context.Context, ref string, auth *oci.Auth) (name string, err error) {
	err = e.life.While(ctx, func(ctx context.Context) error {
		name, err = oci.Resolve(ctx, ref, e.registry(ctx, auth, nil))
		return err
	})
	return name, err
}

// AttachSignature stores a signature for an image at the image's registry. Errors: those of
// [oci.Attach].
func (e *Engine) AttachSignature(ctx context.Context, ref string, payload []byte, sig string, auth *oci.Auth) error {
	return e.life.While(ctx, func(ctx context.Context) error { return oci.Attach(ctx, ref, payload, sig, e.registry(ctx, auth, nil)) })
}

// Login checks a login at a registry. Errors: those of [oci.Login].
func (e *Engine) Login(ctx context.Context, host string, auth *oci.Auth) error {
	return e.life.While(ctx, func(ctx context.Context) error { return oci.Login(ctx, host, e.registry(ctx, auth, nil)) })
}

// SBOM returns an image's bill of materials, CycloneDX in JSON. Errors: fs.ErrNotExist.
func (e *Engine) SBOM(ref string) ([]byte, error) {
	defer e.cfg.Store.Hold()()
	img, err := e.cfg.Store.Image(ref)
	if err != nil {
		return nil, err
	}
	return sbom.CycloneDX(e.cfg.Store, img)
}

// History returns the build steps of an image, oldest first.
func (e *Engine) History(ref string) ([]oci.Step, error) {
	defer e.cfg.Store.Hold()()
	img, err := e.cfg.Store.Image(ref)
	if err != nil {
		return nil, err
	}
	return oci.History(e.cfg.Store, img)
}

func (e *Engine) travel(report func(image.Event)) oci.Options {
	return oci.Options{Limits: e.cfg.ImageLimits, Report: report}
}

func (e *Engine) registry(ctx context.Context, auth *oci.Auth, report func(image.Event)) oci.RegistryOptions {
	o := oci.RegistryOptions{
		Options: e.travel(report), Auth: auth, Insecure: e.cfg.InsecureRegistries, Cache: filepath.Join(e.cachePath(), "blobs"),
	}
	if outward.Of(ctx) != nil {
		o.Transport = e.outward // holds no connections of the operator's requests
	}
	return o
}

// ForTenant returns a context for a tenant's request: the engine connects only to addresses that
// Config.Outward allows. Without ForTenant a request counts as the operator's.
func (e *Engine) ForTenant(ctx context.Context) context.Context {
	return outward.With(ctx, &e.cfg.Outward)
}

// buildImages brings base images for builds. Builds hold e.cache.mu already.
type buildImages struct{ e *Engine }

type loginsKey struct{}

// WithLogins returns a context for [Engine.Build] with the caller's logins, by registry host
// ("index.docker.io", "host:5000"), to pull the template's base image.
func WithLogins(ctx context.Context, logins map[string]*oci.Auth) context.Context {
	return context.WithValue(ctx, loginsKey{}, logins)
}

// login returns ctx's login for the registry of a reference, or nil.
func login(ctx context.Context, ref string) (*oci.Auth, error) {
	logins, _ := ctx.Value(loginsKey{}).(map[string]*oci.Auth)
	if len(logins) == 0 {
		return nil, nil
	}
	host, err := oci.Host(ref)
	return logins[host], err
}

// find looks up a reference in the store. ask is the reference for the registry, by digest if
// pinned. An image of a tenant's function never matches, whatever its name.
func (b buildImages) find(ref string, pinned store.Digest) (img *store.Image, digest store.Digest, ask string, err error) {
	r, err := store.ParseReference(ref)
	if err != nil {
		return nil, "", "", err
	}
	r.Name = oci.Familiar(r.Name)
	if image.ReservedName(r.Name) { // made by a build, perhaps with another caller's login
		return nil, "", "", fmt.Errorf("%w: %s is a name of FRE's own", oci.ErrReference, ref)
	}
	if r.Digest != "" {
		pinned, r.Version = r.Digest, ""
	}
	if pinned != "" {
		r.Version, r.Digest = "", pinned
		ref = r.Name + "@" + string(pinned)
	}
	if img, err := b.e.cfg.Store.Image(r.String()); err == nil && ImageTenant(img) == "" && b.e.cfg.Store.Use(img.Digest) {
		return img, cmp.Or(pinned, knownAs(img, r.Name)), ref, nil
	}
	return nil, pinned, ref, nil
}

// Pull implements image.Images.
func (b buildImages) Pull(ctx context.Context, ref string, pinned store.Digest, report func(image.Event)) (*store.Image, store.Digest, error) {
	img, digest, ref, err := b.find(ref, pinned)
	if err != nil || img != nil {
		return img, digest, err
	}
	if b.e.tenantsName(ref) { // by digest: the tenant's image keeps the name
		if ref, err = oci.Resolve(ctx, ref, b.e.registry(ctx, nil, nil)); err != nil {
			return nil, "", err
		}
	}
	img, remote, err := oci.Pull(ctx, b.e.cfg.Store, ref, oci.PullOptions{RegistryOptions: b.e.registry(ctx, nil, report), Policy: b.e.cfg.Signatures})
	return img, remote.Digest, err
}

// tenantsName reports whether a pull of ref would take the name of a tenant's own image.
func (e *Engine) tenantsName(ref string) bool {
	r, err := store.ParseReference(ref)
	if err != nil || r.Digest != "" {
		return false
	}
	r.Name, r.Version = oci.Familiar(r.Name), cmp.Or(r.Version, "latest")
	img, err := e.cfg.Store.Image(r.String())
	return err == nil && ImageTenant(img) != ""
}

// Resolve implements image.Images.
func (b buildImages) Resolve(ctx context.Context, ref string, pinned store.Digest) (string, error) {
	auth, err := login(ctx, ref)
	if err != nil || auth == nil {
		return "", err
	}
	img, pinned, ref, err := b.find(ref, pinned)
	if err != nil || img != nil {
		return "", err
	}
	name, err := oci.Resolve(ctx, ref, b.e.registry(ctx, auth, nil))
	if err == nil && pinned != "" && !strings.HasSuffix(name, "@"+string(pinned)) {
		err = fmt.Errorf("%w: asked for %s, the registry answered with %s", oci.ErrRegistry, ref, name)
	}
	return name, err
}

// Take implements image.Images.
func (b buildImages) Take(ctx context.Context, name string, report func(image.Event)) (*store.Image, error) {
	auth, err := login(ctx, name)
	if err != nil {
		return nil, err
	}
	o := oci.PullOptions{RegistryOptions: b.e.registry(ctx, auth, report), Policy: b.e.cfg.Signatures}
	o.Nameless = true
	img, _, err := oci.Pull(ctx, b.e.cfg.Store, name, o)
	return img, err
}

// knownAs returns the digest of an image at the registry of name, or "" if unknown.
func knownAs(img *store.Image, name string) store.Digest {
	for _, remote := range img.Remotes {
		if digest, ok := strings.CutPrefix(remote, name+"@"); ok {
			return store.Digest(digest)
		}
	}
	return ""
}

// Load implements image.Images.
func (b buildImages) Load(ctx context.Context, r io.Reader, report func(image.Event)) ([]*store.Image, error) {
	o := b.e.travel(report)
	o.Nameless = true
	return oci.Load(ctx, b.e.cfg.Store, r, o)
}
