package registry

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

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

// areas are the directories of a repository.
var areas = [...]string{"_blobs", "_manifests", "_tags", "_referrers"}

// exists reports whether a repository of that name exists: a client has pushed to it, and some
// content is left.
func (k *disk) exists(name string) (bool, error) {
	for _, area := range areas[:3] {
		if _, err := k.root.Stat(repoPath(name, area)); !errors.Is(err, fs.ErrNotExist) {
			return err == nil, err
		}
	}
	return false, nil
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

// link gives a repository an existing blob. The caller holds mu for reading.
func (k *disk) link(name string, d digest) error {
	if _, err := k.rely(d.blobPath()); err != nil {
		return err
	}
	marker := markerPath(name, d)
	if _, err := k.rely(marker); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := k.mkdirAll(path.Dir(marker)); err != nil {
		return err
	}
	f, err := k.root.OpenFile(marker, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// statBlob returns the size of a blob of a repository, and keeps the blob for the grace period.
// Errors: fs.ErrNotExist. The caller holds mu for reading.
func (k *disk) statBlob(name string, d digest) (int64, error) {
	if _, err := k.rely(markerPath(name, d)); err != nil {
		return 0, err
	}
	info, err := k.rely(d.blobPath())
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

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

// Close releases the directory.
func (k *disk) Close() error {
	var all []error
	if k.lock != nil {
		// Unlock explicitly: a child between fork and exec holds a copy of the descriptor.
		all = append(all, unix.Flock(int(k.lock.Fd()), unix.LOCK_UN), k.lock.Close())
	}
	return errors.Join(append(all, k.root.Close())...)
}
