package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Open opens the store in dir, creates it if missing, and repairs the leftovers of a crash. Only
// one process at a time may have it open; a second Open returns a *LockedError.
func Open(dir string, log *slog.Logger) (_ *Store, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	d := &disk{dir: dir, log: log}
	s := &Store{log: log, disk: d, meta: &metadata{disk: d, log: log}}
	s.treeReader = treeReader{disk: d, leases: &s.leases}
	s.sweeper = sweeper{disk: d, meta: s.meta, leases: &s.leases, log: log}
	// Avoid the names of leftovers that an earlier Open could not remove.
	s.disk.serial.Store(uint64(time.Now().UnixNano()))
	s.leases.init()
	defer func() {
		if err != nil {
			_ = s.closeFiles()
		}
	}()
	if s.disk.root, err = os.Open(dir); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if s.lock, err = takeLock(d.root); err != nil {
		return nil, err
	}
	if err := s.disk.openDirs(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := s.disk.emptyTmp(); err != nil {
		return nil, fmt.Errorf("empty tmp: %w", err)
	}
	if s.meta.changes, err = d.openChanges(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if s.meta.index, err = d.openIndex(); err != nil {
		return nil, fmt.Errorf("open store index: %w", err)
	}
	if err := s.meta.openDB(); err != nil {
		return nil, fmt.Errorf("open store database: %w", err)
	}
	if err := s.reconcile(); err != nil {
		return nil, fmt.Errorf("reconcile store: %w", err)
	}
	if err := s.uses.load(s.meta); err != nil {
		return nil, fmt.Errorf("open store database: %w", err)
	}
	s.disk.fillReserve()
	return s, nil
}

// Close closes the database and releases the lock. The caller finishes its Writers and calls
// first.
func (s *Store) Close() error {
	if err := s.SaveUses(context.Background()); err != nil {
		s.log.Warn("the times of the last use of images will be lost", "error", err)
	}
	return s.closeFiles()
}

// closeFiles closes the open parts, the lock last.
func (s *Store) closeFiles() error {
	return errors.Join(s.meta.Close(), s.disk.Close(), releaseLock(s.lock))
}

// reconcile makes directories and database agree. A row without a directory is damage from
// outside, because the directory is durable before the row exists; the image is dropped.
func (s *Store) reconcile() error {
	lost, err := s.removeHalfImages()
	if err != nil {
		return err
	}
	lostParts, err := s.partsWithoutTree()
	if err != nil || len(lost)+len(lostParts) == 0 {
		return err
	}
	images := s.meta.snap.Load().byDigest
	return s.meta.updateFreeing(len(lost) > 0, func(tx *tx) error {
		for _, key := range lostParts {
			if err := tx.removePart(key); err != nil {
				return err
			}
		}
		for _, d := range lost {
			s.log.Warn("image directory is missing: image dropped", "digest", d, "name", images[d].Name)
			if err := tx.dropImage(d); err != nil {
				return err
			}
		}
		return nil
	})
}

// removeHalfImages removes each directory without a row, because it is half made or half
// removed. It returns the images whose directory is missing.
func (s *Store) removeHalfImages() (lost []Digest, err error) {
	names, err := readNames(s.disk.images)
	if err != nil {
		return nil, err
	}
	images := s.meta.snap.Load().byDigest
	onDisk := make(map[Digest]bool, len(names))
	for _, name := range names {
		d := Digest(digestPrefix + name)
		if images[d] != nil {
			onDisk[d] = true
			continue
		}
		if err := s.disk.moveToTmp(name); err != nil {
			return nil, err
		}
		s.disk.removeTmp(name)
	}
	for d := range images {
		if !onDisk[d] {
			lost = append(lost, d)
		}
	}
	return lost, nil
}

// partsWithoutTree returns the keys of the parts whose tree is missing.
func (s *Store) partsWithoutTree() (keys []string, err error) {
	names, err := readNames(s.disk.trees)
	if err != nil {
		return nil, err
	}
	trees := make(map[Digest]bool, len(names))
	for _, name := range names {
		trees[Digest(digestPrefix+strings.TrimSuffix(name, ".json"))] = true
	}
	for key, p := range s.meta.snap.Load().parts {
		if !trees[p.Tree] {
			keys = append(keys, key)
		}
	}
	return keys, nil
}
