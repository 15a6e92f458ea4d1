package store

import (
	"context"
	"errors"
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
	gone map[Digest]chan struct{} // being removed because nobody uses them; closed once they are
}

type useTime struct {
	now, saved time.Time
	puts       int // calls of PutImage that have returned it since it was made or Open
}

const useStep = time.Hour

// Use notes that an image is used now, without touching the disk. It is false
// where there is no such image, or where it is just being removed for not being
// used: whoever goes on without it makes it again.
func (s *Store) Use(d Digest) bool {
	if s.snap.Load().byDigest[d] == nil {
		return false
	}
	return s.uses.note(d, 0) == nil
}

// note notes a use, and how many puts that is; or returns the end of the removal
// that is under way.
func (u *uses) note(d Digest, puts int) (leaving <-chan struct{}) {
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

// forget is called when an image's row has gone.
func (u *uses) forget(d Digest) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.at, d)
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
		if u, ok := s.uses.at[d]; ok {
			u.saved = at
			s.uses.at[d] = u
		}
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
	s.uses.at, s.uses.gone = make(map[Digest]useTime), make(map[Digest]chan struct{})
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
	done, err := s.removeUnless(ctx, d, func(u useTime) bool {
		return u.now.IsZero() || !u.now.Equal(last) || leased && !u.now.Before(oldest)
	}, nil)
	if errors.Is(err, errSpared) {
		return Swept{}, false, nil
	}
	return done, err == nil, err
}

// RemovePut takes back what the caller alone has made, and what so many calls of
// PutImage have returned to it. Errors: ErrInUse where others have put the image,
// too, or given it a name; else those of RemoveImage.
func (s *Store) RemovePut(ctx context.Context, d Digest, puts int) error {
	_, err := s.removeUnless(ctx, d, func(u useTime) bool { return u.puts != puts }, func(img *Image) error {
		if len(img.Names) > 0 {
			return fmt.Errorf("%w: it is %s", ErrInUse, img.Names[0])
		}
		return nil
	})
	return err
}

var errSpared = fmt.Errorf("%w by somebody else", ErrInUse)

// removeUnless is remove that, unless the image is spared, has whoever wants it
// meanwhile wait and make it again.
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
