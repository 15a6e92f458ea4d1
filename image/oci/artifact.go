package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// An image that FRE built is stored at a registry as an OCI artifact (OCI image-spec, manifest.md,
// "Guidelines for Artifact Usage"). The layers are the image's parts:
//
//	manifest   artifactType mediaImage
//	  config   mediaManifest: the store's manifest, byte for byte: its digest is the image's digest
//	  layers   mediaPart: one for each part of the image, in order (part.go)
//
// So the digest of the configuration fixes the trees, and their digests fix the files. The
// annotations serve people, oras and the check of the platform.
const (
	mediaImage    = "application/vnd.fre.image.v1+json"
	mediaManifest = "application/vnd.fre.manifest.v1+json"
	mediaPart     = "application/vnd.fre.part.v1.tar+zstd"

	annotationPlatform = "fre.platform" // "linux/amd64"
	annotationTitle    = "org.opencontainers.image.title"
)

// ordinary reports whether the image came from elsewhere. Such an image is sent unchanged.
func ordinary(img *store.Image) bool {
	c, err := image.ConfigOf(img)
	return err == nil && c.Container != nil
}

// artifact is an incoming image that FRE built.
type artifact struct {
	manifest store.Manifest
	raw      []byte // the image's digest is over these bytes
	layers   []blob // one for each of manifest.Parts
}

// readArtifact decodes a manifest of the type mediaImage and its configuration. Errors: ErrArchive,
// ErrPlatform, ErrLimit.
func readArtifact(m *v1.Manifest, config []byte, l Limits) (*artifact, error) {
	if err := checkArtifact(m, l); err != nil {
		return nil, err
	}
	a := &artifact{raw: config}
	d := json.NewDecoder(bytes.NewReader(config))
	d.DisallowUnknownFields()
	if err := d.Decode(&a.manifest); err != nil {
		return nil, fmt.Errorf("%w: the image's manifest: %w", ErrArchive, err)
	}
	canonical, err := json.Marshal(a.manifest)
	if err != nil || !bytes.Equal(canonical, config) {
		return nil, fmt.Errorf("%w: the image's manifest is not in canonical encoding", ErrArchive)
	}
	if len(a.manifest.Parts) != len(m.Layers) {
		return nil, fmt.Errorf("%w: %d layers, but the manifest names %d parts", ErrArchive, len(m.Layers), len(a.manifest.Parts))
	}
	return a, nil
}

// check refuses a manifest that no Builder makes.
func (a *artifact) check() error {
	c, err := image.ConfigOf(&store.Image{Manifest: a.manifest})
	if err == nil {
		err = c.Check()
	}
	if err == nil && c.Container != nil {
		err = errors.New("configuration of a foreign image")
	}
	if err != nil {
		return fmt.Errorf("%w: configuration: %w", ErrArchive, err)
	}
	return nil
}

// checkArtifact checks the manifest before the configuration is downloaded.
func checkArtifact(m *v1.Manifest, l Limits) error {
	if p := m.Annotations[annotationPlatform]; p != platform() {
		return fmt.Errorf("%w: the image is for %q, the engine runs %s: build the image for the engine's platform", ErrPlatform, p, platform())
	}
	if string(m.Config.MediaType) != mediaManifest {
		return fmt.Errorf("%w: the configuration of an image of FRE's has the type %q: the engine knows %s: upgrade the engine", ErrArchive, m.Config.MediaType, mediaManifest)
	}
	for i, d := range m.Layers {
		if string(d.MediaType) != mediaPart {
			return fmt.Errorf("%w: layer %d has the type %q: the engine knows %s", ErrArchive, i+1, d.MediaType, mediaPart)
		}
		if d.Size <= 0 || d.Size > l.Bytes {
			return fmt.Errorf("%w of %d bytes: layer %s has %d packed bytes", ErrLimit, l.Bytes, d.Digest, d.Size)
		}
	}
	return nil
}

// take brings an artifact into the store and gives it the names. If a name fails, the image is not
// kept.
func (j *job) take(ctx context.Context, a *artifact, names []string) (*store.Image, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	for _, n := range names {
		if image.ReservedName(n) {
			return nil, fmt.Errorf("%w: %s: the name is reserved for base environments: pull the image under another name, and tag the image to let builds use it", ErrReference, n)
		}
	}
	parts := make(map[store.Digest]int, len(a.layers)) // by tree: the last part with that tree
	for i, p := range a.manifest.Parts {
		parts[p.Tree] = i
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, p := range a.manifest.Parts {
		if parts[p.Tree] != i {
			continue
		}
		g.Go(func() error {
			if err := j.part(gctx, p, a.layers[i]); err != nil {
				return fmt.Errorf("part %d of %d (%s): %w", i+1, len(a.layers), partTitle(p), err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, reason(ctx, err)
	}
	j.event(image.Progress{Step: "link", Name: a.manifest.Name + ":" + a.manifest.Version})
	before := j.store.Images()
	img, err := j.store.TakeImage(ctx, a.manifest, !j.trusted)
	switch {
	case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrNotLayer), errors.Is(err, store.ErrPath), errors.Is(err, store.ErrName):
		return nil, fmt.Errorf("%w: the parts form no image: %w", ErrArchive, err)
	case err != nil:
		return nil, err
	case img.Digest != digestOf(a.raw):
		err = fmt.Errorf("%w: the image's digest is %s, but the configuration's digest is %s", ErrArchive, img.Digest, digestOf(a.raw))
	default:
		if img, err = j.name(ctx, img, names); err == nil {
			return img, nil
		}
	}
	j.forget(ctx, before, []*store.Image{img})
	return nil, err
}

// part finds a part's tree in the store, or unpacks it.
func (j *job) part(ctx context.Context, p store.Part, l blob) error {
	title := partTitle(p)
	if j.store.HasTree(p.Tree) {
		j.event(image.Progress{Step: "layer", Name: title, Message: "already here", End: true})
		return nil
	}
	err := l.read(ctx, func(r io.Reader) error {
		progress := &progress{r: r, j: j, e: image.Progress{Step: "layer", Name: title, Message: "unpack", Total: l.size, Unit: image.UnitBytes}}
		if err := j.unpackPart(ctx, p.Tree, progress); err != nil {
			return err
		}
		// The digest covers the bytes after the last file too.
		if _, err := io.Copy(io.Discard, progress); err != nil {
			return err
		}
		progress.end()
		return nil
	})
	if err != nil {
		return err
	}
	return j.remember(ctx, partKey(p.Tree), p.Tree, *l.packed)
}

// partKey names a tree's archive in the store's memory, as a diff id names a layer's.
func partKey(tree store.Digest) string { return "part:" + string(tree) }

// partTitle is a part's name for people and for file names.
func partTitle(p store.Part) string {
	words := slices.DeleteFunc([]string{p.Kind, p.Name, p.Version}, func(s string) bool { return s == "" })
	return strings.ReplaceAll(strings.Join(words, "-"), "/", "-")
}

// outgoingArtifact describes the parts' archives.
func (j *job) outgoingArtifact(ctx context.Context, img *store.Image) (*outgoing, error) {
	raw, err := j.store.ManifestBytes(img.Digest)
	if err != nil {
		return nil, err
	}
	out := &outgoing{img: img, config: raw, artifact: true}
	for _, p := range img.Parts {
		l := packing{key: partKey(p.Tree), title: partTitle(p), tree: p.Tree, media: mediaPart, write: archiveOf(func(ctx context.Context, w *tar.Writer) error {
			return j.packPart(ctx, w, p.Tree)
		})}
		if l.size, err = j.partSize(p.Tree); err != nil {
			return nil, err
		}
		out.layers = append(out.layers, l)
	}
	return out, nil
}

// partSize estimates the size of a part's archive, for progress.
func (j *job) partSize(tree store.Digest) (n int64, err error) {
	t, err := j.store.Tree(tree)
	if err != nil {
		return 0, err
	}
	for e := range t.Objects() {
		n += (e.Size+511)&^511 + 512
	}
	return n, nil
}

// artifactManifest returns the manifest of the type mediaImage.
func artifactManifest(img *store.Image, config v1.Descriptor, layers []*packedLayer) v1.Manifest {
	m := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: mediaImage, Config: config,
		Annotations: map[string]string{annotationPlatform: platform(), annotationTitle: img.Built},
	}
	for i, l := range layers {
		d := l.Descriptor
		d.Annotations = map[string]string{annotationTitle: partTitle(img.Parts[i]) + ".tar.zst"}
		m.Layers = append(m.Layers, d)
	}
	return m
}

// zstdWriter is deterministic: equal input gives equal output. One goroutine is enough, because
// layers are packed in parallel already.
func zstdWriter(w io.Writer) (io.WriteCloser, error) {
	return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
}
