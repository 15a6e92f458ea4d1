package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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

// LockedError reports that another engine uses the state directory.
type LockedError struct {
	Dir string
	PID int // 0 if unknown
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("engine already running on that state directory: %s (pid %d)", e.Dir, e.PID)
}

// Is makes errors.Is(err, ErrLocked) true.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// ErrLocked matches a [*LockedError] in errors.Is.
var ErrLocked = errors.New("store is locked")

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

// Dir returns the absolute path of the store.
func (s *Store) Dir() string { return s.disk.dir }

// closeFiles closes the open parts, the lock last.
func (s *Store) closeFiles() error {
	return errors.Join(s.meta.Close(), s.disk.Close(), releaseLock(s.lock))
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

// Close closes the directories.
func (k *disk) Close() error {
	var errs []error
	for _, f := range []*os.File{k.objects, k.trees, k.images, k.tmp, k.root} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// releaseLock undoes takeLock; f may be nil. It unlocks explicitly: a child between fork and
// exec holds a copy of the descriptor, so close alone would keep the lock until the exec.
func releaseLock(f *os.File) error {
	if f == nil {
		return nil
	}
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}

// takeLock takes the flock on the file lock in dir and writes the pid into the file. The kernel
// releases the lock when the process ends.
func takeLock(dir *os.File) (*os.File, error) {
	f, err := openat(int(dir.Fd()), "lock", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock store %s: %w", dir.Name(), err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock store %s: %w", dir.Name(), err)
		}
		b, _ := io.ReadAll(io.LimitReader(f, 32))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return nil, &LockedError{Dir: dir.Name(), PID: pid}
	}
	// The pid is only for people: do not fail if a full disk has no room for it.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
	}
	return f, nil
}

// readNames lists an open directory from its start.
func readNames(dir *os.File) ([]string, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return dir.Readdirnames(-1)
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

// reconcile makes directories and database agree. A directory without a row is half made or half
// removed, so reconcile removes it. A row without a directory is damage from outside, because
// the directory is durable before the row exists; the image is dropped.
func (s *Store) reconcile() error {
	names, err := readNames(s.disk.images)
	if err != nil {
		return err
	}
	snap := s.meta.snap.Load()
	onDisk := make(map[Digest]bool, len(names))
	for _, name := range names {
		d := Digest(digestPrefix + name)
		if snap.byDigest[d] != nil {
			onDisk[d] = true
			continue
		}
		if err := s.disk.moveToTmp(name); err != nil {
			return err
		}
		s.disk.removeTmp(name)
	}
	var lost []Digest
	for d := range snap.byDigest {
		if !onDisk[d] {
			lost = append(lost, d)
		}
	}
	names, err = readNames(s.disk.trees)
	if err != nil {
		return err
	}
	trees := make(map[Digest]bool, len(names))
	for _, name := range names {
		trees[Digest(digestPrefix+strings.TrimSuffix(name, ".json"))] = true
	}
	var lostParts []string
	for key, p := range snap.parts {
		if !trees[p.Tree] {
			lostParts = append(lostParts, key)
		}
	}
	if len(lost)+len(lostParts) == 0 {
		return nil
	}
	return s.meta.updateFreeing(len(lost) > 0, func(tx *tx) error {
		for _, key := range lostParts {
			if err := tx.removePart(key); err != nil {
				return err
			}
		}
		for _, d := range lost {
			s.log.Warn("image directory is missing: image dropped", "digest", d, "name", snap.byDigest[d].Name)
			if err := tx.dropImage(d); err != nil {
				return err
			}
		}
		return nil
	})
}

// copyHints remembers, for each object, the first copy that may have room for links.
type copyHints struct {
	mu   sync.Mutex
	next map[string]int
}

func (c *copyHints) firstFree(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next[key]
}

func (c *copyHints) setFull(key string, next int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = make(map[string]int)
	}
	c.next[key] = next
}
