package service

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/video/asset"
)

// TestExpire: an upload without new bytes for a day is removed with all of its files. An upload
// with new bytes stays, and so do unrelated files.
func TestExpire(t *testing.T) {
	fretest.CheckLeaks(t)
	library, _, err := asset.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	engine := client.New(filepath.Join(t.TempDir(), "none.sock"))
	log := slog.New(slog.DiscardHandler)
	s := New(Config{Library: library, Engine: engine, Log: log, Template: Template})
	defer func() {
		s.Close()
		engine.Close()
		if err := library.Close(); err != nil {
			t.Error(err)
		}
	}()
	uploads := t.TempDir()
	now := time.Now()
	add := func(state asset.State, created, last time.Time) string {
		t.Helper()
		id := asset.NewID()
		err := errors.Join(library.Create(&asset.Asset{ID: id, Created: created, State: state}), os.WriteFile(s.SourcePath(id), []byte("x"), 0o600),
			os.Chtimes(s.SourcePath(id), last, last), os.WriteFile(filepath.Join(uploads, id+".info"), []byte("{}"), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	old := now.Add(-abandoned - time.Hour)
	gone := add(asset.Uploading, old, old)
	kept := []string{add(asset.Uploading, old, now.Add(-abandoned+time.Hour)), add(asset.Uploading, now, old), add(asset.Failed, old, old), add(asset.Ready, old, old)}
	s.expire(uploads, log, now)
	if a := library.Get(gone); a != nil {
		t.Errorf("not given up: %+v", a)
	}
	for _, path := range []string{library.Path(gone), filepath.Join(uploads, gone+".info")} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, id := range kept {
		if library.Get(id) == nil {
			t.Errorf("%s was given up", id)
		}
	}
}
