package store

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// metadata is the database, with the snapshot that lists read and the figures of sizes. A change
// is one transaction ([metadata.update]).
type metadata struct {
	disk *disk
	log  *slog.Logger

	db *sql.DB
	// mu is held while the database and the snapshot change.
	mu   sync.Mutex
	snap atomic.Pointer[snapshot]
	// index is the source for rebuilding a lost database; also guarded by mu.
	index indexFile

	sizing  sizing
	changes *Changes
}

// tx changes the database and the next snapshot together, and collects the changes of images.
// (The engine lists functions, so it adds their changes.)
type tx struct {
	s       *metadata
	size    *sizeTx // nil until lockSizes; then sizing.mu is held
	sql     *sql.Tx
	next    *snapshot
	changes []Change
	index   []indexLine // lines to write to the index
	touched []Digest    // images for the index
	own     bool        // next.images is a copy, not shared with the last snapshot
}

// Close closes the database and the index.
func (m *metadata) Close() error {
	var errs []error
	if m.db != nil {
		errs = append(errs, m.db.Close())
	}
	if m.index.log != nil {
		errs = append(errs, m.index.log.Close())
	}
	return errors.Join(errs...)
}

// update runs change in one transaction and publishes the result. If index is set, update writes
// the index before it commits: an index ahead of the database does no harm, an index behind
// could give a tenant's id to a second tenant.
func (m *metadata) update(index bool, change func(*tx) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.updateLocked(index, change)
}

func (m *metadata) updateLocked(index bool, change func(*tx) error) error {
	t := &tx{s: m, next: m.snap.Load().clone()}
	var err error
	if t.sql, err = m.db.Begin(); err != nil {
		return dbError(err)
	}
	committed := false
	defer func() {
		_ = t.sql.Rollback()
		if t.size != nil {
			if !committed {
				if err := m.sizing.load(m.db, m.snap.Load().byDigest); err != nil {
					m.log.Error("cannot load the sizes of images: the next change does", "error", err)
				}
			}
			m.sizing.mu.Unlock()
		}
	}()
	if err := change(t); err != nil {
		return dbError(err)
	}
	if t.size != nil {
		t.next.sizes = m.sizing.publish(t.next.sizes)
	}
	if index {
		if err := m.index.add(t.indexLines(), t.next); err != nil {
			return fmt.Errorf("write index: %w", err)
		}
		defer func() { m.index.settle(committed) }()
	}
	if err := m.disk.failpoint("before commit"); err != nil {
		return err
	}
	if err := t.sql.Commit(); err != nil {
		return dbError(err)
	}
	committed = true
	m.changes.publish(t.changes, func(generation uint64) {
		if len(t.changes) > 0 {
			t.next.imagesGen = generation
		}
		m.snap.Store(t.next)
	})
	return m.disk.failpoint("after commit")
}

// updateFreeing is update for removals. On a full disk it deletes the reserve and tries again.
func (m *metadata) updateFreeing(index bool, change func(*tx) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.updateFreeingLocked(index, change)
}

func (m *metadata) updateFreeingLocked(index bool, change func(*tx) error) error {
	err := m.updateLocked(index, change)
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	if err := unix.Unlinkat(int(m.disk.root.Fd()), reserveName, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give up reserve: %w", err)
	}
	return m.updateLocked(index, change)
}

// indexLines returns the transaction's lines for the index.
func (t *tx) indexLines() []indexLine {
	lines := t.index
	slices.Sort(t.touched)
	for _, d := range slices.Compact(t.touched) {
		if img := t.next.byDigest[d]; img != nil {
			lines = append(lines, indexLine{Image: &indexed{Digest: d, Created: img.Created, Names: img.Names, Remotes: img.Remotes, Foreign: img.Foreign}})
		} else {
			lines = append(lines, indexLine{NoImage: d})
		}
	}
	return lines
}

// lockSizes locks the data behind the figures of sizes until the end of the transaction, and
// loads it if needed.
func (t *tx) lockSizes() (*sizeTx, error) {
	if t.size == nil {
		t.s.sizing.mu.Lock()
		t.size = &sizeTx{sizing: &t.s.sizing, sql: t.sql, disk: t.s.disk, log: t.s.log}
	}
	if !t.size.loaded {
		if err := t.size.load(t.sql, t.next.byDigest); err != nil {
			return nil, err
		}
	}
	return t.size, nil
}

// manyTrees is the number of unused trees from which a removal of an image forgets them, in a
// transaction of its own. A sweep forgets any number.
const manyTrees = 64

// forgetTrees forgets the trees without an image, unless they are fewer than least. On a failure
// the next sweep tries again.
func (m *metadata) forgetTrees(least int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	idle := 0
	m.sizing.mu.Lock()
	for _, t := range m.sizing.trees {
		if t.images == 0 {
			idle++
		}
	}
	m.sizing.mu.Unlock()
	if idle < least {
		return
	}
	err := m.updateLocked(false, func(t *tx) error {
		z, err := t.lockSizes()
		if err != nil {
			return err
		}
		for _, tree := range z.byID {
			if tree.images == 0 {
				if err := z.forgetTree(tree); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		m.log.Warn("sizes of removed images not dropped: the next sweep repeats the work", "error", err)
	}
}
