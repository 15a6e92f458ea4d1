package store

import (
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/reference"
)

// ErrName is wrapped by every refusal of an image's name or reference.
var ErrName = reference.ErrName

// Errors of image references and removal.
var (
	// ErrAmbiguous: a digest prefix matches several images.
	ErrAmbiguous = failure.New(failure.Ambiguous, "ambiguous image reference", "give more characters of the digest")
	// ErrInUse: a function refers to the image.
	ErrInUse = failure.New(failure.InUse, "image is in use", "remove the function, or stop the sandbox, first")
)

// portPattern matches a registry with a port at the start of a name.
var portPattern = regexp.MustCompile(`^[^/:@\s]+:[0-9]{1,5}/`)

// Reference is a parsed reference to an image.
type Reference struct {
	Name    string // with the registry's host and port, if any
	Version string // "" if the reference has no version
	Digest  Digest // of "name@sha256:…", complete; "" if the reference has no digest
}

// ParseReference parses "name", "name:version", "name@sha256:…" or "name:version@sha256:…". The
// name may begin with a registry's host and port ("localhost:5000/team/app:1.2"). The version is
// the text after the last colon that follows the last slash. ParseReference accepts names that
// [Store.Tag] refuses: see [Reference.Check]. Errors: ErrName.
func ParseReference(ref string) (Reference, error) {
	name, version, digest, err := reference.Parse(ref)
	return Reference{name, version, Digest(digest)}, err
}

// Check refuses a name outside of the grammar of registries and docker. Errors: ErrName.
func (r Reference) Check() error { return reference.Check(r.Name, r.Version) }

// String returns the reference in its written form.
func (r Reference) String() string {
	s := r.Name
	if r.Version != "" {
		s += ":" + r.Version
	}
	if r.Digest != "" {
		s += "@" + string(r.Digest)
	}
	return s
}

// splitName splits "name:version".
func splitName(name string) tag {
	i := strings.LastIndexByte(name, ':')
	return tag{name[:max(i, 0)], name[i+1:]}
}

// String returns "name:version", or "" for no name.
func (k tag) String() string {
	if k == (tag{}) {
		return ""
	}
	return k.name + ":" + k.version
}

// setNames sets the names of the image: sorted, but Built first.
func (img *Image) setNames(names []string) {
	slices.Sort(names)
	if i, own := slices.BinarySearch(names, img.Built); own {
		copy(names[1:i+1], names[:i])
		names[0] = img.Built
	}
	img.Names, img.Name, img.Version = nil, "", ""
	if len(names) > 0 {
		k := splitName(names[0])
		img.Names, img.Name, img.Version = names, k.name, k.version
	}
}

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

// Find is [Store.Image] that also returns the name, "name:version", by which it found the image,
// or "" if ref is a digest.
func (s *Store) Find(ref string) (img *Image, name string, err error) {
	snap := s.meta.snap.Load()
	if img := snap.byDigest[Digest(ref)]; img != nil {
		return img, "", nil
	}
	unknown := func() (*Image, string, error) {
		return nil, "", fmt.Errorf("image %q: %w", ref, fs.ErrNotExist)
	}
	cut, prefixed := strings.CutPrefix(ref, digestPrefix)
	if !prefixed {
		r, err := ParseReference(ref)
		if err != nil {
			return nil, "", fmt.Errorf("image %q: %w", ref, err)
		}
		if r.Digest != "" {
			remote := Reference{Name: r.Name, Digest: r.Digest}.String()
			if img := snap.byDigest[snap.remotes[remote]]; img != nil {
				return img, "", nil
			}
			img := snap.byDigest[r.Digest]
			if img == nil || !slices.ContainsFunc(img.Names, func(name string) bool { return splitName(name).name == r.Name }) {
				return unknown()
			}
			return img, "", nil
		}
		if r.Version != "" {
			if img := snap.byDigest[snap.tags[tag{r.Name, r.Version}]]; img != nil {
				return img, ref, nil
			}
			return unknown()
		}
		if img := snap.byDigest[snap.tags[tag{r.Name, "latest"}]]; img != nil {
			return img, r.Name + ":latest", nil
		}
		for _, img := range snap.images {
			for _, name := range img.Names {
				if splitName(name).name == ref {
					return img, name, nil
				}
			}
		}
	}
	if len(cut) < minPrefix || !isHex(cut) {
		return unknown()
	}
	for _, other := range snap.images {
		if !strings.HasPrefix(other.Digest.hex(), cut) {
			continue
		}
		if img != nil {
			return nil, "", fmt.Errorf("image %q: %w: %s and %s", ref, ErrAmbiguous, img.Digest, other.Digest)
		}
		img = other
	}
	if img == nil {
		return unknown()
	}
	return img, "", nil
}
