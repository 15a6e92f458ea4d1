package asset

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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

	mu      sync.Mutex
	assets  map[string]*Asset // none of them is changed: others take their places
	changed chan struct{}     // closed by the next change
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
	l = &Library{dir: dir, lock: lock, assets: map[string]*Asset{}, changed: make(chan struct{})}
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
			if err := l.discard(id); err != nil {
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
		l.assets[id] = a
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
	return l.assets[id]
}

// List are all of them, the newest first, and what is closed by the next change of one.
func (l *Library) List() ([]*Asset, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.SortedFunc(maps.Values(l.assets), func(a, b *Asset) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	return all, l.changed
}

// Create adds an asset.
func (l *Library) Create(a *Asset) error {
	if !ValidID(a.ID) {
		return fmt.Errorf("asset id %q: 16 lower-case letters and digits", a.ID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := os.Mkdir(l.Path(a.ID), 0o700); err != nil {
		return err
	}
	if err := l.saveLocked(a); err != nil {
		return errors.Join(err, l.discard(a.ID))
	}
	return nil
}

// Update has change change a copy of an asset, which takes its place once it is on disk.
// The error is fs.ErrNotExist where there is none.
func (l *Library) Update(id string, change func(a *Asset)) (*Asset, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.assets[id]
	if before == nil {
		return nil, fmt.Errorf("asset %s: %w", id, fs.ErrNotExist)
	}
	a := *before
	change(&a)
	return &a, l.saveLocked(&a)
}

// Progress is Update for Asset.Jobs, which is not kept over a restart.
func (l *Library) Progress(id string, jobs *Jobs) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before := l.assets[id]; before != nil {
		a := *before
		a.Jobs = jobs
		l.putLocked(&a)
	}
}

// Remove takes an asset away, and all of its files. The error is fs.ErrNotExist where there
// is none.
func (l *Library) Remove(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.assets[id] == nil {
		return fmt.Errorf("asset %s: %w", id, fs.ErrNotExist)
	}
	if err := l.discard(id); err != nil {
		return err
	}
	delete(l.assets, id)
	l.wakeLocked()
	return nil
}

// discard removes an asset's directory: at once for whoever looks for it.
func (l *Library) discard(id string) error {
	aside := filepath.Join(l.dir, "removed", id)
	if err := os.Rename(l.Path(id), aside); err != nil {
		return err
	}
	if err := syncDir(filepath.Join(l.dir, "assets")); err != nil {
		return err
	}
	return os.RemoveAll(aside)
}

func (l *Library) saveLocked(a *Asset) error {
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
	if err := Commit(path+".new", path); err != nil {
		return err
	}
	if err := syncDir(filepath.Join(l.dir, "assets")); err != nil {
		return err
	}
	l.putLocked(a)
	return nil
}

func (l *Library) putLocked(a *Asset) {
	l.assets[a.ID] = a
	l.wakeLocked()
}

func (l *Library) wakeLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Commit gives a file that has been written its name: after a crash there is all of it below
// that name, or what was there before.
func Commit(from, to string) error {
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
