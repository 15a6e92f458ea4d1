package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAdmission: The store asks the admission function about each new image before it writes to
// disk, and tells it once the image is listed. A refused image leaves nothing on disk.
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
		t.Errorf("PutImage: %v, want the refusal", err)
	}
	if _, err := s.TakeImage(ctx, m, true); !errors.Is(err, refused) {
		t.Errorf("TakeImage: %v, want the refusal", err)
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

// TestNaming: The store asks the naming function only before a name moves to another image. After a
// refusal the name stays, and the image built for it leaves nothing on disk.
func TestNaming(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	tree := putTree(t, s, map[string]string{"bin/one": "1"})
	refused := errors.New("refused")
	var asked []string
	var refuse error
	ctx := WithNaming(t.Context(), func(name string, from, to *Image) error {
		asked = append(asked, name+" "+from.Built+" "+to.Built)
		return refuse
	})
	put := func(version, config string) (*Image, error) {
		m := testManifest("f", version, tree)
		m.Config = []byte(config)
		return s.PutImage(ctx, m)
	}
	refuse = refused
	first, err := put("1", `"first"`)
	if err != nil {
		t.Fatal(err)
	}
	other, err := put("2", `"other"`)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // free names, then the image's own
		if _, err := s.Tag(ctx, first.Digest, "f:more"); err != nil {
			t.Fatal(err)
		}
	}
	if len(asked) > 0 {
		t.Errorf("asked of %q, whose names are free or theirs", asked)
	}
	if _, err := put("1", `"second"`); !errors.Is(err, refused) {
		t.Errorf("PutImage: %v, want the refusal", err)
	}
	if _, err := s.Tag(ctx, other.Digest, "f:1"); !errors.Is(err, refused) {
		t.Errorf("Tag: %v, want the refusal", err)
	}
	if diff := cmp.Diff([]string{"f:1 f:1 f:1", "f:1 f:1 f:2"}, asked); diff != "" {
		t.Errorf("asked of (-want +got):\n%s", diff)
	}
	if got, err := s.Image("f:1"); err != nil || got.Digest != first.Digest || len(s.Images()) != 2 {
		t.Errorf("f:1 is %v, %v, of %d images", got, err, len(s.Images()))
	}
	for name, want := range map[string]int{"tmp": 0, "images": 2} {
		if left, err := os.ReadDir(filepath.Join(dir, name)); err != nil || len(left) != want {
			t.Errorf("%s/ has %v, %v", name, left, err)
		}
	}
	refuse = nil
	second, err := put("1", `"second"`)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Image("f:1"); err != nil || got.Digest != second.Digest {
		t.Errorf("f:1 is %v, %v", got, err)
	}
}
