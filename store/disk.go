package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// disk is the store's state directory: objects, trees and images as files, and no database. Its
// methods make a change durable, or report what stands on disk.
type disk struct {
	dir string
	log *slog.Logger

	// Directories, held open. File operations are relative to these descriptors.
	root, objects, trees, images, tmp *os.File

	syncs  sharedSync
	serial atomic.Uint64 // makes names below tmp/ unique in this process
	copies copyHints
	// takingOver is held while a file becomes root's, so a second call for the same file sees
	// the new owner.
	takingOver sync.Mutex

	linkLimit uint64                   // tests: links a file may have, 0 for the file system's own limit
	failAt    func(point string) error // tests: called at each failpoint
}

func (k *disk) openDirs() error {
	made := false
	mkdir := func(name string) error {
		err := unix.Mkdirat(int(k.root.Fd()), name, 0o700)
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
	}{{"objects", &k.objects}, {"trees", &k.trees}, {"images", &k.images}, {"tmp", &k.tmp}} {
		if err := mkdir(d.name); err != nil {
			return fmt.Errorf("mkdir %s: %w", d.name, err)
		}
		var err error
		if *d.file, err = openat(int(k.root.Fd()), d.name, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
			return err
		}
	}
	if made {
		return k.syncfs()
	}
	return nil
}

// syncfs writes the whole file system of the store to disk: far cheaper than an fsync for each
// of thousands of files. All callers that arrive during one run share the next run.
func (k *disk) syncfs() error {
	return k.syncs.share(func() error {
		if err := unix.Syncfs(int(k.tmp.Fd())); err != nil {
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
func (k *disk) emptyTmp() error {
	names, err := readNames(k.tmp)
	if err != nil {
		return err
	}
	for _, name := range names {
		k.removeTmp(name)
	}
	return nil
}

// mkdirTmp makes and opens a directory below tmp/.
func (k *disk) mkdirTmp(name string) (*os.File, error) {
	if err := unix.Mkdirat(int(k.tmp.Fd()), name, 0o700); err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return openat(int(k.tmp.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// removeTmp removes a tree below tmp/. If the removal fails the next Open repeats it.
func (k *disk) removeTmp(name string) {
	if err := linux.RemoveAll(filepath.Join(k.dir, "tmp", name)); err != nil {
		k.log.Warn("cannot remove temporary tree", "name", name, "error", err)
	}
}

func (k *disk) failpoint(name string) error {
	if k.failAt == nil {
		return nil
	}
	return k.failAt(name)
}

// fillReserve creates the reserve if it is missing and the disk has room.
func (k *disk) fillReserve() {
	root := int(k.root.Fd())
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
		k.log.Warn("no disk space for the reserve for removals on a full disk", "error", err)
	}
}

// A removal writes to the database before it frees space. The reserve is a file of reserveSize
// bytes that the store deletes if a removal meets a full disk.
const (
	reserveName = "reserve"
	reserveSize = 512 << 10
)

// listDir lists a directory of the store through a descriptor of its own, so several calls may
// run at once.
func (k *disk) listDir(name string) ([]string, error) {
	dir, err := openat(int(k.root.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

func (k *disk) readTree(d Digest) (*Tree, error) {
	b, err := os.ReadFile(filepath.Join(k.dir, "trees", d.hex()+".json"))
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", d, err)
	}
	if sumDigest(b) != d {
		return nil, fmt.Errorf("tree %s: %w: content has changed", d, ErrTree)
	}
	t, err := decodeTree(b)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", d, err)
	}
	return t, nil
}

// treeKeys returns the keys of the objects of a tree.
func (k *disk) treeKeys(d Digest) ([]string, error) {
	t, err := k.readTree(d)
	if err != nil {
		return nil, err
	}
	keys := make([]string, 0, len(t.Entries))
	for i := range t.Entries {
		if e := &t.Entries[i]; e.hasObject() {
			keys = append(keys, e.key())
		}
	}
	return keys, nil
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
