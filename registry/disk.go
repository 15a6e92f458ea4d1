package registry

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"time"
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
func (r *Registry) exists(name string) (bool, error) {
	for _, area := range areas[:3] {
		if _, err := r.root.Stat(repoPath(name, area)); !errors.Is(err, fs.ErrNotExist) {
			return err == nil, err
		}
	}
	return false, nil
}

// writeFile creates or replaces a file; it appears whole and durable.
func (r *Registry) writeFile(name string, data []byte) error {
	tmp := path.Join(tmpDir, rand.Text())
	f, err := r.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = r.mkdirAll(path.Dir(name))
	}
	if err == nil {
		err = r.root.Rename(tmp, name)
	}
	if err != nil {
		return errors.Join(err, r.root.Remove(tmp))
	}
	return r.syncDir(path.Dir(name))
}

// mkdirAll makes a directory and its parents, durably.
func (r *Registry) mkdirAll(name string) error {
	err := r.root.Mkdir(name, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err := r.mkdirAll(path.Dir(name)); err != nil {
			return err
		}
		if err = r.root.Mkdir(name, 0o755); errors.Is(err, fs.ErrExist) {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return r.syncDir(path.Dir(name))
}

// syncDir makes the entries of a directory durable.
func (r *Registry) syncDir(name string) error {
	d, err := r.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// remove removes a file; a missing file is no error.
func (r *Registry) remove(name string) error {
	if err := r.root.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// rely returns the info of a file and, if the file exists, keeps it for the grace period: rely
// sets the file's time if older than half the period. The caller holds mu for reading, unless no
// client or file will depend on the answer.
func (r *Registry) rely(name string) (fs.FileInfo, error) {
	info, err := r.root.Stat(name)
	if err != nil || r.cfg.ReadOnly {
		return info, err
	}
	if now := time.Now(); now.Sub(info.ModTime()) >= r.cfg.Grace/2 {
		err = r.root.Chtimes(name, now, now)
	}
	return info, err
}

// link gives a repository an existing blob. The caller holds mu for reading.
func (r *Registry) link(name string, d digest) error {
	if _, err := r.rely(d.blobPath()); err != nil {
		return err
	}
	marker := markerPath(name, d)
	if _, err := r.rely(marker); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := r.mkdirAll(path.Dir(marker)); err != nil {
		return err
	}
	f, err := r.root.OpenFile(marker, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// statBlob returns the size of a blob of a repository, and keeps the blob for the grace period.
// Errors: fs.ErrNotExist. The caller holds mu for reading.
func (r *Registry) statBlob(name string, d digest) (int64, error) {
	if _, err := r.rely(markerPath(name, d)); err != nil {
		return 0, err
	}
	info, err := r.rely(d.blobPath())
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
