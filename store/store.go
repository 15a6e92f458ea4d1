// Package store is FRE's content store. The package keeps file contents by
// key, trees of files described by manifests, images linked from trees, and the metadata database.
//
// An *object* is one file's bytes and metadata in objects/, hard-linked into every image with
// the file. A *tree* is a list of entries (a base environment, one package version, a function's
// code), identified by the digest of its canonical encoding. An *image* is a list of parts, each
// a tree under a prefix, plus a configuration opaque to the store. On disk an image is a
// read-only directory of hard links. See docs/state.md.
//
// Memory holds all data that a list call needs. The store reads the disk at Open and writes on
// change. State on disk is whole or absent: build aside, one syncfs, rename, then the database
// commit. Content without an image is swept when an image is removed and at each [Store.Sweep].
// A build takes a lease ([Store.Hold]) until its PutImage.
package store

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Store is an open store. Several goroutines may use it. Returned values are shared:
// callers must not change them.
//
//	objects/ab/<key>[.n]     file contents, hard-linked into images
//	trees/<digest>.json      trees
//	images/<digest>/rootfs/  the linked tree; manifest.json beside it
//	tmp/                     trees being made or removed; emptied by Open
//	fre.db                   the database
//	index.json, index.log    the content of the database that manifests lack
//	generation               a number above the generation of every change
//	reserve                  room for removals on a full disk
//	lock                     flock and pid of the engine
type Store struct {
	treeReader

	log  *slog.Logger
	lock *os.File
	disk *disk
	meta *metadata

	leases  leases
	sweeper sweeper
	uses    imageUses
}

// MkdirScratch makes a private directory on the store's file system. The caller removes it; the
// next Open removes a leftover.
func (s *Store) MkdirScratch() (string, error) {
	dir, err := os.MkdirTemp(filepath.Join(s.disk.dir, "tmp"), "scratch-")
	if err != nil {
		return "", fmt.Errorf("make scratch directory: %w", err)
	}
	return dir, nil
}

// Changes returns the store's counter of changes, which also counts the engine's changes.
func (s *Store) Changes() *Changes { return s.meta.changes }

// Images returns all images, newest first, without disk access.
func (s *Store) Images() []*Image { return s.meta.snap.Load().images }

// ImageList is Images with the generation of the last change of images. While the generation is
// the same, so is the list ([Changes]).
func (s *Store) ImageList() (images []*Image, generation uint64) {
	n := s.meta.snap.Load()
	return n.images, n.imagesGen
}

// Functions returns all functions, sorted by name, without disk access.
func (s *Store) Functions() []*Function { return s.meta.snap.Load().functionList }

// Function finds a function. Errors: fs.ErrNotExist.
func (s *Store) Function(name string) (*Function, error) {
	if f := s.meta.snap.Load().functions[name]; f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("function %q: %w", name, fs.ErrNotExist)
}

// Tenants returns all tenants, oldest first.
func (s *Store) Tenants() []Tenant {
	return s.meta.snap.Load().tenantList()
}

// Sizes returns the sizes of all images, from memory.
func (s *Store) Sizes() *Sizes { return s.meta.snap.Load().sizes }

// SizeWithout returns the disk use that would remain if all images but those in keep were
// removed. Objects shared among the kept images count once.
func (s *Store) SizeWithout(keep map[Digest]bool) (bytes, inodes int64) {
	z := &s.meta.sizing
	z.mu.Lock()
	defer z.mu.Unlock()
	seen := make(map[*cohort]bool)
	for d, kept := range keep {
		if kept {
			b, i := z.addedLocked(seen, d)
			bytes, inodes = bytes+b, inodes+i
		}
	}
	return bytes, inodes
}

// Added returns, for each image in order, the bytes beyond the use of the images before. The sum
// is the result of SizeWithout for the same images. An unknown image takes 0.
func (s *Store) Added(images []Digest) []int64 {
	z := &s.meta.sizing
	z.mu.Lock()
	defer z.mu.Unlock()
	seen := make(map[*cohort]bool)
	out := make([]int64, len(images))
	for i, d := range images {
		out[i], _ = z.addedLocked(seen, d)
	}
	return out
}

// Use notes a use of an image now, without disk access. It returns false if the image does not
// exist or is just being removed as unused: the caller then makes the image again.
func (s *Store) Use(d Digest) bool {
	if s.meta.snap.Load().byDigest[d] == nil {
		return false
	}
	return s.uses.note(d, 0) == nil
}

// LastUsed returns the time of the last use of an image, or of its creation. After a restart the
// time may be up to an hour early, or the time of Open if none was saved. The time of an unknown
// image is zero.
func (s *Store) LastUsed(d Digest) time.Time {
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	return s.uses.at[d].now
}

// SaveUses writes the times of the last use that have moved by an hour or were never written.
func (s *Store) SaveUses(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.uses.save(s.meta)
}

// Hold takes a lease. Until release is called, sweeps keep the trees of all images that exist
// now, and every tree, part and object that is found or made from now on. A build takes a lease
// before its first Part or Create and releases it after its PutImage. release is idempotent; it
// sweeps the content that removals had to leave because of the lease.
func (s *Store) Hold() (release func()) {
	end := s.leases.take()
	return sync.OnceFunc(func() {
		end()
		s.sweeper.sweepPending()
	})
}

// Sweep removes parts, trees and objects that no image refers to and no lease keeps. Builds,
// starts and lists continue meanwhile: Sweep checks their uses again, in short steps, before
// each removal. It removes a referrer before its target: a crash, or the end of ctx, only leaves
// more to sweep: the objects of removed trees wait for the next full sweep.
//
// Removing an image sweeps the content that only this image used. Sweep also finds the leftovers
// of crashes and failed builds. Before it removes an object without a link outside objects/, it
// looks the object up in every live tree; if a tree cannot be read, the objects stay.
func (s *Store) Sweep(ctx context.Context, o SweepOptions) (Swept, error) {
	var done Swept
	err := s.sweeper.sweepAll(ctx, o, &done)
	done.Add(s.sweeper.sweepPending())
	if !o.DryRun {
		s.meta.forgetTrees(1)
	}
	if err != nil {
		return done, fmt.Errorf("sweep: %w", err)
	}
	return done, nil
}

// Discard removes a tree for which no image was made after all, and the content that only this
// tree has, once no lease keeps it.
func (s *Store) Discard(d Digest) {
	s.leases.mu.Lock()
	s.leases.pending[d] = struct{}{}
	s.leases.mu.Unlock()
	s.sweeper.sweepPending()
}
