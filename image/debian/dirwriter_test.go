package debian_test

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// dirWriter writes a tree below a directory, and fails on what the contract of
// debian.Writer excludes.
type dirWriter struct {
	t    *testing.T
	root *os.Root
	size int64
	seen map[string]bool
}

func newDirWriter(t *testing.T, dir string) *dirWriter {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return &dirWriter{t: t, root: root, seen: map[string]bool{".": true}}
}

func (w *dirWriter) path(p string) {
	w.t.Helper()
	if !fs.ValidPath(p) || w.seen[p] || !w.seen[filepath.Dir(p)] {
		w.t.Errorf("path %q: invalid, twice, or before its parent", p)
	}
	w.seen[p] = true
}

func (w *dirWriter) File(p string, mode fs.FileMode, _ time.Time, r io.Reader) error {
	w.path(p)
	f, err := w.root.OpenFile(p, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, r)
	w.size += n
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func (w *dirWriter) Directory(p string, mode fs.FileMode, _ time.Time) error {
	w.path(p)
	return w.root.Mkdir(p, mode)
}

func (w *dirWriter) Symlink(p, target string, _ time.Time) error {
	w.path(p)
	return w.root.Symlink(target, p)
}
