package store

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// uses are the times images were last used at. They live in memory; SaveUses
// writes what has moved by useStep or more, so that using an image costs no
// write.
type uses struct {
	mu   sync.Mutex // after leases.mu
	at   map[Digest]useTime
	gone map[Digest]bool // being removed because nobody uses them
}

type useTime struct{ now, saved time.Time }

const useStep = time.Hour

// Use notes that an image is used now, without touching the disk. It is false
// where there is no such image, or where it is just being removed for not being
// used: whoever goes on without it makes it again.
func (s *Store) Use(d Digest) bool {
	if s.snap.Load().byDigest[d] == nil {
		return false
	}
	return s.uses.note(d)
}

func (u *uses) note(d Digest) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone[d] {
		return false
	}
	t := u.at[d]
	t.now = time.Now()
	u.at[d] = t
	return true
}

// LastUsed returns when an image was last used, or made. After the store was
// opened again it may be an hour early; where nobody knows any more it is when
// that was. It is zero for an image that is not there.
func (s *Store) LastUsed(d Digest) time.Time {
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	return s.uses.at[d].now
}

// SaveUses writes the times that have moved since they were written.
func (s *Store) SaveUses(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	snap := s.snap.Load()
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
	s.mu.Lock()
	err := s.writeUses(moved)
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("write when images were used: %w", dbError(err))
	}
	s.uses.mu.Lock()
	defer s.uses.mu.Unlock()
	for d, at := range moved {
		u := s.uses.at[d]
		u.saved = at
		s.uses.at[d] = u
	}
	return nil
}

// writeUses has its own transaction: no list shows these times.
func (s *Store) writeUses(at map[Digest]time.Time) error {
	tx, err := s.db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for d, t := range at {
		// An image that is gone by now has no row to refer to.
		_, err := tx.Exec(`INSERT INTO image_uses SELECT digest, ? FROM images WHERE digest = ?
			ON CONFLICT (image) DO UPDATE SET used = excluded.used`, t.UnixNano(), d)
		if err != nil {
			return err
		}
	}
	return tx.Commit()
}

// loadUses reads the times; where there is none the image counts as used now.
func (s *Store) loadUses() error {
	s.uses.at, s.uses.gone = make(map[Digest]useTime), make(map[Digest]bool)
	known := s.snap.Load().byDigest
	err := s.each(`SELECT image, used FROM image_uses`, func(scan scanFunc) error {
		var d Digest
		var used int64
		err := scan(&d, &used)
		if img := known[d]; img != nil {
			t := time.Unix(0, used)
			s.uses.at[img.Digest] = useTime{now: t, saved: t} // one string for both
		}
		return err
	})
	if err != nil {
		return err
	}
	now := time.Now()
	for _, img := range s.snap.Load().images {
		if s.uses.at[img.Digest].now.IsZero() {
			s.uses.at[img.Digest] = useTime{now: now}
		}
	}
	return nil
}

// RemoveUnused is RemoveImage for an image that somebody chose because it was
// last used at that time. It is false where the image was used since, or under a
// lease that is not released: then nothing happens.
func (s *Store) RemoveUnused(ctx context.Context, d Digest, last time.Time) (Swept, bool, error) {
	oldest, leased := s.leases.oldest()
	s.uses.mu.Lock()
	now := s.uses.at[d].now
	spared := now.IsZero() || !now.Equal(last) || leased && !now.Before(oldest) || s.uses.gone[d]
	if !spared {
		s.uses.gone[d] = true
	}
	s.uses.mu.Unlock()
	if spared {
		return Swept{}, false, nil
	}
	defer func() {
		s.uses.mu.Lock()
		defer s.uses.mu.Unlock()
		delete(s.uses.gone, d)
	}()
	done, err := s.remove(ctx, d)
	return done, err == nil, err
}
