package store

import (
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
