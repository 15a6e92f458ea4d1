package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

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
	if err := j.parts(ctx, a); err != nil {
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

// parts brings the parts into the store.
func (j *job) parts(ctx context.Context, a *artifact) error {
	last := make(map[store.Digest]int, len(a.layers)) // by tree: the last part with that tree
	for i, p := range a.manifest.Parts {
		last[p.Tree] = i
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, p := range a.manifest.Parts {
		if last[p.Tree] != i {
			continue
		}
		g.Go(func() error {
			if err := j.part(gctx, p, a.layers[i]); err != nil {
				return fmt.Errorf("part %d of %d (%s): %w", i+1, len(a.layers), partTitle(p), err)
			}
			return nil
		})
	}
	return g.Wait()
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
