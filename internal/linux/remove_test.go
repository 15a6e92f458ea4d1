package linux_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/linux"
)

// TestRemoveAllDeep: a tree deeper than the limit of open files is removed.
func TestRemoveAllDeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	for i := range 3 {
		sub := filepath.Join(dir, strings.Repeat("s/", 60), fmt.Sprint(i)) // just before they are moved
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		fretest.NestDirs(t, sub, 600)
	}
	fretest.LimitFiles(t, 80)
	if err := linux.RemoveAll(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("afterwards: %v, want %v", err, fs.ErrNotExist)
	}
}

// TestRemoveAll: RemoveAll removes a wide tree, and follows no link out of the tree.
func TestRemoveAll(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept", "file")
	tree := filepath.Join(dir, "tree")
	wide := filepath.Join(tree, "wide")
	err := errors.Join(
		os.MkdirAll(filepath.Join(tree, "a", "empty"), 0o755), os.MkdirAll(filepath.Dir(kept), 0o755), os.MkdirAll(wide, 0o755),
		os.WriteFile(kept, []byte("kept"), 0o600), os.Link(kept, filepath.Join(tree, "link")), unix.Mkfifo(filepath.Join(tree, "fifo"), 0o600),
		os.Symlink(filepath.Dir(kept), filepath.Join(tree, "a", "directory")), os.Symlink(kept, filepath.Join(tree, "a", "file")),
		os.Symlink(filepath.Dir(kept), filepath.Join(dir, "symlink")))
	for i := range 1000 { // read in several turns
		err = errors.Join(err, os.WriteFile(filepath.Join(wide, fmt.Sprint(i)), nil, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{tree, tree, filepath.Join(tree, "not", "there"), filepath.Join(dir, "symlink")} {
		if err := linux.RemoveAll(path); err != nil {
			t.Errorf("RemoveAll(%s): %v", path, err)
		}
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 || list[0].Name() != "kept" {
		t.Errorf("left: %v, %v; want kept", list, err)
	}
	if got, err := os.ReadFile(kept); err != nil || string(got) != "kept" {
		t.Errorf("behind the links: %q, %v; want it as it was", got, err)
	}
}

// TestRemoveAllMount: a mount in the tree stays, and the files beside it are removed.
func TestRemoveAllMount(t *testing.T) {
	fretest.RequireRoot(t)
	dir := t.TempDir()
	other, tree := filepath.Join(dir, "other"), filepath.Join(dir, "tree")
	at := filepath.Join(tree, "a", "mounted")
	if err := errors.Join(os.MkdirAll(at, 0o755), os.MkdirAll(filepath.Join(other, "d"), 0o755), os.Mkdir(filepath.Join(tree, "b"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(other, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(at, unix.MNT_DETACH) }()
	for _, path := range []string{tree, at} {
		if err := linux.RemoveAll(path); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "mounted") {
			t.Errorf("RemoveAll(%s): %v, want %v of mounted", path, err, unix.EBUSY)
		}
	}
	if _, err := os.Stat(filepath.Join(other, "d")); err != nil {
		t.Errorf("what is mounted: %v", err)
	}
	if _, err := os.Stat(filepath.Join(tree, "b")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is beside: %v, want %v", err, fs.ErrNotExist)
	}
	if err := errors.Join(unix.Unmount(at, unix.MNT_DETACH), linux.RemoveAll(tree)); err != nil {
		t.Error(err)
	}
}

// TestRemoveAllWhileWritten: RemoveAll ends even while a process writes to the tree.
func TestRemoveAllWhileWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	deep := filepath.Join(dir, strings.Repeat("d/", 80))
	var stop atomic.Bool
	began, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; !stop.Load(); i++ {
			_ = os.MkdirAll(filepath.Join(deep, fmt.Sprint(i%200)), 0o755)
			if i == 100 {
				close(began)
			}
		}
	}()
	<-began
	err := linux.RemoveAll(dir)
	stop.Store(true)
	<-ended
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("RemoveAll: %v, want nil or %v", err, unix.ENOTEMPTY)
	}
	if err := linux.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}
