package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestAdmission: who admits images is asked about each that is new, before anything of it is
// on disk, and told when it is in the lists; what is refused leaves nothing.
func TestAdmission(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	tree := putTree(t, s, map[string]string{"bin/one": "12345", "bin/two": "123"})
	empty := func() {
		t.Helper()
		for _, name := range []string{"tmp", "images"} {
			if left, err := os.ReadDir(filepath.Join(dir, name)); err != nil || len(left) > 0 {
				t.Errorf("%s/ has %v, %v", name, left, err)
			}
		}
	}
	refused := errors.New("refused")
	asked, done := 0, 0
	var refuse error
	ctx := WithAdmission(t.Context(), func(img *Image) (func(), error) {
		asked++
		if img.Files != 2 || img.Size != 8 {
			t.Errorf("it has %d files of %d bytes, want 2 of 8", img.Files, img.Size)
		}
		empty()
		return func() {
			done++
			if _, err := s.Image(string(img.Digest)); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		}, refuse
	})
	m := testManifest("f", "1", tree)
	refuse = refused
	if _, err := s.PutImage(ctx, m); !errors.Is(err, refused) {
		t.Errorf("PutImage: %v, want what refuses it", err)
	}
	if _, err := s.TakeImage(ctx, m, true); !errors.Is(err, refused) {
		t.Errorf("TakeImage: %v, want what refuses it", err)
	}
	empty()
	if asked != 2 || done != 0 {
		t.Errorf("asked %d times, and told %d times of the end, want 2 and 0", asked, done)
	}
	refuse = nil
	img, err := s.PutImage(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	for _, put := range []func() (*Image, error){
		func() (*Image, error) { return s.PutImage(ctx, m) },
		func() (*Image, error) { return s.TakeImage(ctx, m, true) },
	} {
		if again, err := put(); err != nil || again.Digest != img.Digest {
			t.Errorf("again: %v, %v", again, err)
		}
	}
	if asked != 3 || done != 1 {
		t.Errorf("asked %d times, and told %d times of the end, want 3 and 1", asked, done)
	}
}
