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

// Library keeps assets on disk, and what is known of them in memory too:
//
//	DIR/lock
//	DIR/assets/ID/asset.json   an [Asset], written whole or not at all
//	DIR/assets/ID/source       what was uploaded
//	DIR/assets/ID/...          what is made of it
//	DIR/removed/               on its way out
//
// Its methods may be called from several goroutines. One process has it at a time.
type Library struct {
	dir  string
	lock *os.File

	remove func(dir string) error // os.RemoveAll, but in tests

	// mu is held for moments, never over work of the disk: whoever reads does not wait for it.
	mu      sync.Mutex
	assets  map[string]*entry
	changed chan struct{} // closed by the next change
}

// entry is an asset in the library. Who changes the asset holds writing, which comes before
// Library.mu, until the change is on disk.
type entry struct {
	writing sync.Mutex
	asset   *Asset // guarded by Library.mu; it is not changed: others take its place
}

// ErrInUse says that another process has the library.
var ErrInUse = errors.New("another process has it")

// NewID is the name of a new asset: 16 letters and digits that nobody can guess.
func NewID() string { return strings.ToLower(rand.Text()[:16]) }

// ValidID says whether id can be one.
func ValidID(id string) bool {
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(id) == 16
}

// Open opens the library in dir, and makes it where there is none. What a crash has left half
// done is removed. An asset that cannot be read stays where it is, and is told of.
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

// read reads what is there.
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
		if errors.Is(err, fs.ErrNotExist) { // the process ended before it was there
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

// Close gives the library up.
func (l *Library) Close() error { return l.lock.Close() }

// Path is that of something of an asset's.
func (l *Library) Path(id string, elem ...string) string {
	return filepath.Join(append([]string{l.dir, "assets", id}, elem...)...)
}

// Get is the asset of an id, nil if there is none. It is not to be changed.
func (l *Library) Get(id string) *Asset {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.assets[id]; e != nil {
		return e.asset
	}
	return nil
}

// List are all of them, the newest first.
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

// Changed is closed by the next change of an asset: take it first, then look.
func (l *Library) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Create adds an asset.
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

// acquire locks an asset for a change, which release ends. The error is fs.ErrNotExist where
// there is none.
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
		e.writing.Unlock() // it was removed meanwhile
	}
	return nil, nil, fmt.Errorf("asset %s: %w", id, fs.ErrNotExist)
}

// Update has change change a copy of an asset, which takes its place once it is on disk,
// unless change returns an error. The error is fs.ErrNotExist where there is none.
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

// Progress is Update for Asset.Jobs, which is not kept over a restart.
func (l *Library) Progress(id string, jobs *Jobs) {
	e, release, err := l.acquire(id)
	if err != nil {
		return // it was removed
	}
	defer release()
	a := *e.asset
	a.Jobs = jobs
	l.replace(e, &a)
}

// Remove takes an asset away, at once for whoever looks for it, and then all of its files. The
// error is fs.ErrNotExist where there is none. Files that cannot be removed are so when the
// library is opened the next time.
func (l *Library) Remove(id string) error {
	aside, err := l.take(id)
	if err != nil {
		return err
	}
	return l.remove(aside)
}

// take takes an asset out of the library, and says where its files are now.
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

// setAside moves an asset's directory to where it is removed after a crash too.
func (l *Library) setAside(id string) (aside string, err error) {
	aside = filepath.Join(l.dir, "removed", id)
	if err := os.Rename(l.Path(id), aside); err != nil {
		return "", err
	}
	return aside, syncDir(filepath.Join(l.dir, "assets"))
}

// save writes an asset down.
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

// put makes e the entry of an id; nil for none.
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

// Commit gives a file that has been written its name: after a crash there is all of it below
// that name, or what was there before. Where that cannot be, the file is removed: the disk may
// be full.
func Commit(from, to string) (err error) {
	defer func() {
		if err != nil {
			_ = os.Remove(from) // err says more
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
