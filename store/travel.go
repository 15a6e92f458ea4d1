package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
)

// A tree travels as its canonical bytes ([Store.TreeBytes]) and the contents of
// its objects, in the order of [Tree.Objects]. Whoever gets it knows by the digest
// of the former what the latter must be before any of them comes.

// TreeBytes returns the canonical encoding of a committed tree, of which d is the
// digest. Errors: fs.ErrNotExist, ErrTree.
func (s *Store) TreeBytes(d Digest) ([]byte, error) {
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("tree: %w", err)
	}
	s.leases.useTree(d)
	b, err := os.ReadFile(filepath.Join(s.dir, "trees", d.hex()+".json"))
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", d, err)
	}
	if sumDigest(b) != d {
		return nil, fmt.Errorf("tree %s: %w: its content has changed", d, ErrTree)
	}
	return b, nil
}

// ManifestBytes returns the manifest of an image, of which d is the digest.
// Errors: fs.ErrNotExist, ErrTree.
func (s *Store) ManifestBytes(d Digest) ([]byte, error) {
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(s.dir, "images", d.hex(), "manifest.json"))
	if err != nil {
		return nil, fmt.Errorf("manifest of image %s: %w", d, err)
	}
	if sumDigest(b) != d {
		return nil, fmt.Errorf("manifest of image %s: %w: its content has changed: fre system fsck puts it right", d, ErrTree)
	}
	return b, nil
}

// DecodeTree decodes what TreeBytes returned elsewhere, and is as careful as that
// wants: the digest, every path, every entry. Errors: ErrTree.
func DecodeTree(d Digest, b []byte) (*Tree, error) {
	if sumDigest(b) != d {
		return nil, fmt.Errorf("tree %s: %w: its digest is %s", d, ErrTree, sumDigest(b))
	}
	t, err := decodeTree(b)
	if err == nil {
		var canonical []byte
		canonical, err = t.encode()
		if err == nil && (t.Entries == nil || !bytes.Equal(b, canonical)) {
			err = fmt.Errorf("%w: it is not in its canonical encoding", ErrTree)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", d, err)
	}
	return t, nil
}

// Objects are the files whose content travels, in the order of their paths: files
// that share an object, and empty ones, are left out.
func (t *Tree) Objects() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		seen := make(map[string]bool)
		for i := range t.Entries {
			e := &t.Entries[i]
			if !e.hasObject() || seen[e.key()] {
				continue
			}
			seen[e.key()] = true
			if !yield(e) {
				return
			}
		}
	}
}

// PutTree makes a tree of its entries and the contents that next returns, which is
// called once for each of t.Objects, in that order. What is there already is not
// read. Errors: ErrTree where a content is not
// what its entry says, those of next and of reading, and any errno, with nothing
// left behind but objects that the next sweep takes.
func (s *Store) PutTree(ctx context.Context, t *Tree, next func(*Entry) (io.Reader, error)) error {
	w, err := s.Create()
	if err != nil {
		return err
	}
	defer w.Abort()
	for e := range t.Objects() {
		r, err := next(e)
		if err != nil {
			return err
		}
		if w.has(e.key()) {
			continue
		}
		got := *e
		got.Size, got.Digest = 0, ""
		if err := w.stage(&got, r); err != nil {
			return fmt.Errorf("store %s: %w", e.Path, err)
		}
		if got != *e {
			return fmt.Errorf("%s: %w: it is to have %d bytes of %s, and has %d of %s", e.Path, ErrTree, e.Size, e.Digest, got.Size, got.Digest)
		}
	}
	for _, e := range t.Entries {
		w.entries[e.Path] = e
	}
	_, err = w.Commit(ctx)
	return err
}

// HasTree says whether the tree is there with all of its objects, which sweeps take
// from one that neither an image has nor a part; whoever goes on to use it has a lease.
func (s *Store) HasTree(d Digest) bool {
	if d.check() != nil {
		return false
	}
	s.leases.useTree(d) // first: nothing of it goes from now on
	keys, err := s.treeKeys(d)
	return err == nil && !slices.ContainsFunc(keys, func(key string) bool {
		links, _ := s.objectLinks(objectName(key, 0))
		return links == 0
	})
}
