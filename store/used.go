package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// imageUses holds the time of the last use of each image. It lives in memory; SaveUses writes the
// times that moved by useStep or more, so using an image costs no write.
type imageUses struct {
	mu   sync.Mutex // after leases.mu
	at   map[Digest]useTime
	gone map[Digest]chan struct{} // images being removed as unused; closed at the end of the removal
}

type useTime struct {
	now, saved time.Time
	puts       int // calls of PutImage and TakeImage that returned the image, since Open
}

const useStep = time.Hour

// Use notes a use of an image now, without disk access. It returns false if the image does not
// exist or is just being removed as unused: the caller then makes the image again.
func (s *Store) Use(d Digest) bool {
	if s.meta.snap.Load().byDigest[d] == nil {
		return false
	}
	return s.uses.note(d, 0) == nil
}

// note notes a use and adds puts. If a removal of the image is under way, note instead returns a
// channel that is closed at the end of the removal.
func (u *imageUses) note(d Digest, puts int) (leaving <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if leaving := u.gone[d]; leaving != nil {
		return leaving
	}
	t := u.at[d]
	t.now = time.Now()
	t.puts += puts
	u.at[d] = t
	return nil
}

// forget is called after an image's row is gone.
func (u *imageUses) forget(d Digest) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.at, d)
}

// LastUsed returns the time of the last use of an image, or of its creation. After a restart the
// time may be up to an hour early, or the time of Open if none was saved. The time of an unknown
// image is zero.
func (s *Store) LastUsed(d Digest) time.Time {
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	return s.uses.at[d].now
}

// SaveUses writes the times that have moved by useStep or were never written.
func (s *Store) SaveUses(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	snap := s.meta.snap.Load()
	moved := make(map[Digest]time.Time)
	s.uses.mu.Lock()
	for d, u := range s.uses.at {
		switch {
		case snap.byDigest[d] == nil:
			delete(s.uses.at, d)
		case u.saved.IsZero() || u.now.Sub(u.saved) >= useStep:
			moved[d] = u.now
		}
	}
	s.uses.mu.Unlock()
	if len(moved) == 0 {
		return nil
	}
	s.meta.mu.Lock()
	err := s.meta.writeUses(moved)
	s.meta.mu.Unlock()
	if err != nil {
		return fmt.Errorf("write when images were used: %w", dbError(err))
	}
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	for d, at := range moved {
		if u, ok := s.uses.at[d]; ok {
			u.saved = at
			s.uses.at[d] = u
		}
	}
	return nil
}

// writeUses uses a separate transaction, because lists do not show the times.
func (m *metadata) writeUses(at map[Digest]time.Time) error {
	tx, err := m.db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for d, t := range at {
		// A removed image has no row to refer to.
		_, err := tx.Exec(`INSERT INTO image_uses SELECT digest, ? FROM images WHERE digest = ?
			ON CONFLICT (image) DO UPDATE SET used = excluded.used`, t.UnixNano(), d)
		if err != nil {
			return err
		}
	}
	return tx.Commit()
}

// loadUses reads the times. An image without a time counts as used now.
func (s *Store) loadUses() error {
	s.uses.at, s.uses.gone = make(map[Digest]useTime), make(map[Digest]chan struct{})
	known := s.meta.snap.Load().byDigest
	err := eachRow(s.meta.db, `SELECT image, used FROM image_uses`, func(scan scanFunc) error {
		var d Digest
		var used int64
		err := scan(&d, &used)
		if img := known[d]; img != nil {
			t := time.Unix(0, used)
			s.uses.at[img.Digest] = useTime{now: t, saved: t} // share one string
		}
		return err
	})
	if err != nil {
		return err
	}
	now := time.Now()
	for _, img := range s.meta.snap.Load().images {
		if s.uses.at[img.Digest].now.IsZero() {
			s.uses.at[img.Digest] = useTime{now: now}
		}
	}
	return nil
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
