package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// PutImage links the parts of m together and makes the image durable under its digest. The tag
// (Name, Version) then means this image; the image that had the tag keeps its data and loses the
// name. Without Name and Version the image gets no name. An existing image is not made again.
//
// Errors: ErrConflict if parts disagree, fs.ErrNotExist for an unknown tree, and any errno. An
// error leaves no files behind.
func (s *Store) PutImage(ctx context.Context, m Manifest) (*Image, error) {
	return s.putImages(ctx, m, incoming{name: tag{m.Name, m.Version}})
}

// TakeImage is PutImage for an image from elsewhere. Name and Version of its manifest give it no
// name here, because another image may have that name. If foreign, the maker is not trusted: the
// image is Foreign until a PutImage, or a TakeImage without foreign, of the same manifest.
func (s *Store) TakeImage(ctx context.Context, m Manifest, foreign bool) (*Image, error) {
	return s.putImages(ctx, m, incoming{foreign: foreign})
}

// incoming says how to enter an image.
type incoming struct {
	name    tag // the name to give; zero for no name
	foreign bool
}

func (s *Store) putImages(ctx context.Context, m Manifest, in incoming) (*Image, error) {
	for {
		img, err := s.putImage(ctx, m, in)
		if err != nil {
			return nil, fmt.Errorf("image %s:%s: %w", m.Name, m.Version, err)
		}
		leaving := s.uses.note(img.Digest, 1)
		if leaving == nil {
			return img, nil
		}
		select { // wait for the removal, then make the image again
		case <-leaving:
		case <-ctx.Done():
			return nil, fmt.Errorf("image %s:%s: %w", m.Name, m.Version, ctx.Err())
		}
	}
}

func (s *Store) putImage(ctx context.Context, m Manifest, in incoming) (*Image, error) {
	k := in.name
	m, manifest, err := m.canonical()
	if err != nil {
		return nil, err
	}
	d := sumDigest(manifest)
	release := s.Hold()
	defer release()

	snap := s.meta.snap.Load()
	if old := snap.byDigest[d]; old != nil && (k == tag{} || snap.tags[k] == d) && (in.foreign || !old.Foreign) {
		return old, nil
	}
	img := &Image{Manifest: m, Built: tag{m.Name, m.Version}.String(), Foreign: in.foreign, Digest: d, Created: time.Now().UTC().Round(0)}
	img.setNames(nil) // until the image is tagged
	var staged string
	var own sized
	if snap.byDigest[d] == nil {
		entries, hidden, err := merge(img.Manifest, s.recentTree)
		if err != nil {
			return nil, err
		}
		img.count(entries)
		done, err := admitted(ctx, img)
		if err != nil {
			return nil, err
		}
		defer done()
		staged = "image-" + strconv.FormatUint(s.disk.serial.Add(1), 10)
		defer s.disk.removeTmp(staged)
		if own, err = s.disk.stageImage(ctx, entries, hidden, manifest, staged); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(ctx.Err(), s.disk.failpoint("image synced")); err != nil {
		return nil, err
	}
	return s.publishImage(ctx, img, manifest, k, staged, own)
}

// publishImage gives a staged image its final directory, row and tag. staged is "" if only the
// tag moves.
func (s *Store) publishImage(ctx context.Context, img *Image, manifest []byte, k tag, staged string, own sized) (*Image, error) {
	s.meta.mu.Lock()
	defer s.meta.mu.Unlock()
	d := img.Digest
	if s.meta.snap.Load().byDigest[d] != nil {
		staged = "" // another call was faster
	} else if staged == "" {
		return nil, fmt.Errorf("%s was removed meanwhile: build the image again", d)
	}
	var err error
	if staged != "" {
		err = s.disk.renameImage(staged, d)
	}
	if err == nil {
		err = s.meta.updateLocked(true, func(t *tx) error {
			if staged != "" {
				if err := t.putImage(img, manifest, own); err != nil {
					return err
				}
			}
			if !img.Foreign {
				if err := t.trustImage(d); err != nil {
					return err
				}
			}
			if k == (tag{}) {
				return nil
			}
			return t.nameTag(ctx, k, d)
		})
	}
	if err != nil {
		if staged != "" && s.meta.snap.Load().byDigest[d] == nil {
			if err := s.disk.moveToTmp(d.hex()); err == nil {
				s.disk.removeTmp(d.hex())
			}
		}
		return nil, err
	}
	return s.meta.snap.Load().byDigest[d], nil
}

type admissionKey struct{}

// WithAdmission returns a context under which [Store.PutImage] and [Store.TakeImage] call admit
// for each image that does not exist yet. Files and Size are known by then and no file of the
// image is on disk. An error refuses the image, and PutImage returns it. Otherwise done is
// called once the image is in the lists or could not be made.
func WithAdmission(ctx context.Context, admit func(*Image) (done func(), err error)) context.Context {
	return context.WithValue(ctx, admissionKey{}, admit)
}

func admitted(ctx context.Context, img *Image) (done func(), err error) {
	admit, ok := ctx.Value(admissionKey{}).(func(*Image) (done func(), err error))
	if !ok {
		return func() {}, nil
	}
	return admit(img)
}
