package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// Store is an open local registry. Several goroutines may use it. Returned values are shared:
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
	dir  string
	log  *slog.Logger
	lock *os.File

	// Directories, held open. File operations are relative to these descriptors.
	root, objects, trees, images, tmp *os.File

	syncs     sharedSync
	serial    atomic.Uint64 // makes names below tmp/ unique in this process
	copies    copies
	linkLimit uint64                   // tests: links a file may have, 0 for the file system's own limit
	fail      func(point string) error // tests: called at each failpoint

	db *sql.DB
	// mu is held while the database and the snapshot change. Lock order: sweeping, leases.mu,
	// mu, sizing.mu, changes.mu.
	mu   sync.Mutex
	snap atomic.Pointer[snapshot]
	// index is the source for rebuilding a lost database; also guarded by mu.
	index indexFile

	sizing sizing

	recentMu sync.Mutex
	recent   keptTrees // trees of recently linked images

	changes  *Changes
	sweeping sync.Mutex // held by a running sweep or check
	// takingOver is held while a file becomes root's, so a second call for the same file sees
	// the new owner.
	takingOver sync.Mutex

	leases leases
	uses   uses
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
	s := &Store{dir: dir, log: log}
	// Avoid the names of leftovers that an earlier Open could not remove.
	s.serial.Store(uint64(time.Now().UnixNano()))
	s.leases.init()
	defer func() {
		if err != nil {
			_ = s.closeFiles()
		}
	}()
	if s.root, err = os.Open(dir); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if s.lock, err = takeLock(dir); err != nil {
		return nil, err
	}
	if err := s.openDirs(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := s.emptyTmp(); err != nil {
		return nil, fmt.Errorf("empty tmp: %w", err)
	}
	if err := s.openChanges(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := s.openIndex(); err != nil {
		return nil, fmt.Errorf("open store index: %w", err)
	}
	if err := s.openDB(); err != nil {
		return nil, fmt.Errorf("open store database: %w", err)
	}
	if err := s.reconcile(); err != nil {
		return nil, fmt.Errorf("reconcile store: %w", err)
	}
	if err := s.loadUses(); err != nil {
		return nil, fmt.Errorf("open store database: %w", err)
	}
	s.fillReserve()
	return s, nil
}

// A removal writes to the database before it frees space. The reserve is a file of reserveSize
// bytes that the store deletes if a removal meets a full disk.
const (
	reserveName = "reserve"
	reserveSize = 512 << 10
)

// fillReserve creates the reserve if it is missing and the disk has room.
func (s *Store) fillReserve() {
	root := int(s.root.Fd())
	f, err := openat(root, reserveName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return
	}
	if err == nil {
		_, err = f.Write(make([]byte, reserveSize))
		if err = errors.Join(err, f.Close()); err != nil {
			_ = unix.Unlinkat(root, reserveName, 0)
		}
	}
	if err != nil {
		s.log.Warn("no disk space for the reserve for removals on a full disk", "error", err)
	}
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
func (s *Store) Dir() string { return s.dir }

func (s *Store) closeFiles() error {
	var errs []error
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.index.log != nil {
		errs = append(errs, s.index.log.Close())
	}
	// Unlock explicitly, and last: a child between fork and exec holds a copy of the descriptor,
	// so close alone would keep the lock until the exec.
	if s.lock != nil {
		errs = append(errs, unix.Flock(int(s.lock.Fd()), unix.LOCK_UN))
	}
	for _, f := range []*os.File{s.objects, s.trees, s.images, s.tmp, s.root, s.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// takeLock takes the flock on dir/lock and writes the pid into the file. The kernel releases the
// lock when the process ends.
func takeLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock store: %w", err)
		}
		b, _ := io.ReadAll(io.LimitReader(f, 32))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return nil, &LockedError{Dir: dir, PID: pid}
	}
	// The pid is only for people: do not fail if a full disk has no room for it.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
	}
	return f, nil
}

func (s *Store) openDirs() error {
	made := false
	mkdir := func(name string) error {
		err := unix.Mkdirat(int(s.root.Fd()), name, 0o700)
		if err == nil {
			made = true
		}
		if errors.Is(err, unix.EEXIST) {
			return nil
		}
		return err
	}
	for _, d := range []struct {
		name string
		file **os.File
	}{{"objects", &s.objects}, {"trees", &s.trees}, {"images", &s.images}, {"tmp", &s.tmp}} {
		if err := mkdir(d.name); err != nil {
			return fmt.Errorf("mkdir %s: %w", d.name, err)
		}
		var err error
		if *d.file, err = openat(int(s.root.Fd()), d.name, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
			return err
		}
	}
	if made {
		return s.syncfs()
	}
	return nil
}

// syncfs writes the whole file system of the store to disk: far cheaper than an fsync for each
// of thousands of files. All callers that arrive during one run share the next run.
func (s *Store) syncfs() error {
	return s.syncs.share(func() error {
		if err := unix.Syncfs(int(s.tmp.Fd())); err != nil {
			return fmt.Errorf("syncfs: %w", err)
		}
		return nil
	})
}

// sharedSync lets several callers share one sync. A caller's earlier writes are on disk after
// any sync that began later.
type sharedSync struct {
	mu   sync.Mutex
	next *syncRun // queued, not yet begun
	last *syncRun // the latest run, queued or begun
}

type syncRun struct {
	done chan struct{}
	err  error // once done is closed
}

func (g *sharedSync) share(run func() error) error {
	g.mu.Lock()
	if r := g.next; r != nil {
		g.mu.Unlock()
		<-r.done
		return r.err
	}
	r, before := &syncRun{done: make(chan struct{})}, g.last
	g.next, g.last = r, r
	g.mu.Unlock()

	if before != nil {
		<-before.done
	}
	g.mu.Lock()
	g.next = nil
	g.mu.Unlock()
	r.err = run()
	close(r.done)
	return r.err
}

// emptyTmp removes the leftovers of a crash. Leftovers that cannot be removed do no harm.
func (s *Store) emptyTmp() error {
	names, err := readNames(s.tmp)
	if err != nil {
		return err
	}
	for _, name := range names {
		s.removeTmp(name)
	}
	return nil
}

// readNames lists an open directory from its start.
func readNames(dir *os.File) ([]string, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return dir.Readdirnames(-1)
}

// mkdirTmp makes and opens a directory below tmp/.
func (s *Store) mkdirTmp(name string) (*os.File, error) {
	if err := unix.Mkdirat(int(s.tmp.Fd()), name, 0o700); err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return openat(int(s.tmp.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// removeTmp removes a tree below tmp/. If the removal fails the next Open repeats it.
func (s *Store) removeTmp(name string) {
	if err := linux.RemoveAll(filepath.Join(s.dir, "tmp", name)); err != nil {
		s.log.Warn("cannot remove temporary tree", "name", name, "error", err)
	}
}

// MkdirScratch makes a private directory on the store's file system. The caller removes it; the
// next Open removes a leftover.
func (s *Store) MkdirScratch() (string, error) {
	dir, err := os.MkdirTemp(filepath.Join(s.dir, "tmp"), "scratch-")
	if err != nil {
		return "", fmt.Errorf("make scratch directory: %w", err)
	}
	return dir, nil
}

func (s *Store) failpoint(name string) error {
	if s.fail == nil {
		return nil
	}
	return s.fail(name)
}

// reconcile makes directories and database agree. A directory without a row is half made or half
// removed, so reconcile removes it. A row without a directory is damage from outside, because
// the directory is durable before the row exists; the image is dropped.
func (s *Store) reconcile() error {
	names, err := readNames(s.images)
	if err != nil {
		return err
	}
	snap := s.snap.Load()
	onDisk := make(map[Digest]bool, len(names))
	for _, name := range names {
		d := Digest(digestPrefix + name)
		if snap.byDigest[d] != nil {
			onDisk[d] = true
			continue
		}
		if err := s.moveToTmp(name); err != nil {
			return err
		}
		s.removeTmp(name)
	}
	var lost []Digest
	for d := range snap.byDigest {
		if !onDisk[d] {
			lost = append(lost, d)
		}
	}
	names, err = readNames(s.trees)
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
	return s.updateFreeing(len(lost) > 0, func(tx *tx) error {
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

// moveToTmp takes an image directory away in one step.
func (s *Store) moveToTmp(name string) error {
	err := unix.Renameat(int(s.images.Fd()), name, int(s.tmp.Fd()), name)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		s.removeTmp(name)
		err = unix.Renameat(int(s.images.Fd()), name, int(s.tmp.Fd()), name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("move image %s aside: %w", name, err)
	}
	return nil
}

// copies remembers, for each object, the first copy that may have room for links.
type copies struct {
	mu   sync.Mutex
	next map[string]int
}

func (c *copies) first(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next[key]
}

func (c *copies) full(key string, next int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = make(map[string]int)
	}
	c.next[key] = next
}
