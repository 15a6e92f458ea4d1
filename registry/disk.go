package registry

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInUse is wrapped by [Open] if another process has the directory open.
var ErrInUse = errors.New("the directory is in use by another registry")

const (
	versionFile = "version"
	version     = "fre registry 1\n"
	tmpDir      = "tmp"
	uploadsDir  = "uploads"
	blobsDir    = "blobs"
	reposDir    = "repos"
)

// disk is the directory of a registry. Its methods make a change durable before they return.
type disk struct {
	root     *os.Root
	lock     *os.File
	readOnly bool
	grace    time.Duration // for which unreferenced files are kept

	// mu guards the files below repos and blobs. A caller that creates a file, or relies on one,
	// holds mu for reading, from the check of the file's references until the new file exists. A
	// caller that removes a file holds mu for writing.
	mu sync.RWMutex
}

// repoPath returns a path below a repository.
func repoPath(name string, elem ...string) string {
	return path.Join(append([]string{reposDir, name}, elem...)...)
}

func markerPath(name string, d digest) string   { return repoPath(name, "_blobs", d.path()) }
func manifestPath(name string, d digest) string { return repoPath(name, "_manifests", d.path()) }
func tagPath(name, tag string) string           { return repoPath(name, "_tags", tag) }

// referrerPath returns the path of the descriptor of a manifest, by the manifest's subject.
func referrerPath(name string, subject, manifest digest) string {
	return repoPath(name, "_referrers", subject.path(), manifest.algorithm+"-"+manifest.hex)
}

// writeFile creates or replaces a file; it appears whole and durable.
func (k *disk) writeFile(name string, data []byte) error {
	tmp := path.Join(tmpDir, rand.Text())
	f, err := k.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = k.mkdirAll(path.Dir(name))
	}
	if err == nil {
		err = k.root.Rename(tmp, name)
	}
	if err != nil {
		return errors.Join(err, k.root.Remove(tmp))
	}
	return k.syncDir(path.Dir(name))
}

// mkdirAll makes a directory and its parents, durably.
func (k *disk) mkdirAll(name string) error {
	err := k.root.Mkdir(name, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err := k.mkdirAll(path.Dir(name)); err != nil {
			return err
		}
		if err = k.root.Mkdir(name, 0o755); errors.Is(err, fs.ErrExist) {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return k.syncDir(path.Dir(name))
}

// syncDir makes the entries of a directory durable.
func (k *disk) syncDir(name string) error {
	d, err := k.root.OpenFile(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// remove removes a file; a missing file is no error.
func (k *disk) remove(name string) error {
	if err := k.root.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// rely returns the info of a file and, if the file exists, keeps it for the grace period: rely
// sets the file's time if older than half the period. The caller holds mu for reading, unless no
// client or file will depend on the answer.
func (k *disk) rely(name string) (fs.FileInfo, error) {
	info, err := k.root.Stat(name)
	if err != nil || k.readOnly {
		return info, err
	}
	if now := time.Now(); now.Sub(info.ModTime()) >= k.grace/2 {
		err = k.root.Chtimes(name, now, now)
	}
	return info, err
}

// acquire locks the directory by its version file, which it creates in an empty directory.
func (k *disk) acquire() error {
	flag, how := os.O_RDWR|os.O_CREATE, unix.LOCK_EX
	if k.readOnly {
		flag, how = os.O_RDONLY, unix.LOCK_SH
	} else if err := k.checkDir(); err != nil {
		return err
	}
	f, err := k.root.OpenFile(versionFile, flag, 0o644)
	if err != nil {
		return err
	}
	k.lock = f
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrInUse
		}
		return fmt.Errorf("lock: %w", err)
	}
	var found [64]byte
	n, _ := f.ReadAt(found[:], 0)
	switch {
	case string(found[:n]) == version:
		return nil
	case n == 0 && !k.readOnly:
		if _, err := f.WriteAt([]byte(version), 0); err != nil {
			return err
		}
		return f.Sync()
	}
	return fmt.Errorf("unknown version %q, not %q: written by a newer FRE, or not a registry", found[:n], version)
}

// prepare makes the directories.
func (k *disk) prepare() error {
	// Files in tmp are half written and were never acknowledged.
	if err := k.root.RemoveAll(tmpDir); err != nil {
		return err
	}
	for _, dir := range []string{tmpDir, uploadsDir, blobsDir, reposDir} {
		if err := k.root.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// checkDir refuses a directory with other files and no registry.
func (k *disk) checkDir() error {
	if _, err := k.root.Stat(versionFile); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	entries, err := fs.ReadDir(k.root.FS(), ".")
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("holds %s but no registry: give an empty or a new directory", entries[0].Name())
	}
	return nil
}

// Close releases the directory.
func (k *disk) Close() error {
	var all []error
	if k.lock != nil {
		// Unlock explicitly: a child between fork and exec holds a copy of the descriptor.
		all = append(all, unix.Flock(int(k.lock.Fd()), unix.LOCK_UN), k.lock.Close())
	}
	return errors.Join(append(all, k.root.Close())...)
}

// fileTime returns the current time of the clock that stamps files; that clock lags a little.
func (k *disk) fileTime() (time.Time, error) {
	if k.readOnly {
		return time.Now(), nil
	}
	if err := k.root.WriteFile(path.Join(tmpDir, "now"), []byte("now"), 0o644); err != nil {
		return time.Time{}, err
	}
	info, err := k.root.Stat(path.Join(tmpDir, "now"))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// list returns the names in a directory, sorted by their bytes; none if the directory is
// missing.
func (k *disk) list(dir string) ([]string, error) {
	d, err := k.root.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// blobPath returns the path of the content, common to all repositories.
func (d digest) blobPath() string { return path.Join(blobsDir, d.algorithm, d.hex[:2], d.hex) }
