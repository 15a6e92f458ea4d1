package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// source is an image that is not in the store yet.
type source struct {
	config []byte
	// layers has one entry for each of the configuration's diff ids, in order.
	layers []blob
}

// manifest brings the image's layers and configuration into the store. The caller holds the store.
func (j *job) manifest(ctx context.Context, src source) (m store.Manifest, err error) {
	file, err := parseConfig(src.config)
	if err != nil {
		return m, err
	}
	if len(src.layers) != len(file.RootFS.DiffIDs) {
		return m, fmt.Errorf("%w: %d layers, but the configuration names %d: save or download the image again", ErrArchive, len(src.layers), len(file.RootFS.DiffIDs))
	}
	parts := make([]store.Part, len(src.layers), len(src.layers)+1)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, l := range src.layers {
		want := store.Digest(file.RootFS.DiffIDs[i].String())
		g.Go(func() error {
			p, err := j.layer(gctx, want, l)
			parts[i] = p
			if err != nil {
				return fmt.Errorf("layer %d of %d (%s): %w", i+1, len(src.layers), short(want), err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return m, reason(ctx, err) // after gctx's end each layer may return another error
	}
	aside, err := j.keepConfig(ctx, src.config)
	if err != nil {
		return m, err
	}
	config, err := json.Marshal(configOf(file, src.config))
	return store.Manifest{Parts: append(parts, aside), Config: config}, err
}

// put makes the image, without a name.
func (j *job) put(ctx context.Context, m store.Manifest) (*store.Image, error) {
	j.event(image.Progress{Step: "link", Name: m.Parts[len(m.Parts)-1].Name})
	img, err := j.store.PutImage(ctx, m)
	if errors.Is(err, store.ErrConflict) {
		err = fmt.Errorf("%w: conflict with a directory of every sandbox: %w", ErrLayer, err)
	}
	return img, err
}

// layer finds the layer in the store, or unpacks it.
func (j *job) layer(ctx context.Context, want store.Digest, l blob) (store.Part, error) {
	if p, ok := j.store.Part(layerKey(want)); ok {
		j.event(image.Progress{Step: "layer", Name: short(want), Message: "already here", End: true})
		return p, nil
	}
	var p store.Part
	err := l.read(ctx, func(r io.Reader) (err error) {
		progress := &progress{r: r, j: j, e: image.Progress{Step: "layer", Name: short(want), Message: "unpack", Total: l.size, Unit: image.UnitBytes}}
		if p, err = j.unpack(ctx, progress); err != nil {
			return err
		}
		if p.Diff != want {
			return fmt.Errorf("%w: the layer's digest is %s, but the image's configuration says %s: save or download the image again", ErrArchive, p.Diff, want)
		}
		progress.end()
		return nil
	})
	if err == nil && l.packed != nil {
		err = j.remember(ctx, string(p.Diff), p.Tree, *l.packed)
	}
	return p, err
}

// bring calls manifest, put and name. If a name fails, the image is not kept.
func (j *job) bring(ctx context.Context, src source, names []string) (*store.Image, error) {
	m, err := j.manifest(ctx, src)
	if err != nil {
		return nil, err
	}
	before := j.store.Images()
	img, err := j.put(ctx, m)
	if err != nil {
		return nil, err
	}
	named, err := j.name(ctx, img, names)
	if err != nil {
		j.forget(ctx, before, []*store.Image{img})
		return nil, err
	}
	return named, nil
}

// name gives the image its names, in the grammar of the store's references; "name@sha256:…" is a
// registry's name of the image. It does not end with ctx: naming is fast, and a name that has moved
// does not move back.
func (j *job) name(ctx context.Context, img *store.Image, names []string) (*store.Image, error) {
	ctx = context.WithoutCancel(ctx)
	for _, n := range names {
		tag := j.store.Tag
		if strings.Contains(n, "@") {
			tag = j.store.TagRemote
		}
		named, err := tag(ctx, img.Digest, n)
		if err != nil {
			return nil, err
		}
		img = named
	}
	return img, nil
}

// forget removes the images that a failed call has made. An image that a concurrent call has made
// as well, or named, stays.
func (j *job) forget(ctx context.Context, before, made []*store.Image) {
	ctx = context.WithoutCancel(ctx)
	puts := make(map[store.Digest]int)
	for _, img := range made {
		puts[img.Digest]++
	}
	for _, img := range before {
		delete(puts, img.Digest)
	}
	for d, n := range puts {
		_ = j.store.RemovePut(ctx, d, n) // after an error the image stays without a name, for prune
	}
}
