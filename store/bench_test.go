package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// benchTree commits a tree of n small files, 20 to a directory.
func benchTree(b *testing.B, s *Store, n int) Digest {
	b.Helper()
	w, err := s.Create()
	if err != nil {
		b.Fatal(err)
	}
	defer w.Abort()
	for i := range n {
		path := fmt.Sprintf("usr/lib/package%d/module%d.py", i/20, i)
		if err := w.File(path, 0o644, testTime, strings.NewReader("content of "+path)); err != nil {
			b.Fatal(err)
		}
	}
	d, err := w.Commit(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// many is the number of files or images of a benchmark: few with -short, which only checks that the
// benchmark runs.
func many() int {
	if testing.Short() {
		return 100
	}
	return 10000
}

// BenchmarkPutImage links an image of 10,000 files. The removal is not timed.
func BenchmarkPutImage(b *testing.B) {
	s := openStore(b, b.TempDir())
	d := benchTree(b, s, many())
	putImage(b, s, "keep", "1", d)
	b.ReportAllocs()
	for b.Loop() {
		img, err := s.PutImage(b.Context(), testManifest("bench", "1", d))
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.RemoveImage(b.Context(), img.Digest); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkCommit imports 10,000 files, all new or all known.
func BenchmarkCommit(b *testing.B) {
	b.Run("new", func(b *testing.B) {
		s := openStore(b, b.TempDir())
		for b.Loop() {
			benchTree(b, s, many())
			b.StopTimer()
			if _, err := s.Sweep(b.Context(), SweepOptions{}); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("known", func(b *testing.B) {
		s := openStore(b, b.TempDir())
		benchTree(b, s, many())
		for b.Loop() {
			benchTree(b, s, many())
		}
	})
}

// BenchmarkAdopt adopts or copies 10,000 files of 4 KiB.
func BenchmarkAdopt(b *testing.B) {
	requireRoot(b)
	for _, copied := range []bool{false, true} {
		b.Run(fmt.Sprintf("copied=%t", copied), func(b *testing.B) {
			s := openStore(b, b.TempDir())
			for b.Loop() {
				b.StopTimer()
				dir, err := s.MkdirScratch()
				if err != nil {
					b.Fatal(err)
				}
				names := make([]string, many())
				for i := range names {
					names[i] = filepath.Join(dir, fmt.Sprint(i))
					content := strings.Repeat(fmt.Sprintf("line %d\n", i), 400)
					if err := errors.Join(os.WriteFile(names[i], []byte(content), 0o644), os.Chown(names[i], 100000, 100000)); err != nil {
						b.Fatal(err)
					}
				}
				w, err := s.Create()
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				for i, name := range names {
					f, err := os.Open(name)
					if err != nil {
						b.Fatal(err)
					}
					add := w.Adopt
					if copied {
						add = func(path string, mode fs.FileMode, mtime time.Time, f *os.File) error {
							return w.File(path, mode, mtime, f)
						}
					}
					if err := errors.Join(add(fmt.Sprint(i), 0o644, testTime, f), f.Close()); err != nil {
						b.Fatal(err)
					}
				}
				_, err = w.Commit(b.Context())
				if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if _, err := s.Sweep(b.Context(), SweepOptions{}); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkRemoveImage removes an image of 100 files, 10 of them unique, from a store of 20 or
// 2,000 images.
func BenchmarkRemoveImage(b *testing.B) {
	for _, images := range []int{20, min(2000, many())} {
		b.Run(fmt.Sprintf("images=%d", images), func(b *testing.B) {
			s := openStore(b, b.TempDir())
			base := benchTree(b, s, 90)
			put := func(i int) *Image {
				files := make(map[string]string)
				for n := range 10 {
					files[fmt.Sprintf("own%d", n)] = fmt.Sprint(i, n)
				}
				return putImage(b, s, fmt.Sprint("image", i), "1", base, putTree(b, s, files))
			}
			for i := range images {
				put(i)
			}
			for n := images; b.Loop(); n++ {
				b.StopTimer()
				img := put(n)
				b.StartTimer()
				if err := s.RemoveImage(b.Context(), img.Digest); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSweep sweeps a store without loose objects.
func BenchmarkSweep(b *testing.B) {
	s := openStore(b, b.TempDir())
	d := benchTree(b, s, many())
	putImage(b, s, "keep", "1", d)
	for b.Loop() {
		if _, err := s.Sweep(b.Context(), SweepOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheck reads 50 images of 1,010 files each; 1,000 of the files are shared.
func BenchmarkCheck(b *testing.B) {
	s := openStoreUnchecked(b, b.TempDir())
	base := benchTree(b, s, min(1000, many()))
	const images = 50
	for i := range images {
		own := make(map[string]string)
		for n := range 10 {
			own[fmt.Sprintf("own%d", n)] = fmt.Sprint(i, n)
		}
		putImage(b, s, fmt.Sprint("image", i), "1", base, putTree(b, s, own))
	}
	b.ReportAllocs()
	for b.Loop() {
		if got, err := s.Check(b.Context(), CheckOptions{}); err != nil || got.Problems != 0 {
			b.Fatalf("Check: %+v, %v", got, err)
		}
	}
}

// BenchmarkPutImageOfNewCode commits a small part and makes an image with it, as a redeployment
// after an edit does. files is the number of files that the images share.
func BenchmarkPutImageOfNewCode(b *testing.B) {
	for _, files := range []int{min(1000, many()), min(8000, many())} {
		b.Run(fmt.Sprint("files=", files), func(b *testing.B) {
			s := openStore(b, b.TempDir())
			base := benchTree(b, s, files)
			putImage(b, s, "keep", "1", base)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				release := s.Hold()
				w, err := s.Create()
				if err != nil {
					b.Fatal(err)
				}
				if err := w.File("function/main.py", 0o644, testTime, strings.NewReader(fmt.Sprint("edit ", n))); err != nil {
					b.Fatal(err)
				}
				code, err := w.Commit(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				img, err := s.PutImage(b.Context(), testManifest("bench", "1", base, code))
				if err != nil {
					b.Fatal(err)
				}
				release()
				b.StopTimer()
				if err := s.RemoveImage(b.Context(), img.Digest); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
