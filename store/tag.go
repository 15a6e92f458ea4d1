package store

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// Tag gives the image of that digest a further name, "name:version" or "name" for version
// "latest". An earlier image of that name loses the name. Errors: ErrName for a name outside of
// the grammar of registries, fs.ErrNotExist.
func (s *Store) Tag(ctx context.Context, d Digest, name string) (*Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := ParseReference(name)
	if err == nil {
		err = r.Check()
	}
	if err == nil && r.Digest != "" {
		err = fmt.Errorf("%w %q: a name cannot hold a digest", ErrName, name)
	}
	if err != nil {
		return nil, fmt.Errorf("tag %s: %w", d, err)
	}
	if r.Version == "" {
		r.Version = "latest"
	}
	k := tag{r.Name, r.Version}
	return s.nameImage(d, k.String(), s.meta.snap.Load().tags[k] == d, func(t *tx) error { return t.nameTag(ctx, k, d) })
}

// nameImage is the common part of Tag and TagRemote, after the check of the name.
func (s *Store) nameImage(d Digest, name string, has bool, put func(*tx) error) (img *Image, err error) {
	if img = s.meta.snap.Load().byDigest[d]; img != nil && has {
		return img, nil
	}
	err = s.meta.update(true, func(t *tx) error {
		if t.next.byDigest[d] == nil {
			return fs.ErrNotExist
		}
		err := put(t)
		img = t.next.byDigest[d]
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("tag %s as %s: %w", d, name, err)
	}
	return img, nil
}

// TagRemote notes "name@sha256:…" as a registry's name for the image of digest d: sha256:… is
// the digest of its manifest or index at the registry. Errors: ErrName, fs.ErrNotExist.
func (s *Store) TagRemote(ctx context.Context, d Digest, remote string) (*Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := ParseReference(remote)
	if err == nil {
		err = r.Check()
	}
	if err == nil && (r.Digest == "" || r.Version != "") {
		err = fmt.Errorf("%w %q: write name@sha256:…", ErrName, remote)
	}
	if err != nil {
		return nil, fmt.Errorf("tag %s: %w", d, err)
	}
	return s.nameImage(d, remote, s.meta.snap.Load().remotes[remote] == d, func(t *tx) error { return t.putRemote(remote, d) })
}

// Untag takes names off their images: "name:version" or a registry's "name@sha256:…". It takes
// all of them or, on an error, none. The images stay, even without a name. Errors:
// fs.ErrNotExist.
func (s *Store) Untag(ctx context.Context, names ...string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := s.meta.updateFreeing(true, func(t *tx) error {
		for _, name := range names {
			k := splitName(name)
			remote := strings.Contains(name, "@")
			var err error
			switch {
			case remote && t.next.remotes[name] != "":
				err = t.removeRemote(name)
			case !remote && t.next.tags[k] != "":
				err = t.removeTag(k)
			default:
				err = fs.ErrNotExist
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("untag %w", err)
	}
	return nil
}

// Image finds an image by "name" (version "latest", else the newest), "name:version", digest, a
// digest prefix of at least 6 digits with or without "sha256:", or "name@sha256:…". The last
// form holds the digest of an image with that name, or the digest that a registry has for the
// image. Errors: fs.ErrNotExist, ErrAmbiguous, ErrName.
func (s *Store) Image(ref string) (*Image, error) {
	img, _, err := s.Find(ref)
	return img, err
}

// minPrefix is the minimal length of a digest prefix, in digits.
const minPrefix = 6

// Find is [Store.Image] that also returns the name, "name:version", by which it found the image,
// or "" if ref is a digest.
func (s *Store) Find(ref string) (img *Image, name string, err error) {
	snap := s.meta.snap.Load()
	if img := snap.byDigest[Digest(ref)]; img != nil {
		return img, "", nil
	}
	digits, prefixed := strings.CutPrefix(ref, digestPrefix)
	if !prefixed {
		r, err := ParseReference(ref)
		if err != nil {
			return nil, "", fmt.Errorf("image %q: %w", ref, err)
		}
		if img, name = snap.named(r); img == nil && (r.Digest != "" || r.Version != "") {
			return nil, "", fmt.Errorf("image %q: %w", ref, fs.ErrNotExist)
		}
	}
	if img == nil {
		if img, err = snap.withPrefix(digits); err != nil {
			return nil, "", fmt.Errorf("image %q: %w", ref, err)
		}
	}
	return img, name, nil
}

// named returns the image that r names, and the name, "name:version", unless r holds a digest;
// nil if there is none. Without a version the name means "latest", else the newest image.
func (n *snapshot) named(r Reference) (*Image, string) {
	switch {
	case r.Digest != "":
		remote := Reference{Name: r.Name, Digest: r.Digest}.String()
		if img := n.byDigest[n.remotes[remote]]; img != nil {
			return img, ""
		}
		img := n.byDigest[r.Digest]
		if img == nil || !slices.ContainsFunc(img.Names, func(name string) bool { return splitName(name).name == r.Name }) {
			return nil, ""
		}
		return img, ""
	case r.Version != "":
		k := tag{r.Name, r.Version}
		return n.byDigest[n.tags[k]], k.String()
	}
	k := tag{r.Name, "latest"}
	if img := n.byDigest[n.tags[k]]; img != nil {
		return img, k.String()
	}
	for _, img := range n.images {
		for _, name := range img.Names {
			if splitName(name).name == r.Name {
				return img, name
			}
		}
	}
	return nil, ""
}

// withPrefix returns the image whose digest begins with the digits. Errors: fs.ErrNotExist,
// ErrAmbiguous.
func (n *snapshot) withPrefix(digits string) (img *Image, err error) {
	if len(digits) < minPrefix || !isHex(digits) {
		return nil, fs.ErrNotExist
	}
	for _, other := range n.images {
		if !strings.HasPrefix(other.Digest.hex(), digits) {
			continue
		}
		if img != nil {
			return nil, fmt.Errorf("%w: %s and %s", ErrAmbiguous, img.Digest, other.Digest)
		}
		img = other
	}
	if img == nil {
		return nil, fs.ErrNotExist
	}
	return img, nil
}

type namingKey struct{}

// WithNaming returns a context under which [Store.PutImage] and [Store.Tag] call may before a
// name moves from one image to another. may runs inside the transaction, so its answer cannot
// become outdated; it must not change the store. An error refuses the move, and PutImage or Tag
// returns it; an image made for the name is removed again.
func WithNaming(ctx context.Context, may func(name string, from, to *Image) error) context.Context {
	return context.WithValue(ctx, namingKey{}, may)
}

// nameTag is putTag with the check of WithNaming.
func (t *tx) nameTag(ctx context.Context, k tag, d Digest) error {
	may, ok := ctx.Value(namingKey{}).(func(name string, from, to *Image) error)
	if from := t.next.byDigest[t.next.tags[k]]; ok && from != nil && from.Digest != d {
		if err := may(k.String(), from, t.next.byDigest[d]); err != nil {
			return err
		}
	}
	return t.putTag(k, d)
}
