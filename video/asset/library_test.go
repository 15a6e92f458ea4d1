package asset_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// TestLibrary: assets are what they were after a restart, and gone with all of their files
// once they are removed.
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
	before, changed := l.List()
	a, err := l.Update(ids[1], func(a *asset.Asset) { a.State, a.Jobs = asset.Working, &asset.Jobs{Step: "probe"} })
	if err != nil || a.State != asset.Working || before[1].State != asset.Uploading {
		t.Errorf("%+v, %v; before %+v", a, err, before[1])
	}
	<-changed
	l.Progress(ids[1], &asset.Jobs{Step: "video", Done: 1, All: 2})
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
	if _, err := l.Update(ids[2], func(*asset.Asset) {}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("changed what is gone: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, damaged := open(t, dir)
	all, _ := l.List()
	if len(all) != 2 || all[0].ID != ids[1] || all[0].State != asset.Working || all[0].Jobs != nil || all[1].Name != "../a" || len(damaged) > 0 {
		t.Errorf("%+v, %v", all, damaged)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "removed", "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestLibraryAfterCrash: what was not finished is taken away, what is damaged is told of.
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
	if all, _ := l.List(); len(all) != 1 || all[0].ID != good {
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
