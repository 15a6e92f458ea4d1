package store

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"strconv"
)

// Create starts a tree. Errors keep their errno, such as ENOSPC.
func (s *Store) Create() (*Writer, error) {
	release := s.Hold()
	name := "tree-" + strconv.FormatUint(s.disk.serial.Add(1), 10)
	dir, err := s.disk.mkdirTmp(name)
	if err != nil {
		release()
		return nil, fmt.Errorf("stage tree: %w", err)
	}
	return &Writer{
		disk: s.disk, leases: &s.leases, release: release, name: name, dir: dir,
		entries: make(map[string]Entry),
		staged:  make(map[string]bool),
		buf:     make([]byte, bufferSize),
	}, nil
}

// CreateLayer starts the tree of a layer ([Part].Diff). Such a tree may also hold whiteouts and
// opaque directories, and marks the directories that the layer only implies.
func (s *Store) CreateLayer() (*Writer, error) {
	w, err := s.Create()
	if err == nil {
		w.layer = true
	}
	return w, err
}

// A tree travels as its canonical bytes ([Store.TreeBytes]) and the contents of its objects, in
// the order of [Tree.Objects]. By the digest of the bytes, the receiver knows the digest of
// every object before the object arrives.

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

// PutSubset makes a tree of entries of other trees, whose contents are all in the store. The
// caller holds a lease ([Store.Hold]) since before it read the entries. Errors: fs.ErrNotExist
// for a missing content, ErrTree.
func (s *Store) PutSubset(ctx context.Context, t *Tree) (Digest, error) {
	w, err := s.Create()
	if err != nil {
		return "", err
	}
	defer w.Abort()
	for _, e := range t.Entries {
		if e.hasObject() && !w.has(e.key()) {
			return "", fmt.Errorf("%s: content is not in the store: %w", e.Path, fs.ErrNotExist)
		}
		w.entries[e.Path] = e
	}
	return w.Commit(ctx)
}
