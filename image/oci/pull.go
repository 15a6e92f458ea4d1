package oci

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/store"
)

// PullOptions adjust Pull.
type PullOptions struct {
	RegistryOptions
	Platform string // "linux/amd64"; "" is the engine's
	// Policy says which images have to be signed. A signed image is not foreign (store.TakeImage):
	// the holder of the key is trusted as much as a builder on this engine.
	Policy signature.Policy
}

// Pull gets the image of a reference from its registry ("busybox", docker.io's library;
// "host:5000/team/app:1.2"; "name@sha256:…"). It downloads layers in parallel, unpacks them as they
// arrive and skips layers that the store has. The image gets the reference's name, without
// docker.io/library. A pull by digest gives it no such name. Either way the image is known as
// "name@sha256:…" from then on, unless o.Nameless.
//
// Errors: ErrReference, ErrRegistry (fs.ErrNotExist and fs.ErrPermission by the registry's answer),
// ErrPlatform, ErrLayer, ErrLimit, ErrArchive, ErrSignature.
func Pull(ctx context.Context, s *store.Store, ref string, o PullOptions) (*store.Image, Remote, error) {
	img, remote, err := pull(ctx, s, ref, o)
	if err != nil {
		return nil, Remote{}, fmt.Errorf("pull %s: %w", ref, reason(ctx, err))
	}
	return img, remote, nil
}

func pull(ctx context.Context, s *store.Store, ref string, o PullOptions) (*store.Image, Remote, error) {
	defer s.Hold()()
	j := newJob(s, o.Options)
	src, own, r, found, err := j.find(ctx, ref, o)
	if err != nil {
		return nil, Remote{}, err
	}
	names := []string{remoteName(r, found.Digest)}
	if tag, ok := r.(name.Tag); ok {
		found.Name = Familiar(tag.Context().Name() + ":" + tag.TagStr())
		names = append(names, found.Name)
	}
	if o.Nameless {
		found.Name, names = "", nil
	}
	if own != nil {
		out, err := j.take(ctx, own, names)
		return out, found, err
	}
	out, err := j.bring(ctx, src, names)
	return out, found, err
}

// remoteImage is an image at a registry.
type remoteImage struct {
	name     name.Reference
	puller   *remote.Puller
	desc     *remote.Descriptor // of the reference: an index or a manifest
	image    v1.Image
	manifest *v1.Manifest
}

// get asks the registry for the manifest of a reference.
func (o PullOptions) get(ctx context.Context, ref string) (at remoteImage, err error) {
	r, options, err := o.open(ctx, ref)
	if err != nil {
		return at, err
	}
	at.name = r
	p, err := parsePlatform(o.Platform)
	if err != nil {
		return at, err
	}
	if at.puller, err = remote.NewPuller(append(options, remote.WithPlatform(p))...); err != nil {
		return at, err
	}
	err = o.again(ctx, func() (err error) {
		if at.desc, err = at.puller.Get(ctx, r); err != nil {
			return err
		}
		if at.image, err = at.desc.Image(); err != nil {
			at.image, err = otherwise(at.desc, p, err)
		}
		return err
	})
	if err != nil && lacksPlatform(at.desc, err) {
		return at, fmt.Errorf("%w: no image for %s", ErrPlatform, p)
	}
	if err != nil {
		return at, registryError(r.Context(), err)
	}
	return at, at.readManifest()
}

// readManifest reads the manifest and checks it against the limits.
func (at *remoteImage) readManifest() error {
	m, err := at.image.Manifest()
	if err != nil {
		return registryError(at.name.Context(), err)
	}
	if m.Config.Size < 0 || m.Config.Size > maxJSON || len(m.Layers) > maxLayers { // ggcr accepts any content for size -1
		return fmt.Errorf("%w: a configuration of %d bytes, %d layers", ErrLimit, m.Config.Size, len(m.Layers))
	}
	at.manifest = m
	return nil
}

// find asks the registry for the image of a reference: an artifact if FRE built the image. ctx must
// live until the layers are read.
func (j *job) find(ctx context.Context, ref string, o PullOptions) (src source, own *artifact, r name.Reference, found Remote, err error) {
	at, err := o.get(ctx, ref)
	if err != nil {
		return src, nil, nil, found, err
	}
	r, m := at.name, at.manifest
	found = Remote{Digest: store.Digest(at.desc.Digest.String()), Size: at.desc.Size}
	manifest, err := at.image.Digest()
	if err != nil {
		return src, nil, nil, found, registryError(r.Context(), err)
	}
	if j.trusted, err = o.verify(ctx, j, o.Policy, at.puller, r, string(found.Digest), manifest.String()); err != nil {
		return src, nil, nil, found, err
	}
	from, err := o.blobs(ctx, j, r)
	if err != nil {
		return src, nil, nil, found, err
	}
	if m.ArtifactType == mediaImage || string(m.Config.MediaType) == mediaManifest {
		own, err = j.remoteArtifact(ctx, from, m)
	} else {
		err = o.again(ctx, func() error {
			src, err = j.remote(from, at.image, m)
			return err
		})
	}
	return src, own, r, found, err
}

// otherwise returns the image of an index whose platform is a synonym of p, or failure.
func otherwise(desc *remote.Descriptor, p v1.Platform, failure error) (v1.Image, error) {
	if !lacksPlatform(desc, failure) {
		return nil, failure
	}
	index, err := desc.ImageIndex()
	if err != nil {
		return nil, err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range m.Manifests {
		if d.MediaType.IsImage() && d.Platform != nil && synonym(*d.Platform, p) {
			return index.Image(d.Digest)
		}
	}
	return nil, failure
}

// synonym reports whether a platform of an index means p.
func synonym(named, p v1.Platform) bool {
	return named.Architecture != "" && fits(named) && (p.Variant == "" || normal(named).Variant == p.Variant)
}

// lacksPlatform reports whether err is ggcr's error for an index without the
// platform.
func lacksPlatform(desc *remote.Descriptor, err error) bool {
	return desc != nil && desc.MediaType.IsIndex() && strings.Contains(err.Error(), "no child with platform")
}

// remote describes the image's configuration and layers at the registry.
func (j *job) remote(from *blobs, img v1.Image, m *v1.Manifest) (source, error) {
	if !m.Config.MediaType.IsConfig() {
		return source{}, fmt.Errorf("%w: the configuration has the type %q: not an image", ErrArchive, m.Config.MediaType)
	}
	var src source
	var err error
	if p, ok := j.store.Part(configKey(store.Digest(m.Config.Digest.String()))); ok {
		src.config, err = readConfig(j.store, p.Tree)
	} else if src.config, err = img.RawConfigFile(); err != nil { // checked against its digest
		err = registryError(from.repository, err)
	}
	if err != nil {
		return source{}, err
	}
	for _, l := range m.Layers {
		if l.Size < 0 || l.Size > j.limits.Bytes {
			return source{}, fmt.Errorf("%w of %d bytes: layer %s has %d packed bytes", ErrLimit, j.limits.Bytes, l.Digest, l.Size)
		}
		src.layers = append(src.layers, from.blob(l))
	}
	return src, nil
}

// remoteArtifact describes the parts of an image that FRE built at the registry.
func (j *job) remoteArtifact(ctx context.Context, from *blobs, m *v1.Manifest) (*artifact, error) {
	if err := checkArtifact(m, j.limits); err != nil {
		return nil, err
	}
	var config []byte
	err := from.blob(m.Config).read(ctx, func(r io.Reader) (err error) {
		config, err = io.ReadAll(r)
		return err
	})
	if err != nil {
		return nil, err
	}
	a, err := readArtifact(m, config, j.limits)
	if err != nil {
		return nil, err
	}
	for _, l := range m.Layers {
		a.layers = append(a.layers, from.blob(l))
	}
	return a, nil
}
