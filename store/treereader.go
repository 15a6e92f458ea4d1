package store

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// treeReader reads trees, and the contents and manifests beside them, and names their
// directories. It notes each tree for current leases, and caches the trees of recently linked
// images.
type treeReader struct {
	disk   *disk
	leases *leases

	mu     sync.Mutex
	recent keptTrees
}

// Tree reads a committed tree and verifies the digest. The caller owns the result. Errors:
// fs.ErrNotExist, ErrTree.
func (r *treeReader) Tree(d Digest) (*Tree, error) {
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("tree: %w", err)
	}
	r.leases.useTree(d)
	return r.disk.readTree(d)
}

// Entries returns the entries of an image's root, sorted by path, including the mount points of
// every image. Errors: fs.ErrNotExist, ErrTree.
func (r *treeReader) Entries(img *Image) ([]Entry, error) {
	entries, _, err := merge(img.Manifest, r.recentTree)
	return entries, err
}

// recentTree is Tree with a cache: a recent image most often had the same tree. Callers must not
// change the result.
func (r *treeReader) recentTree(d Digest) (*Tree, error) {
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("tree: %w", err)
	}
	r.leases.useTree(d)
	var st unix.Stat_t
	if err := unix.Fstatat(int(r.disk.trees.Fd()), d.hex()+".json", &st, 0); err != nil {
		return nil, fmt.Errorf("tree %s: %w", d, err)
	}
	r.mu.Lock()
	t := r.recent.trees[d]
	r.mu.Unlock()
	if t != nil {
		return t, nil
	}
	t, err := r.disk.readTree(d)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recent.keep(d, t, maxRecent)
	return t, nil
}

// OpenFile opens the content of a file entry for reading; the caller closes it. Either the
// caller holds a lease ([Store.Hold]) or an image holds the entry's tree. Errors:
// fs.ErrNotExist.
func (r *treeReader) OpenFile(e *Entry) (io.ReadCloser, error) {
	if e.Kind != KindFile {
		return nil, fmt.Errorf("open %s: %w", e.Path, ErrFileType)
	}
	if e.Size == 0 {
		return io.NopCloser(strings.NewReader("")), nil
	}
	f, err := openat(int(r.disk.objects.Fd()), objectName(e.key(), 0), unix.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", e.Path, err)
	}
	return f, nil
}

// TreeBytes returns the canonical encoding of a committed tree; d is its digest. Errors:
// fs.ErrNotExist, ErrTree.
func (r *treeReader) TreeBytes(d Digest) ([]byte, error) {
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("tree: %w", err)
	}
	r.leases.useTree(d)
	b, err := os.ReadFile(filepath.Join(r.disk.dir, "trees", d.hex()+".json"))
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
func (r *treeReader) ManifestBytes(d Digest) ([]byte, error) {
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(r.disk.dir, "images", d.hex(), "manifest.json"))
	if err != nil {
		return nil, fmt.Errorf("manifest of image %s: %w", d, err)
	}
	if sumDigest(b) != d {
		return nil, fmt.Errorf("manifest of image %s: %w: content has changed: repair the store with fre system fsck", d, ErrTree)
	}
	return b, nil
}

// HasTree reports whether the tree and all of its objects are in the store. A sweep may remove
// the objects of a tree that no image and no part has. A caller that goes on to use the tree
// holds a lease.
func (r *treeReader) HasTree(d Digest) bool {
	if d.check() != nil {
		return false
	}
	r.leases.useTree(d) // first, so no sweep removes the tree or its objects from now on
	keys, err := r.disk.treeKeys(d)
	return err == nil && !slices.ContainsFunc(keys, func(key string) bool {
		links, _ := r.disk.objectLinks(objectName(key, 0))
		return links == 0
	})
}

// maxRecent entries take some 10 MB: the base environments in use and a few packages.
const maxRecent = 20_000

// Dir returns the absolute path of the store.
func (r *treeReader) Dir() string { return r.disk.dir }

// Rootfs returns the directory of an image's tree. Mount it read-only: a write would reach every
// image that shares the file.
func (r *treeReader) Rootfs(d Digest) string {
	return filepath.Join(r.disk.dir, "images", d.hex(), "rootfs")
}
