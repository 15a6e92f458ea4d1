package store

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTreeTravels: A tree travels to another store. The other store rejects content that differs
// from the tree.
func TestTreeTravels(t *testing.T) {
	s, other := openStore(t, t.TempDir()), openStore(t, t.TempDir())
	defer s.Hold()()
	defer other.Hold()()
	large := strings.Repeat("x", bufferSize+1)
	d := putTree(t, s, map[string]string{"a": "a", "b/large": large, "c": "c", "empty": "", "same": "a"})
	b, err := s.TreeBytes(d)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := DecodeTree(d, b)
	if err != nil {
		t.Fatal(err)
	}
	contents := func(changed map[string]string) func(*Entry) (io.Reader, error) {
		return func(e *Entry) (io.Reader, error) {
			if text, ok := changed[e.Path]; ok {
				return strings.NewReader(text), nil
			}
			return s.OpenFile(e)
		}
	}
	broken := errors.New("broken off")
	for _, c := range []struct {
		name string
		next func(*Entry) (io.Reader, error)
		want error
	}{
		{"another content", contents(map[string]string{"c": "d"}), ErrTree},
		{"a content that is short", contents(map[string]string{"b/large": large[1:]}), ErrTree},
		{"a content that is long", contents(map[string]string{"b/large": large + "x"}), ErrTree},
		{"nothing", func(*Entry) (io.Reader, error) { return nil, broken }, broken},
		{"what it is", contents(nil), nil},
		{"what is there", func(*Entry) (io.Reader, error) { return nil, nil }, nil}, // the store does not read known content
	} {
		if err := other.PutTree(t.Context(), tree, c.next); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", c.name, err, c.want)
		}
		if got := other.HasTree(d); got != (c.want == nil) {
			t.Errorf("%s: the tree is there: %v", c.name, got)
		}
	}
	var paths []string
	for e := range tree.Objects() {
		paths = append(paths, e.Path)
	}
	if diff := cmp.Diff([]string{"a", "b/large", "c"}, paths); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}

	for _, text := range []string{"", "{}", `{"entries":null}`, `{"entries": []}`, `{"entries":[]} `, `{"entries":[],"more":1}`, `{"entries":[{"path":"../a","kind":"dir"}]}`} {
		if _, err := DecodeTree(sumDigest([]byte(text)), []byte(text)); !errors.Is(err, ErrTree) {
			t.Errorf("DecodeTree(%s): error %v, want %v", text, err, ErrTree)
		}
	}
	if _, err := DecodeTree(d, b[1:]); !errors.Is(err, ErrTree) {
		t.Errorf("DecodeTree of another digest: error %v, want %v", err, ErrTree)
	}
}

// TestTakeImage: A pulled image takes no name and is foreign until a trusted source supplies it,
// also over a restart and a lost database. If all records are lost, an image counts as foreign.
func TestTakeImage(t *testing.T) {
	s := openStore(t, t.TempDir())
	own := putImage(t, s, "app", "1", putTree(t, s, map[string]string{"a": "own"}))
	trees := []Digest{putTree(t, s, map[string]string{"a": "theirs"})}
	m := testManifest("app", "1", trees...)
	img, err := s.TakeImage(t.Context(), m, true)
	if err != nil {
		t.Fatal(err)
	}
	if !img.Foreign || img.Built != "app:1" || len(img.Names) > 0 {
		t.Errorf("taken: %+v", img)
	}
	if got, err := s.Image("app:1"); err != nil || got.Digest != own.Digest {
		t.Errorf("app:1 is %v, %v; want %s", got, err, own.Digest)
	}
	if b, err := s.ManifestBytes(img.Digest); err != nil || sumDigest(b) != img.Digest {
		t.Errorf("ManifestBytes: %s, %v", b, err)
	}
	reopen := func(lose ...string) {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, name := range lose {
			if err := os.Remove(filepath.Join(s.disk.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		s = openStore(t, s.disk.dir)
	}
	check := func(when string, foreign, ownForeign bool) {
		t.Helper()
		for d, want := range map[Digest]bool{img.Digest: foreign, own.Digest: ownForeign} {
			got, err := s.Image(string(d))
			if err != nil || got.Foreign != want {
				t.Errorf("%s: %s is foreign: %+v, %v; want %v", when, d, got, err, want)
			}
		}
	}
	if _, err := s.Tag(t.Context(), img.Digest, "theirs:1"); err != nil {
		t.Fatal(err)
	}
	reopen()
	check("opened again", true, false)
	reopen(dbName)
	check("database lost", true, false)
	if again, err := s.TakeImage(t.Context(), m, true); err != nil || !again.Foreign {
		t.Errorf("taken again: %+v, %v", again, err)
	}
	if ours, err := s.TakeImage(t.Context(), testManifest("app", "1", own.Parts[0].Tree), true); err != nil || ours.Foreign {
		t.Errorf("our own taken back: %+v, %v", ours, err)
	}
	if again, err := s.TakeImage(t.Context(), m, false); err != nil || again.Foreign {
		t.Errorf("taken from a trusted source: %+v, %v", again, err)
	}
	reopen()
	check("vouched for", false, false)
	reopen(dbName)
	check("vouched for, database lost", false, false)
	reopen(dbName, indexName, indexLogName)
	check("all lost", true, true)
	if again, err := s.PutImage(t.Context(), m); err != nil || again.Foreign || again.Name != "app" {
		t.Errorf("built here: %+v, %v", again, err)
	}
	check("built here", false, true)
}
