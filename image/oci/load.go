package oci

import (
	"context"
	"fmt"
	"io"

	"github.com/fre-engine/fre/store"
)

// Load reads an archive of images, uncompressed or packed with gzip or zstd: the output of docker
// save (manifest.json, with layers in directories or in blobs/) or an OCI layout (index.json). It
// returns the images in the archive's order, each with the names that the archive gives. A name
// that another image had moves to the new image.
//
// After an error the store holds no image that it did not hold before. Errors: ErrArchive,
// ErrLayer, ErrLimit, ErrPlatform, ErrReference, and any errno.
func Load(ctx context.Context, s *store.Store, r io.Reader, o Options) ([]*store.Image, error) {
	images, err := load(ctx, s, r, o)
	if err != nil {
		return nil, fmt.Errorf("load: %w", reason(ctx, err))
	}
	return images, nil
}

func load(ctx context.Context, s *store.Store, r io.Reader, o Options) (_ []*store.Image, err error) {
	defer s.Hold()()
	j := newJob(s, o)
	a, err := j.spool(ctx, r)
	if err != nil {
		return nil, err
	}
	defer a.remove()
	images, err := a.parse()
	if err != nil {
		return nil, err
	}
	manifests := make([]store.Manifest, len(images)) // all manifests first: a client sees all images or none
	for n, i := range images {
		if manifests[n], err = j.manifest(ctx, i.source); err != nil {
			return nil, fmt.Errorf("%s: %w", i.title(), err)
		}
	}
	before := s.Images()
	out := make([]*store.Image, 0, len(images))
	defer func() {
		if err != nil {
			j.forget(ctx, before, out)
		}
	}()
	for n, i := range images {
		img, err := j.put(ctx, manifests[n])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", i.title(), err)
		}
		out = append(out, img)
	}
	return out, j.nameAll(ctx, images, out, o.Nameless) // names last: all or none
}

// nameAll gives the images their names, and replaces each by a copy without its older names.
func (j *job) nameAll(ctx context.Context, from []archived, made []*store.Image, nameless bool) error {
	for n, i := range from {
		if nameless {
			i.names = nil
		}
		named, err := j.name(ctx, made[n], i.names)
		if err != nil {
			return fmt.Errorf("%s: %w", i.title(), err)
		}
		loaded := *named
		loaded.Names = i.names
		made[n] = &loaded
	}
	return nil
}
