package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
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

// BenchmarkPutImage links an image of 10,000 files; removing it is not counted.
func BenchmarkPutImage(b *testing.B) {
	s := openStore(b, b.TempDir())
	d := benchTree(b, s, 10000)
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

// BenchmarkCommit imports 10,000 files, all new or all there already.
func BenchmarkCommit(b *testing.B) {
	b.Run("new", func(b *testing.B) {
		s := openStore(b, b.TempDir())
		for b.Loop() {
			benchTree(b, s, 10000)
			b.StopTimer()
			if _, err := s.Sweep(b.Context(), SweepOptions{}); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("known", func(b *testing.B) {
		s := openStore(b, b.TempDir())
		benchTree(b, s, 10000)
		for b.Loop() {
			benchTree(b, s, 10000)
		}
	})
}

// BenchmarkAddDir imports 10,000 files of 4 KiB from a directory.
func BenchmarkAddDir(b *testing.B) {
	for _, scratch := range []bool{false, true} {
		b.Run(fmt.Sprintf("scratch=%t", scratch), func(b *testing.B) {
			s := openStore(b, b.TempDir())
			for b.Loop() {
				b.StopTimer()
				dir, err := s.MkdirScratch()
				if err != nil {
					b.Fatal(err)
				}
				for i := range 10000 {
					sub := filepath.Join(dir, fmt.Sprint(i/20))
					if err := os.MkdirAll(sub, 0o755); err != nil {
						b.Fatal(err)
					}
					content := strings.Repeat(fmt.Sprintf("line %d\n", i), 400)
					if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), []byte(content), 0o644); err != nil {
						b.Fatal(err)
					}
				}
				root, err := os.OpenRoot(dir)
				if err != nil {
					b.Fatal(err)
				}
				w, err := s.Create()
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if scratch {
					err = w.AddScratch(root, "")
				} else {
					err = w.AddDir(root, "")
				}
				if err == nil {
					_, err = w.Commit(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				_ = root.Close()
				_ = os.RemoveAll(dir)
				if _, err := s.Sweep(b.Context(), SweepOptions{}); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkRemoveImage removes an image of 100 files, 10 of them its own, out of
// 2,000: what it costs beside what the number of images costs.
func BenchmarkRemoveImage(b *testing.B) {
	for _, images := range []int{20, 2000} {
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

// BenchmarkSweep looks through a store in which nothing is loose.
func BenchmarkSweep(b *testing.B) {
	s := openStore(b, b.TempDir())
	d := benchTree(b, s, 10000)
	putImage(b, s, "keep", "1", d)
	for b.Loop() {
		if _, err := s.Sweep(b.Context(), SweepOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheck reads 50 images of 1,010 files each, 1,000 of them in common.
func BenchmarkCheck(b *testing.B) {
	s := openStoreUnchecked(b, b.TempDir())
	base := benchTree(b, s, 1000)
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
