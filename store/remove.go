package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// RemoveImage removes the image, then the content that only this image used. Sandboxes that have
// mounted the image keep running. Errors: fs.ErrNotExist, ErrInUse.
func (s *Store) RemoveImage(ctx context.Context, d Digest) error {
	_, err := s.remove(ctx, d, nil)
	return err
}

// RemoveUnused is RemoveImage for an image chosen because its last use was at last. It returns
// false and does nothing if the image was used since, or under a lease that is still held.
func (s *Store) RemoveUnused(ctx context.Context, d Digest, last time.Time) (Swept, bool, error) {
	oldest, leased := s.leases.oldest()
	done, err := s.removeUnless(ctx, d, func(u useTime) bool {
		return u.now.IsZero() || !u.now.Equal(last) || leased && !u.now.Before(oldest)
	}, nil)
	if errors.Is(err, errSpared) {
		return Swept{}, false, nil
	}
	return done, err == nil, err
}

// RemovePut takes back an image that only the caller has put; puts is the number of its calls of
// PutImage and TakeImage. Errors: ErrInUse if another caller has put the image or given it a
// name; else the errors of RemoveImage.
func (s *Store) RemovePut(ctx context.Context, d Digest, puts int) error {
	_, err := s.removeUnless(ctx, d, func(u useTime) bool { return u.puts != puts }, func(img *Image) error {
		if len(img.Names) > 0 {
			return fmt.Errorf("%w: by %s", ErrInUse, img.Names[0])
		}
		return nil
	})
	return err
}

var errSpared = fmt.Errorf("%w by another user", ErrInUse)

// removeUnless is remove unless spare returns true. A caller that wants the image during the
// removal waits for its end and makes the image again.
func (s *Store) removeUnless(ctx context.Context, d Digest, spare func(useTime) bool, may func(*Image) error) (Swept, error) {
	u := &s.uses
	u.mu.Lock()
	if u.gone[d] != nil || spare(u.at[d]) {
		u.mu.Unlock()
		return Swept{}, fmt.Errorf("remove image %s: %w", d, errSpared)
	}
	gone := make(chan struct{})
	u.gone[d] = gone
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.gone, d)
		close(gone)
	}()
	return s.remove(ctx, d, may)
}

// remove is RemoveImage with a last check: it calls may, unless nil, under mu, when the answer
// cannot become outdated.
func (s *Store) remove(ctx context.Context, d Digest, may func(*Image) error) (done Swept, err error) {
	if err := ctx.Err(); err != nil {
		return done, err
	}
	img := s.meta.snap.Load().byDigest[d]
	if img == nil {
		return done, fmt.Errorf("remove image %s: %w", d, fs.ErrNotExist)
	}
	s.leases.leave(&img.Manifest)
	err = s.removeImage(d, may)
	if err == nil {
		s.disk.removeCounted(d.hex(), &done)
	}
	s.leases.left(&img.Manifest)
	if err != nil {
		return done, fmt.Errorf("remove image %s: %w", d, err)
	}
	done.Add(s.sweeper.sweepPending())
	s.meta.forgetTrees(manyTrees)
	return done, nil
}

func (s *Store) removeImage(d Digest, may func(*Image) error) error {
	s.meta.mu.Lock()
	defer s.meta.mu.Unlock()
	snap := s.meta.snap.Load()
	img := snap.byDigest[d]
	if img == nil {
		return fs.ErrNotExist
	}
	if may != nil {
		if err := may(img); err != nil {
			return err
		}
	}
	for _, f := range snap.functionList {
		if f.keeps(d) {
			return fmt.Errorf("%w by function %s", ErrInUse, f.Name)
		}
	}
	// An index that still names the image does no harm.
	if err := s.meta.updateFreeingLocked(false, func(t *tx) error { return t.removeImage(d) }); err != nil {
		return err
	}
	s.uses.forget(d)
	err := s.disk.failpoint("image row removed")
	if err == nil {
		err = s.disk.moveToTmp(d.hex())
	}
	// A full disk may have no room for the new name: remove in place, while other callers wait.
	if err != nil {
		err = linux.RemoveAll(filepath.Join(s.disk.dir, "images", d.hex()))
	}
	return err
}

// removeCounted removes an image's directory below tmp/ and counts its files that are not links
// to objects.
func (k *disk) removeCounted(name string, done *Swept) {
	_ = filepath.WalkDir(filepath.Join(k.dir, "tmp", name), func(path string, e fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil && (e.IsDir() || st.Nlink == 1) {
			done.Inodes++
			done.Bytes += st.Blocks * 512
		}
		return nil // do not count unreadable files
	})
	k.removeTmp(name)
}
