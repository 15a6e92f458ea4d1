package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestUses: The last use of an image survives a restart without a write per use, and RemoveUnused
// spares an image in use.
func TestUses(t *testing.T) {
	s := openStore(t, t.TempDir())
	img := putImage(t, s, "app", "1", putTree(t, s, map[string]string{"a": "a"}))
	made := s.LastUsed(img.Digest)
	if made.IsZero() || s.Use(emptyDigest) || !s.LastUsed(emptyDigest).IsZero() {
		t.Errorf("made at %v, an unknown image used at %v", made, s.LastUsed(emptyDigest))
	}
	s = reopen(t, s)
	if got := s.LastUsed(img.Digest); !got.Equal(made) {
		t.Errorf("after opening again: %v, want %v", got, made)
	}
	writes := func() int64 {
		st, err := os.Stat(filepath.Join(s.disk.dir, dbName+"-wal"))
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	before := writes()
	for range 100 {
		if !s.Use(img.Digest) {
			t.Fatal("the image cannot be used")
		}
	}
	if err := s.SaveUses(t.Context()); err != nil {
		t.Fatal(err)
	}
	if writes() != before || !s.LastUsed(img.Digest).After(made) {
		t.Errorf("using an image a hundred times: log of %d bytes, was %d; used at %v", writes(), before, s.LastUsed(img.Digest))
	}
	// Uses that moved by an hour are written.
	later := made.Add(useStep)
	s.uses.at[img.Digest] = useTime{now: later, saved: made}
	s = reopen(t, s)
	if got := s.LastUsed(img.Digest); !got.Equal(later) {
		t.Errorf("after an hour and opening again: %v, want %v", got, later)
	}
	// A use in time saves the image.
	if _, gone, err := s.RemoveUnused(t.Context(), img.Digest, made); gone || err != nil {
		t.Errorf("RemoveUnused of one used since: %v, %v", gone, err)
	}
	release := s.Hold()
	s.Use(img.Digest)
	last := s.LastUsed(img.Digest)
	if _, gone, err := s.RemoveUnused(t.Context(), img.Digest, last); gone || err != nil {
		t.Errorf("RemoveUnused of one used under a lease: %v, %v", gone, err)
	}
	release()
	if swept, gone, err := s.RemoveUnused(t.Context(), img.Digest, last); !gone || err != nil || swept.Objects != 1 {
		t.Errorf("RemoveUnused: %+v, %v, %v", swept, gone, err)
	}
	if s.Use(img.Digest) {
		t.Error("the image can be used still")
	}
	// A rebuilt database knows no uses: no image counts as old.
	img = putImage(t, s, "app", "2", putTree(t, s, map[string]string{"a": "a"}))
	dir := s.disk.dir
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, dbName)); err != nil {
		t.Fatal(err)
	}
	opened := time.Now()
	s = openStore(t, dir)
	if got := s.LastUsed(img.Digest); got.Before(opened) {
		t.Errorf("after the database was lost: %v, want %v or later", got, opened)
	}
}

// TestRemovePut: RemovePut takes back the caller's own image, unless another caller has put or
// named the image. A put during the removal makes the image again.
func TestRemovePut(t *testing.T) {
	s := openStore(t, t.TempDir())
	defer s.Hold()()
	m := testManifest("", "", putTree(t, s, map[string]string{"a": "a"}))
	put := func() Digest {
		t.Helper()
		img, err := s.PutImage(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		return img.Digest
	}
	check := func(what string, err, want error) {
		t.Helper()
		if _, found := s.Image(string(put())); !errors.Is(err, want) || found != nil {
			t.Errorf("%s: %v, want %v; the image: %v", what, err, want, found)
		}
	}
	d := put()
	check("put once", s.RemovePut(t.Context(), d, 1), nil)
	put()
	check("put by two", s.RemovePut(t.Context(), d, 1), ErrInUse)
	if _, err := s.Tag(t.Context(), d, "app"); err != nil {
		t.Fatal(err)
	}
	check("named", s.RemovePut(t.Context(), d, 3), ErrInUse)
	if err := s.Untag(t.Context(), "app:latest"); err != nil {
		t.Fatal(err)
	}
	again := make(chan struct{})
	s.disk.failAt = func(point string) error {
		if point == "before commit" {
			s.disk.failAt = nil
			if s.uses.note(d, 0) == nil {
				t.Error("an image that is going can be used")
			}
			go func() {
				defer close(again)
				put()
			}()
		}
		return nil
	}
	if err := s.RemovePut(t.Context(), d, 4); err != nil {
		t.Fatal(err)
	}
	<-again
	check("put while it went", nil, nil)
	if err := s.RemovePut(t.Context(), emptyDigest, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("RemovePut of no image: %v, want not exist", err)
	}
}
