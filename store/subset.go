package store

import (
	"context"
	"fmt"
	"io/fs"
)

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
