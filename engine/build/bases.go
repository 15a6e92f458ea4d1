package build

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/store"
)

// bases brings base images for builds. Builds hold l.cache.mu already.
type bases struct{ l *Library }

type loginsKey struct{}

// WithLogins returns a context for [Library.Build] with the caller's logins, by registry host
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
func (b bases) find(ref string, pinned store.Digest) (img *store.Image, digest store.Digest, ask string, err error) {
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
	if img, err := b.l.store.Image(r.String()); err == nil && ImageTenant(img) == "" && b.l.store.Use(img.Digest) {
		return img, cmp.Or(pinned, knownAs(img, r.Name)), ref, nil
	}
	return nil, pinned, ref, nil
}

// Pull implements image.Images.
func (b bases) Pull(ctx context.Context, ref string, pinned store.Digest, report func(image.Progress)) (*store.Image, store.Digest, error) {
	img, digest, ref, err := b.find(ref, pinned)
	if err != nil || img != nil {
		return img, digest, err
	}
	if b.l.tenantsName(ref) { // by digest: the tenant's image keeps the name
		if ref, err = oci.Resolve(ctx, ref, b.l.registry(ctx, nil, nil)); err != nil {
			return nil, "", err
		}
	}
	img, remote, err := oci.Pull(ctx, b.l.store, ref, oci.PullOptions{RegistryOptions: b.l.registry(ctx, nil, report), Policy: b.l.cfg.Signatures})
	return img, remote.Digest, err
}

// tenantsName reports whether a pull of ref would take the name of a tenant's own image.
func (l *Library) tenantsName(ref string) bool {
	r, err := store.ParseReference(ref)
	if err != nil || r.Digest != "" {
		return false
	}
	r.Name, r.Version = oci.Familiar(r.Name), cmp.Or(r.Version, "latest")
	img, err := l.store.Image(r.String())
	return err == nil && ImageTenant(img) != ""
}

// Resolve implements image.Images.
func (b bases) Resolve(ctx context.Context, ref string, pinned store.Digest) (string, error) {
	auth, err := login(ctx, ref)
	if err != nil || auth == nil {
		return "", err
	}
	img, pinned, ref, err := b.find(ref, pinned)
	if err != nil || img != nil {
		return "", err
	}
	name, err := oci.Resolve(ctx, ref, b.l.registry(ctx, auth, nil))
	if err == nil && pinned != "" && !strings.HasSuffix(name, "@"+string(pinned)) {
		err = fmt.Errorf("%w: asked for %s, the registry answered with %s", oci.ErrRegistry, ref, name)
	}
	return name, err
}

// Take implements image.Images.
func (b bases) Take(ctx context.Context, name string, report func(image.Progress)) (*store.Image, error) {
	auth, err := login(ctx, name)
	if err != nil {
		return nil, err
	}
	o := oci.PullOptions{RegistryOptions: b.l.registry(ctx, auth, report), Policy: b.l.cfg.Signatures}
	o.Nameless = true
	img, _, err := oci.Pull(ctx, b.l.store, name, o)
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
func (b bases) Load(ctx context.Context, r io.Reader, report func(image.Progress)) ([]*store.Image, error) {
	o := b.l.travel(report)
	o.Nameless = true
	return oci.Load(ctx, b.l.store, r, o)
}
