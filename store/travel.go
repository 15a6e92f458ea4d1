package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
)

// A tree travels as its canonical bytes ([Store.TreeBytes]) and the contents of its objects, in
// the order of [Tree.Objects]. By the digest of the bytes, the receiver knows the digest of
// every object before the object arrives.

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
