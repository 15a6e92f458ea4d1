package asset_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/video/asset"
)

func open(t *testing.T, dir string) (*asset.Library, []error) {
	t.Helper()
	l, damaged, err := asset.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, damaged
}

// TestCloseBesideChild: a closed library can be opened although a child between fork and exec still
// holds a copy of the lock's descriptor.
func TestCloseBesideChild(t *testing.T) {
	dir := t.TempDir()
	l, _ := open(t, dir)
	copied, err := unix.Dup(l.Lock())
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(copied)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
}

// TestLibrary: assets are unchanged after a restart, and a removed asset's files are gone.
func TestLibrary(t *testing.T) {
	fretest.CheckLeaks(t)
	dir := t.TempDir()
	l, _ := open(t, dir)
	if _, _, err := asset.Open(dir); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("opened twice: %v", err)
	}
	var ids []string
	for i := range 3 {
		id := asset.NewID()
		ids = append(ids, id)
		if err := l.Create(&asset.Asset{ID: id, Name: "../a", Created: time.Unix(int64(i), 0).UTC(), State: asset.Uploading}); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"", "..", "a/b", strings.Repeat("a", 17), ids[0][:15] + "A"} {
		if err := l.Create(&asset.Asset{ID: bad}); err == nil {
			t.Errorf("%q is an asset's id", bad)
		}
	}
	if err := l.Create(&asset.Asset{ID: ids[0]}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("created twice: %v", err)
	}
	changed, before := l.Changed(), l.List()
	a, err := l.Update(ids[1], func(a *asset.Asset) error {
		a.State, a.Jobs = asset.Working, &asset.Jobs{All: 2}
		return nil
	})
	if err != nil || a.State != asset.Working || before[1].State != asset.Uploading {
		t.Errorf("%+v, %v; before %+v", a, err, before[1])
	}
	<-changed
	l.Progress(ids[1], &asset.Jobs{Done: 1, All: 2})
	if got := l.Get(ids[1]); got.Jobs.Done != 1 || got.State != asset.Working {
		t.Errorf("%+v", got)
	}
	if err := os.WriteFile(l.Path(ids[2], "source"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(ids[2]); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(ids[2]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := l.Update(ids[2], func(*asset.Asset) error { return nil }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("changed what is gone: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, damaged := open(t, dir)
	all := l.List()
	if len(all) != 2 || all[0].ID != ids[1] || all[0].State != asset.Working || all[0].Jobs != nil || all[1].Name != "../a" || len(damaged) > 0 {
		t.Errorf("%+v, %v", all, damaged)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "removed", "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestLibraryAfterCrash: an unfinished asset is removed, a damaged asset is reported.
func TestLibraryAfterCrash(t *testing.T) {
	dir := t.TempDir()
	l, _ := open(t, dir)
	good, torn, half, other := asset.NewID(), asset.NewID(), asset.NewID(), asset.NewID()
	for _, id := range []string{good, torn} {
		if err := l.Create(&asset.Asset{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{
		l.Path(torn, "asset.json"):            "{",
		l.Path(half, "source"):                "not whole",
		l.Path(other, "asset.json"):           `{"id": "` + good + `"}`,
		l.Path(good, "asset.json.new"):        "{",
		filepath.Join(dir, "removed/a/b"):     "x",
		filepath.Join(dir, "assets/file.txt"): "x",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, damaged := open(t, dir)
	if all := l.List(); len(all) != 1 || all[0].ID != good {
		t.Errorf("%+v", all)
	}
	if len(damaged) != 3 {
		t.Errorf("damaged: %v", damaged)
	}
	for _, gone := range []string{l.Path(half), filepath.Join(dir, "removed/a")} {
		if _, err := os.Stat(gone); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", gone, err)
		}
	}
	if _, err := os.Stat(l.Path(torn, "asset.json")); err != nil {
		t.Error(err)
	}
}

// reads fails the test if readers of the library must wait for the disk.
func reads(t *testing.T, l *asset.Library, ids ...string) {
	t.Helper()
	done := make(chan []*asset.Asset)
	go func() {
		l.Changed()
		for _, id := range ids {
			l.Get(id)
		}
		done <- l.List()
	}()
	select {
	case all := <-done:
		if len(all) != len(ids) {
			t.Errorf("%d assets, want %d", len(all), len(ids))
		}
	case <-time.After(time.Minute):
		t.Fatal("who reads waits for the disk")
	}
}

// TestReadersGoOn: while the disk delays a write or a removal, readers continue, and other assets
// can change. A failed write changes nothing.
func TestReadersGoOn(t *testing.T) {
	l, _ := open(t, t.TempDir())
	held, other, removed := asset.NewID(), asset.NewID(), asset.NewID()
	for _, id := range []string{held, other, removed} {
		if err := l.Create(&asset.Asset{ID: id, Name: "before"}); err != nil {
			t.Fatal(err)
		}
	}
	rename := func(a *asset.Asset) error { a.Name = "after"; return nil }

	pipe := l.Path(held, "asset.json.new") // nobody can write to the pipe before a reader opens it
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	begun, ended := make(chan struct{}), make(chan error)
	go func() {
		_, err := l.Update(held, func(a *asset.Asset) error { close(begun); return rename(a) })
		ended <- err
	}()
	<-begun
	reads(t, l, held, other, removed)
	if _, err := l.Update(other, rename); err != nil || l.Get(other).Name != "after" {
		t.Errorf("another asset: %v, %+v", err, l.Get(other))
	}
	both, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	if err := <-ended; err == nil || l.Get(held).Name != "before" { // a pipe cannot be synced
		t.Errorf("what was not written: %v, %+v", err, l.Get(held))
	}
	if _, err := l.Update(held, rename); err != nil || l.Get(held).Name != "after" {
		t.Errorf("once more: %v, %+v", err, l.Get(held))
	}

	begun, release := make(chan struct{}), make(chan struct{})
	l.HoldRemovals(func(string) { close(begun); <-release })
	go func() { ended <- l.Remove(removed) }()
	<-begun
	reads(t, l, held, other)
	if l.Get(removed) != nil {
		t.Error("it is still there while its files are removed")
	}
	if _, err := l.Update(other, rename); err != nil {
		t.Error(err)
	}
	close(release)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestRemoveFails: an asset whose directory cannot be moved away stays unchanged.
func TestRemoveFails(t *testing.T) {
	dir := t.TempDir()
	l, _ := open(t, dir)
	id := asset.NewID()
	if err := errors.Join(l.Create(&asset.Asset{ID: id}), os.Remove(filepath.Join(dir, "removed")), os.WriteFile(filepath.Join(dir, "removed"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(id); err == nil || l.Get(id) == nil {
		t.Errorf("%v, %+v", err, l.Get(id))
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "removed")), os.Mkdir(filepath.Join(dir, "removed"), 0o700), l.Remove(id)); err != nil || l.Get(id) != nil {
		t.Errorf("%v, %+v", err, l.Get(id))
	}
}
