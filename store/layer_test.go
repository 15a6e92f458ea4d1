package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// putLayer makes the tree of a layer from lines: "dir/" is a directory, "file=content" a file,
// "link>target" a symlink, "-gone" a whiteout, "!dir" an opaque directory, "name+file" a hard link.
func putLayer(t *testing.T, s *Store, lines ...string) Digest {
	t.Helper()
	w, err := s.CreateLayer()
	if err != nil {
		t.Fatal(err)
	}
	mtime := time.Unix(1000, 0)
	for _, line := range lines {
		switch i := strings.IndexAny(line, "=>+"); {
		case line[0] == '-':
			err = w.Whiteout(line[1:])
		case line[0] == '!':
			err = w.Opaque(line[1:])
		case i < 0:
			err = w.Directory(strings.TrimSuffix(line, "/"), 0o700, mtime)
		case line[i] == '>':
			err = w.Symlink(line[:i], line[i+1:], mtime)
		case line[i] == '+':
			err = w.Link(line[:i], line[i+1:])
		default:
			err = w.File(line[:i], 0o644, mtime, strings.NewReader(line[i+1:]))
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	d, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestLayers: Layers merge as the OCI image-spec (layer.md) defines.
func TestLayers(t *testing.T) {
	base := []string{"a/", "a/b/", "a/b/f=1", "a/g=2", "l>a", "x=3", "tmp/"}
	for _, c := range []struct {
		name  string
		layer []string
		want  string // the paths apart from mount points; files with content, directories with mode
	}{
		{"adds", []string{"a/", "a/new=4"}, "a/:700 a/b/:700 a/b/f=1 a/g=2 a/new=4 l>a x=3"},
		{"replaces a file", []string{"x=5"}, "a/:700 a/b/:700 a/b/f=1 a/g=2 l>a x=5"},
		{"a file for a directory", []string{"a=6"}, "a=6 l>a x=3"},
		{"a directory for a file", []string{"x/", "x/y=7"}, "a/:700 a/b/:700 a/b/f=1 a/g=2 l>a x/:700 x/y=7"},
		{"a directory for a symlink", []string{"l/"}, "a/:700 a/b/:700 a/b/f=1 a/g=2 l/:700 x=3"},
		{"whiteout of a file", []string{"-x"}, "a/:700 a/b/:700 a/b/f=1 a/g=2 l>a"},
		{"whiteout of a directory", []string{"-a/b"}, "a/:700 a/g=2 l>a x=3"},
		{"whiteout of nothing", []string{"-a/none"}, "a/:700 a/b/:700 a/b/f=1 a/g=2 l>a x=3"},
		{"whiteout does not hide a namesake", []string{"-a/g"}, "a/:700 a/b/:700 a/b/f=1 l>a x=3"},
		{"whiteout and the same anew", []string{"-a", "a/", "a/n=8"}, "a/:700 a/n=8 l>a x=3"},
		{"the same anew and whiteout", []string{"a/", "a/n=8", "-a"}, "a/:700 a/n=8 l>a x=3"},
		{"whiteout and a file anew", []string{"-x", "x=9"}, "a/:700 a/b/:700 a/b/f=1 a/g=2 l>a x=9"},
		{"whiteout of a parent", []string{"-a", "a/n=8"}, "a/:755 a/n=8 l>a x=3"},
		{"opaque", []string{"a/", "!a", "a/n=8"}, "a/:700 a/n=8 l>a x=3"},
		{"opaque, after its entries", []string{"a/", "a/n=8", "!a"}, "a/:700 a/n=8 l>a x=3"},
		{"opaque, then the directory", []string{"!a", "a/"}, "a/:700 l>a x=3"},
		{"implied parent", []string{"a/b/n=8"}, "a/:700 a/b/:700 a/b/f=1 a/b/n=8 a/g=2 l>a x=3"},
		{"implied parent that is new", []string{"n/m=8"}, "a/:700 a/b/:700 a/b/f=1 a/g=2 l>a n/:755 n/m=8 x=3"},
		{"hard link", []string{"h=8", "k+h"}, "a/:700 a/b/:700 a/b/f=1 a/g=2 h=8 k=8 l>a x=3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			defer s.Hold()()
			one, two := putLayer(t, s, base...), putLayer(t, s, c.layer...)
			img, err := s.PutImage(t.Context(), Manifest{Name: "i", Version: "1", Parts: []Part{
				{Kind: "layer", Tree: one, Diff: emptyDigest}, {Kind: "layer", Tree: two, Diff: emptyDigest},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(t, s, img); got != c.want {
				t.Errorf("layer %q:\n got %s\nwant %s", c.layer, got, c.want)
			}
			checkImage(t, s, img)
		})
	}
}

// describe lists the entries of an image apart from its mount points.
func describe(t *testing.T, s *Store, img *Image) string {
	t.Helper()
	entries, _, err := merge(img.Manifest, s.Tree)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		switch {
		case e.Kind == KindSymlink:
			out = append(out, e.Path+">"+e.Link)
		case e.Kind == KindFile:
			r, err := s.OpenFile(&e)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(r)
			if err := errors.Join(err, r.Close()); err != nil {
				t.Fatal(err)
			}
			out = append(out, e.Path+"="+string(b))
		case !slices.Contains(mountPoints[:], e.Path):
			out = append(out, fmt.Sprintf("%s/:%o", e.Path, e.Mode))
		}
	}
	return strings.Join(out, " ")
}

func TestLayerWriterRefuses(t *testing.T) {
	s := openStore(t, t.TempDir())
	for _, c := range []struct {
		name string
		make func(w *Writer) error
		want error
	}{
		{"whiteout in a tree", func(w *Writer) error { w.layer = false; return w.Whiteout("a") }, ErrNotLayer},
		{"opaque in a tree", func(w *Writer) error { w.layer = false; return w.Opaque("a") }, ErrNotLayer},
		{"whiteout of a bad path", func(w *Writer) error { return w.Whiteout("../a") }, ErrPath},
		{"link to nothing", func(w *Writer) error { return w.Link("a", "b") }, fs.ErrNotExist},
		{"link to a directory", func(w *Writer) error {
			return errors.Join(w.Directory("b", 0o755, time.Unix(0, 0)), w.Link("a", "b"))
		}, fs.ErrNotExist},
		{"aside twice", func(w *Writer) error {
			return errors.Join(w.Aside("b", strings.NewReader("1")), w.Aside("b", strings.NewReader("2")))
		}, fs.ErrExist},
		{"below a file", func(w *Writer) error {
			return errors.Join(w.File("b", 0o644, time.Unix(0, 0), strings.NewReader("")), w.Whiteout("b/c"))
		}, ErrConflict},
	} {
		w, err := s.CreateLayer()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.make(w); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if _, err := w.Commit(t.Context()); err == nil {
			t.Errorf("%s: Commit succeeds after the error", c.name)
		}
	}
}

// TestLayerAsTree: An ordinary image refuses a tree with whiteouts.
func TestLayerAsTree(t *testing.T) {
	s := openStore(t, t.TempDir())
	defer s.Hold()()
	for _, line := range []string{"-a", "!a"} {
		d := putLayer(t, s, line)
		if _, err := s.PutImage(t.Context(), testManifest("i", "1", d)); !errors.Is(err, ErrNotLayer) {
			t.Errorf("%s: %v, want %v", line, err, ErrNotLayer)
		}
	}
}

// TestAside: A file beside the root lives as long as the image.
func TestAside(t *testing.T) {
	s := openStore(t, t.TempDir())
	release := s.Hold()
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Aside("config.json", strings.NewReader("{}")); err != nil {
		t.Fatal(err)
	}
	d, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := Manifest{Parts: []Part{{Kind: "config", Tree: d}}}
	img, err := s.PutImage(t.Context(), m)
	release()
	if err != nil {
		t.Fatal(err)
	}
	if img.Name != "" || img.Files != 0 {
		t.Errorf("image %q of %d files, want no name and none", img.Name, img.Files)
	}
	again, err := s.PutImage(t.Context(), m)
	if err != nil || again.Digest != img.Digest {
		t.Errorf("again: %v, %v", again, err)
	}
	if _, err := s.Sweep(t.Context(), SweepOptions{}); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	dir := s.Dir()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, dbName)); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir)
	if got := s.Images(); len(got) != 1 || got[0].Name != "" {
		t.Errorf("images after the database is lost: %v", got)
	}
	tree, err := s.Tree(d)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.OpenFile(&tree.Entries[0])
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if diff := cmp.Diff("{}", string(b)); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := s.RemoveImage(t.Context(), img.Digest); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Tree(d); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("tree after the image is gone: %v", err)
	}
}
