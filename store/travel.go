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

// A tree travels as its canonical bytes ([Store.TreeBytes]) and the contents of its objects, in
// the order of [Tree.Objects]. By the digest of the bytes, the receiver knows the digest of
// every object before the object arrives.

// TreeBytes returns the canonical encoding of a committed tree; d is its digest. Errors:
// fs.ErrNotExist, ErrTree.
func (s *Store) TreeBytes(d Digest) ([]byte, error) {
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("tree: %w", err)
	}
	s.leases.useTree(d)
	b, err := os.ReadFile(filepath.Join(s.disk.dir, "trees", d.hex()+".json"))
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", d, err)
	}
	if sumDigest(b) != d {
		return nil, fmt.Errorf("tree %s: %w: content has changed", d, ErrTree)
	}
	return b, nil
}

// ManifestBytes returns the manifest of an image; d is its digest. Errors: fs.ErrNotExist,
// ErrTree.
func (s *Store) ManifestBytes(d Digest) ([]byte, error) {
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(s.disk.dir, "images", d.hex(), "manifest.json"))
	if err != nil {
		return nil, fmt.Errorf("manifest of image %s: %w", d, err)
	}
	if sumDigest(b) != d {
		return nil, fmt.Errorf("manifest of image %s: %w: content has changed: repair the store with fre system fsck", d, ErrTree)
	}
	return b, nil
}

// DecodeTree decodes the TreeBytes of another, maybe hostile, store. It checks the digest, every
// path and every entry. Errors: ErrTree.
func DecodeTree(d Digest, b []byte) (*Tree, error) {
	if sumDigest(b) != d {
		return nil, fmt.Errorf("tree %s: %w: the digest is %s", d, ErrTree, sumDigest(b))
	}
	t, err := decodeTree(b)
	if err == nil {
		var canonical []byte
		canonical, err = t.encode()
		if err == nil && (t.Entries == nil || !bytes.Equal(b, canonical)) {
			err = fmt.Errorf("%w: not in canonical encoding", ErrTree)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", d, err)
	}
	return t, nil
}

// Objects returns the files with content to transfer, sorted by path. It omits empty files and
// all but the first of the files that share an object.
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

// PutTree makes a tree of entries and contents. It calls next once for each of t.Objects, in
// order, and does not read the content of objects that exist already. Errors: ErrTree if a
// content differs from the entry, the errors of next and of its reader, and any errno. An error
// leaves only objects behind, for the next sweep.
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
			return fmt.Errorf("%s: %w: expected %d bytes of %s, got %d of %s", e.Path, ErrTree, e.Size, e.Digest, got.Size, got.Digest)
		}
	}
	for _, e := range t.Entries {
		w.entries[e.Path] = e
	}
	_, err = w.Commit(ctx)
	return err
}

// HasTree reports whether the tree and all of its objects are in the store. A sweep may remove
// the objects of a tree that no image and no part has. A caller that goes on to use the tree
// holds a lease.
func (s *Store) HasTree(d Digest) bool {
	if d.check() != nil {
		return false
	}
	s.leases.useTree(d) // first, so no sweep removes the tree or its objects from now on
	keys, err := s.disk.treeKeys(d)
	return err == nil && !slices.ContainsFunc(keys, func(key string) bool {
		links, _ := s.disk.objectLinks(objectName(key, 0))
		return links == 0
	})
}
