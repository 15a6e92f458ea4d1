package store

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/fretest"
)

// walkSizes computes by stat the figures of Sizes: all inodes below images/, and the trees and
// objects of the images, once per image.
func walkSizes(t testing.TB, s *Store) (Sizes, map[Digest]ImageSize) {
	t.Helper()
	type inode struct {
		bytes  int64
		images map[Digest]bool
	}
	inodes := map[uint64]*inode{}
	see := func(path string, d Digest) {
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		if inodes[st.Ino] == nil {
			inodes[st.Ino] = &inode{st.Blocks * 512, map[Digest]bool{}}
		}
		inodes[st.Ino].images[d] = true
	}
	for _, img := range s.Images() {
		err := filepath.WalkDir(filepath.Dir(s.Rootfs(img.Digest)), func(path string, _ fs.DirEntry, err error) error {
			see(path, img.Digest)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range img.Parts {
			see(filepath.Join(s.disk.dir, "trees", p.Tree.hex()+".json"), img.Digest)
		}
	}
	var all Sizes
	images := map[Digest]ImageSize{}
	for _, i := range inodes {
		all.Bytes += i.bytes
		all.Inodes++
		for d := range i.images {
			z := images[d]
			z.Bytes += i.bytes
			z.Inodes++
			if len(i.images) == 1 {
				z.UniqueBytes += i.bytes
				z.UniqueInodes++
			}
			images[d] = z
		}
	}
	return all, images
}

// checkSizes is part of checkStore.
func checkSizes(t testing.TB, s *Store, what string) {
	t.Helper()
	wantAll, want := walkSizes(t, s)
	got := s.Sizes()
	images := map[Digest]ImageSize{}
	for _, img := range s.Images() {
		images[img.Digest] = got.Image(img.Digest)
	}
	if diff := cmp.Diff(want, images); diff != "" {
		t.Errorf("%s: images (-walked +counted):\n%s", what, diff)
	}
	if got.Bytes != wantAll.Bytes || got.Inodes != wantAll.Inodes || len(got.images) != len(want) {
		t.Errorf("%s: all %d images: got %d bytes, %d inodes, of %d images; a walk finds %d, %d",
			what, len(want), got.Bytes, got.Inodes, len(got.images), wantAll.Bytes, wantAll.Inodes)
	}
}

// randomImage puts an image from a few trees, some of them new, with files from a small set: all
// kinds of sharing occur.
func randomImage(t *testing.T, s *Store, r *rand.Rand, n int) (*Image, error) {
	t.Helper()
	m := Manifest{Name: fmt.Sprint("i", n), Version: "1"}
	for range 1 + r.IntN(4) {
		w, err := s.Create()
		if err != nil {
			t.Fatal(err)
		}
		of := r.IntN(12)
		for i := range 8 {
			if (of>>(i%4))&1 == 0 && r.IntN(3) > 0 {
				continue
			}
			content := fmt.Sprintf("%0*d", (i%4)*3000, of/3*10+i)
			err = errors.Join(err, w.File(fmt.Sprintf("d%d/f%d", i%3, i), 0o644, testTime, strings.NewReader(content)))
		}
		err = errors.Join(err, w.File(fmt.Sprint("empty", of), 0o644, testTime, strings.NewReader("")), w.Symlink("link", "target", testTime))
		if err != nil {
			t.Fatal(err)
		}
		d, err := w.Commit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m.Parts = append(m.Parts, Part{Kind: "code", Name: "p", Tree: d, Prefix: fmt.Sprint("p", r.IntN(3))})
	}
	return s.PutImage(t.Context(), m)
}

// TestSizes: Sizes agrees with a walk of the disk, in blocks and inodes, in total and unique per
// image: after each change, a failed change, a reopened store, and a lost database.
func TestSizes(t *testing.T) {
	fretest.CheckLeaks(t)
	r := fretest.Rand(t)
	dir := t.TempDir()
	s := openStore(t, dir)
	checkSizes(t, s, "empty")
	for n := range 60 {
		what := fmt.Sprint("step ", n)
		images := s.Images()
		switch op := r.IntN(10); {
		case op < 5 || len(images) == 0:
			if _, err := randomImage(t, s, r, n); err != nil {
				t.Fatal(err)
			}
			what += ": put"
		case op < 8:
			if err := s.RemoveImage(t.Context(), images[r.IntN(len(images))].Digest); err != nil {
				t.Fatal(err)
			}
			if r.IntN(2) == 0 {
				if _, err := s.Sweep(t.Context(), SweepOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			what += ": removed"
		case op == 8:
			s.disk.failAt = func(point string) error {
				if point == "before commit" {
					return errors.New("cut short")
				}
				return nil
			}
			if r.IntN(2) == 0 {
				_, err := randomImage(t, s, r, 1000+n)
				if err == nil {
					t.Fatal("no error")
				}
			} else if err := s.RemoveImage(t.Context(), images[0].Digest); err == nil {
				t.Fatal("no error")
			}
			s.disk.failAt = nil
			what += ": failed"
		default:
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if r.IntN(2) == 0 {
				if err := os.Remove(filepath.Join(dir, dbName)); err != nil {
					t.Fatal(err)
				}
				what += ": database lost"
			}
			s = openStore(t, dir)
			what += ": opened again"
		}
		checkSizes(t, s, what)
		if t.Failed() {
			return
		}
	}
	for _, img := range s.Images() {
		if err := s.RemoveImage(t.Context(), img.Digest); err != nil {
			t.Fatal(err)
		}
	}
	checkSizes(t, s, "all removed")
	if _, err := s.Sweep(t.Context(), SweepOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"image_sizes", "sized_trees", "cohorts", "cohort_trees", "sized_objects"} {
		var n int
		if err := s.meta.db.QueryRow(`SELECT count(*) FROM ` + table).Scan(&n); err != nil || n != 0 {
			t.Errorf("all removed: %d rows in %s, error %v", n, table, err)
		}
	}
}

// TestSizeWithout: SizeWithout gives the size that remains after the removal of the other images.
func TestSizeWithout(t *testing.T) {
	r := fretest.Rand(t)
	s := openStore(t, t.TempDir())
	for n := range 12 {
		if _, err := randomImage(t, s, r, n); err != nil {
			t.Fatal(err)
		}
	}
	keep := map[Digest]bool{"sha256:unknown": true}
	for i, img := range s.Images() {
		if i%3 == 0 {
			keep[img.Digest] = true
		}
	}
	bytes, inodes := s.SizeWithout(keep)
	listed := slices.Sorted(maps.Keys(keep)) // the unknown image is the last
	sum := int64(0)
	for i, added := range s.Added(listed) {
		size := s.Sizes().Image(listed[i])
		if sum += added; i == 0 && added != size.Bytes || added < size.UniqueBytes || added > size.Bytes {
			t.Errorf("image %d of %+v adds %d bytes", i, size, added)
		}
	}
	if sum != bytes {
		t.Errorf("together they add %d bytes, and hold %d", sum, bytes)
	}
	for _, img := range s.Images() {
		if !keep[img.Digest] {
			if err := s.RemoveImage(t.Context(), img.Digest); err != nil {
				t.Fatal(err)
			}
		}
	}
	if want := s.Sizes(); bytes != want.Bytes || inodes != want.Inodes {
		t.Errorf("got %d bytes, %d inodes; after the removal there are %d, %d", bytes, inodes, want.Bytes, want.Inodes)
	}
}

// TestSizesOfOldDatabase: Open counts the sizes of images from a database without sizes.
func TestSizesOfOldDatabase(t *testing.T) {
	r := fretest.Rand(t)
	dir := t.TempDir()
	s := openStore(t, dir)
	for n := range 5 {
		if _, err := randomImage(t, s, r, n); err != nil {
			t.Fatal(err)
		}
	}
	want := s.Images()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	makeOld(t, dir, sizedSince-1)
	s = openStore(t, dir)
	if diff := cmp.Diff(want, s.Images()); diff != "" {
		t.Fatalf("images in their order (-want +got):\n%s", diff)
	}
	checkSizes(t, s, "opened")
}
