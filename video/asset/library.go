package asset

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Library stores assets on disk, with their descriptions in memory too:
//
//	DIR/lock
//	DIR/assets/ID/asset.json   an [Asset], written atomically
//	DIR/assets/ID/source       the uploaded file
//	DIR/assets/ID/...          the results
//	DIR/removed/               assets being deleted
//
// Its methods are safe for concurrent use. A single process at a time holds a library.
type Library struct {
	dir  string
	lock *os.File

	remove func(dir string) error // os.RemoveAll; tests replace it

	// mu is never held during disk I/O, so readers do not wait for the disk.
	mu      sync.Mutex
	assets  map[string]*entry
	changed chan struct{} // closed by the next change
}

// entry is an asset in the library. A writer holds writing until the change is on disk. Lock
// order: writing before Library.mu.
type entry struct {
	writing sync.Mutex
	asset   *Asset // guarded by Library.mu; immutable: a change replaces the pointer
}

// ErrInUse reports that another process holds the library.
var ErrInUse = errors.New("another process has it")

// NewID returns an id for a new asset: 16 unguessable letters and digits.
func NewID() string { return strings.ToLower(rand.Text()[:16]) }

// ValidID reports whether id has the form of an asset's id.
func ValidID(id string) bool {
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(id) == 16
}

// Open opens or creates the library in dir and deletes what a crash left unfinished. An
// unreadable asset stays on disk and adds an error to damaged. If another process holds the
// library, the error wraps ErrInUse.
func Open(dir string) (l *Library, damaged []error, err error) {
	for _, sub := range []string{"assets", "removed"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, nil, err
		}
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%s: %w", dir, ErrInUse)
		}
		return nil, nil, err
	}
	l = &Library{dir: dir, lock: lock, remove: os.RemoveAll, assets: map[string]*entry{}, changed: make(chan struct{})}
	damaged, err = l.read()
	if err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	return l, damaged, nil
}

// read loads all assets.
func (l *Library) read() (damaged []error, err error) {
	if err := removeAll(filepath.Join(l.dir, "removed")); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(l.dir, "assets"))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		id := e.Name()
		if !e.IsDir() || !ValidID(id) {
			damaged = append(damaged, fmt.Errorf("%s is no asset", filepath.Join(l.dir, "assets", id)))
			continue
		}
		b, err := os.ReadFile(l.Path(id, "asset.json"))
		if errors.Is(err, fs.ErrNotExist) { // the process ended before asset.json was written
			aside, err := l.setAside(id)
			if err == nil {
				err = l.remove(aside)
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		a := &Asset{}
		if err == nil {
			err = json.Unmarshal(b, a)
		}
		if err == nil && a.ID != id {
			err = fmt.Errorf("it is of %q", a.ID)
		}
		if err != nil {
			damaged = append(damaged, fmt.Errorf("read %s: %w", l.Path(id, "asset.json"), err))
			continue
		}
		l.assets[id] = &entry{asset: a}
	}
	return damaged, nil
}

// removeAll empties a directory.
func removeAll(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// Close releases the library's lock.
func (l *Library) Close() error {
	// Unlock explicitly: a child between fork and exec holds a copy of the descriptor.
	return errors.Join(unix.Flock(int(l.lock.Fd()), unix.LOCK_UN), l.lock.Close())
}

// Path returns the path of a file in an asset's directory.
func (l *Library) Path(id string, elem ...string) string {
	return filepath.Join(append([]string{l.dir, "assets", id}, elem...)...)
}

// Get returns the asset of an id, or nil. The caller must not change the asset.
func (l *Library) Get(id string) *Asset {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.assets[id]; e != nil {
		return e.asset
	}
	return nil
}

// List returns all assets, the newest first. The caller must not change them.
func (l *Library) List() []*Asset {
	l.mu.Lock()
	all := make([]*Asset, 0, len(l.assets))
	for _, e := range l.assets {
		all = append(all, e.asset)
	}
	l.mu.Unlock()
	slices.SortFunc(all, func(a, b *Asset) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// Changed returns a channel closed by the next change of any asset. Call Changed first and read
// the assets afterwards, to miss no change.
func (l *Library) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Create adds an asset with a new, valid ID.
func (l *Library) Create(a *Asset) error {
	if !ValidID(a.ID) {
		return fmt.Errorf("asset id %q: 16 lower-case letters and digits", a.ID)
	}
	if err := os.Mkdir(l.Path(a.ID), 0o700); err != nil {
		return err
	}
	err := l.save(a)
	if err == nil {
		err = syncDir(filepath.Join(l.dir, "assets"))
	}
	if err != nil {
		return errors.Join(err, l.remove(l.Path(a.ID)))
	}
	l.put(a.ID, &entry{asset: a})
	return nil
}

// acquire locks an asset for a change. The caller calls release. The error of an unknown asset is
// fs.ErrNotExist.
func (l *Library) acquire(id string) (e *entry, release func(), err error) {
	l.mu.Lock()
	e = l.assets[id]
	l.mu.Unlock()
	if e != nil {
		e.writing.Lock()
		l.mu.Lock()
		there := l.assets[id] == e
		l.mu.Unlock()
		if there {
			return e, e.writing.Unlock, nil
		}
		e.writing.Unlock() // removed meanwhile
	}
	return nil, nil, fmt.Errorf("asset %s: %w", id, fs.ErrNotExist)
}

// Update calls change with a copy of an asset. Once the copy is on disk, it replaces the asset.
// An error of change cancels the update. The error of an unknown asset is fs.ErrNotExist.
func (l *Library) Update(id string, change func(a *Asset) error) (*Asset, error) {
	e, release, err := l.acquire(id)
	if err != nil {
		return nil, err
	}
	defer release()
	a := *e.asset
	if err := change(&a); err != nil {
		return nil, err
	}
	if err := l.save(&a); err != nil {
		return nil, err
	}
	l.replace(e, &a)
	return &a, nil
}

// Progress sets an asset's Jobs, in memory only.
func (l *Library) Progress(id string, jobs *Jobs) {
	e, release, err := l.acquire(id)
	if err != nil {
		return // the asset was removed
	}
	defer release()
	a := *e.asset
	a.Jobs = jobs
	l.replace(e, &a)
}

// Remove takes an asset out of the library at once and then deletes its files. The error of an
// unknown asset is fs.ErrNotExist. The next Open deletes any files Remove could not.
func (l *Library) Remove(id string) error {
	aside, err := l.take(id)
	if err != nil {
		return err
	}
	return l.remove(aside)
}

// take removes an asset from the library and returns the new path of its files.
func (l *Library) take(id string) (aside string, err error) {
	e, release, err := l.acquire(id)
	if err != nil {
		return "", err
	}
	defer release()
	l.put(id, nil)
	if aside, err = l.setAside(id); err != nil {
		l.put(id, e)
	}
	return aside, err
}

// setAside moves an asset's directory to removed/, which the next Open empties after a crash.
func (l *Library) setAside(id string) (aside string, err error) {
	aside = filepath.Join(l.dir, "removed", id)
	if err := os.Rename(l.Path(id), aside); err != nil {
		return "", err
	}
	return aside, syncDir(filepath.Join(l.dir, "assets"))
}

// save writes asset.json.
func (l *Library) save(a *Asset) error {
	kept := *a
	kept.Jobs = nil
	b, err := json.MarshalIndent(&kept, "", " ")
	if err != nil {
		return err
	}
	path := l.Path(a.ID, "asset.json")
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return Commit(path+".new", path)
}

// put sets the entry of an id. A nil e deletes the entry.
func (l *Library) put(id string, e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e == nil {
		delete(l.assets, id)
	} else {
		l.assets[id] = e
	}
	l.wakeLocked()
}

func (l *Library) replace(e *entry, a *Asset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.asset = a
	l.wakeLocked()
}

func (l *Library) wakeLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Commit syncs a written file and renames it. After a crash, to has either the whole new content
// or the old content. If Commit fails, it deletes from, since the disk may be full.
func Commit(from, to string) (err error) {
	defer func() {
		if err != nil {
			_ = os.Remove(from) // err tells more
		}
	}()
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
