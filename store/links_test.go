package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestFileSystemLinkLimit: If a file has all links that the file system allows (65,000 on ext4),
// the store makes the next images with a further copy.
func TestFileSystemLinkLimit(t *testing.T) {
	s := openStoreUnchecked(t, t.TempDir()) // sizes do not count further copies
	defer s.Hold()()
	d := putTree(t, s, map[string]string{"a": "content", "b": "content"})
	object := objectNames(t, s)[0]
	dir, err := s.MkdirScratch()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// All but one: the two links of the image need the object and a copy.
	const most = 70_000
	links := 1
	for ; links < most; links++ {
		if err = unix.Link(object, filepath.Join(dir, strconv.Itoa(links))); err != nil {
			break
		}
	}
	if err != nil && err != unix.EMLINK { //nolint:errorlint // an errno as it is
		t.Fatal(err)
	}
	t.Logf("%d links, then: %v", links, err)
	if err := os.Remove(filepath.Join(dir, "1")); err != nil {
		t.Fatal(err)
	}
	img := putImage(t, s, "app", "1", d)
	other := putImage(t, s, "app", "2", d)
	want := 1
	if links < most {
		want = 2
	}
	if names := objectNames(t, s); len(names) != want {
		t.Errorf("%d files in objects/, want %d", len(names), want)
	}
	checkImage(t, s, img)
	checkImage(t, s, other)
	if found := checkAll(t, s, CheckOptions{}); len(found) > 0 {
		t.Errorf("Check: %q", found)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}

// TestScale: Many images of 1,000 files on one base can be put, opened, removed and swept, and the
// rest is sound. FRE_TEST_IMAGES=10000 is the full size: 10 million links (make soak).
func TestScale(t *testing.T) {
	images := 40
	if n := os.Getenv("FRE_TEST_IMAGES"); n != "" {
		var err error
		if images, err = strconv.Atoi(n); err != nil {
			t.Fatal(err)
		}
	}
	s := openStoreUnchecked(t, t.TempDir())
	step := func(name string, f func()) {
		start := time.Now()
		f()
		t.Logf("%s: %v", name, time.Since(start))
	}
	hold := s.Hold()
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 990 {
		path := fmt.Sprintf("usr/lib/package%d/module%d.py", i/50, i)
		if err := w.File(path, 0o644, testTime, strings.NewReader(path)); err != nil {
			t.Fatal(err)
		}
	}
	base, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	step(fmt.Sprintf("put %d images", images), func() {
		for i := range images {
			own := make(map[string]string)
			for n := range 10 {
				own[fmt.Sprintf("own%d", n)] = fmt.Sprint(i, "/", n)
			}
			putImage(t, s, "app", fmt.Sprint(i), base, putTree(t, s, own))
		}
	})
	hold()
	step("open", func() {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openStoreUnchecked(t, s.disk.dir)
	})
	if n := len(s.Images()); n != images {
		t.Fatalf("%d images, want %d", n, images)
	}
	step("remove one", func() {
		if err := s.RemoveImage(t.Context(), s.Images()[0].Digest); err != nil {
			t.Fatal(err)
		}
	})
	step("sweep", func() {
		if got, err := s.Sweep(t.Context(), SweepOptions{}); err != nil || got != (Swept{}) {
			t.Errorf("Sweep: %+v, %v; want nothing left", got, err)
		}
	})
	step("remove half", func() {
		for len(s.Images()) > images/2 {
			if err := s.RemoveImage(t.Context(), s.Images()[0].Digest); err != nil {
				t.Fatal(err)
			}
		}
	})
	step("check", func() {
		if found := checkAll(t, s, CheckOptions{}); len(found) > 0 {
			t.Errorf("Check: %q", found)
		}
	})
	if names := objectNames(t, s); len(names) != 990+10*(images/2) {
		t.Errorf("%d objects, want %d", len(names), 990+10*(images/2))
	}
	checkNothingLoose(t, s)
}

// openStoreUnchecked is openStore without the check at the end.
func openStoreUnchecked(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
