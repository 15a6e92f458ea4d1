package store

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// enter adds n images in one transaction, similar to images of templates on one base: ten parts,
// the last of them unique, and a configuration. The directories of the images are empty.
func enter(t testing.TB, s *Store, n int) {
	t.Helper()
	config := `{"base":"python","handler":"handler.handle","args":["/usr/bin/python3","/opt/fre/bootstrap.py"],"env":["LANG=C.UTF-8","PYTHONPATH=/opt/fre/packages","IMAGE=%d"],` +
		`"protocol":"channel","tenant":"default","instances":{"isolation":"instance","concurrency":1,"max":8,"idle":60000000000},` +
		`"resources":{"memory_bytes":134217728,"cpu_millis":1000,"pids":64,"tmp_bytes":67108864,"files":1024,"timeout":30000000000},"network":{"mode":"none"}}`
	err := s.meta.update(true, func(tx *tx) error {
		for i := range n {
			m := Manifest{Name: fmt.Sprintf("image-%d", i), Version: "1", Config: json.RawMessage(fmt.Sprintf(config, i))}
			for p := range 9 {
				m.Parts = append(m.Parts, Part{
					Kind: "pip", Name: fmt.Sprintf("package-%d", p), Version: "1.2.3", Tree: sumDigest(fmt.Appendf(nil, "tree %d", p)), Prefix: "opt/fre/packages",
				})
			}
			m.Parts = append(m.Parts, Part{Kind: "code", Name: m.Name, Tree: sumDigest(fmt.Appendf(nil, "code %d", i)), Prefix: "function"})
			manifest, err := json.Marshal(m)
			if err != nil {
				return err
			}
			k := tag{m.Name, m.Version}
			img := &Image{Manifest: m, Built: k.String(), Digest: sumDigest(manifest), Created: testTime.Add(time.Duration(i) * time.Second).UTC(), Size: 1 << 20, Files: 1000}
			img.setNames(nil)
			if err := os.Mkdir(filepath.Join(s.disk.dir, "images", img.Digest.hex()), 0o700); err != nil {
				return err
			}
			if err := tx.putImage(img, manifest, sized{bytes: 1 << 20, inodes: 1000}); err != nil {
				return err
			}
			if err := tx.putTag(k, img.Digest); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// openEntered opens a store with n images and without the check at the end, which would read the
// images.
func openEntered(t testing.TB, n int) *Store {
	t.Helper()
	s, err := Open(t.TempDir(), slog.New(slog.DiscardHandler)) // Open would log the missing trees
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	enter(t, s, n)
	return s
}

// TestOpenReadsNoImage: Open takes the lists from the database alone and reads no file of an image.
func TestOpenReadsNoImage(t *testing.T) {
	s := openEntered(t, 1000)
	want := s.Images()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(s.disk.dir, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if diff := cmp.Diff(want, again.Images()); diff != "" || len(want) != 1000 {
		t.Errorf("%d images (-before +after):\n%s", len(want), diff)
	}
}

// BenchmarkOpen10000 opens a store of 10,000 images and reports the memory per image.
func BenchmarkOpen10000(b *testing.B) {
	s := openEntered(b, many())
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	dir := s.disk.dir
	before := heap()
	for b.Loop() {
		s, err := Open(dir, testLog(b))
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		b.ReportMetric(float64(heap()-before)/float64(many()), "heap-B/image")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkTag10000 adds a name to one image of 10,000 and removes the name.
func BenchmarkTag10000(b *testing.B) {
	s := openEntered(b, many())
	d := s.Images()[many()/2].Digest
	for b.Loop() {
		if _, err := s.Tag(b.Context(), d, "more:1"); err != nil {
			b.Fatal(err)
		}
		if err := s.Untag(b.Context(), "more:1"); err != nil {
			b.Fatal(err)
		}
	}
}
