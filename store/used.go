package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// imageUses holds the time of the last use of each image. It lives in memory; save writes the
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

// save writes the times that have moved by useStep or were never written.
func (u *imageUses) save(m *metadata) error {
	known := m.snap.Load().byDigest
	moved := make(map[Digest]time.Time)
	u.mu.Lock()
	for d, t := range u.at {
		switch {
		case known[d] == nil:
			delete(u.at, d)
		case t.saved.IsZero() || t.now.Sub(t.saved) >= useStep:
			moved[d] = t.now
		}
	}
	u.mu.Unlock()
	if len(moved) == 0 {
		return nil
	}
	m.mu.Lock()
	err := m.writeUses(moved)
	m.mu.Unlock()
	if err != nil {
		return fmt.Errorf("write when images were used: %w", dbError(err))
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for d, at := range moved {
		if t, ok := u.at[d]; ok {
			t.saved = at
			u.at[d] = t
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

// load reads the times. An image without a time counts as used now.
func (u *imageUses) load(m *metadata) error {
	u.at, u.gone = make(map[Digest]useTime), make(map[Digest]chan struct{})
	snap := m.snap.Load()
	err := eachRow(m.db, `SELECT image, used FROM image_uses`, func(scan scanFunc) error {
		var d Digest
		var used int64
		err := scan(&d, &used)
		if img := snap.byDigest[d]; img != nil {
			t := time.Unix(0, used)
			u.at[img.Digest] = useTime{now: t, saved: t} // share one string
		}
		return err
	})
	if err != nil {
		return err
	}
	now := time.Now()
	for _, img := range snap.images {
		if u.at[img.Digest].now.IsZero() {
			u.at[img.Digest] = useTime{now: now}
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

// SaveUses writes the times of the last use that have moved by an hour or were never written.
func (s *Store) SaveUses(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.uses.save(s.meta)
}
