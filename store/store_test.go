package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var testTime = time.Unix(1700000000, 123456789)

func testLog(t testing.TB) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// openStore opens a store. At the end of the test it checks and closes the store.
func openStore(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir, testLog(t))
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			_ = s.Close()
			return
		}
		checkStore(t, s)
		if err := s.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// reopen closes s and opens its directory again.
func reopen(t testing.TB, s *Store) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	return openStore(t, s.disk.dir)
}

// checkStore checks the invariants of an idle store: tmp/ is empty, each image has one directory,
// and each file has the bytes, mode and mtime of its tree.
func checkStore(t testing.TB, s *Store) {
	t.Helper()
	if s.disk.tmp.Fd() == ^uintptr(0) {
		return // closed by the test, which checks its successor
	}
	if names, err := readNames(s.disk.tmp); err != nil || len(names) > 0 {
		t.Errorf("tmp holds %q (%v), want nothing", names, err)
	}
	names, err := readNames(s.disk.images)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(names), len(s.Images()); got != want {
		t.Errorf("%d image directories %q, want %d", got, names, want)
	}
	for _, img := range s.Images() {
		checkImage(t, s, img)
	}
	if s.disk.linkLimit == 0 { // sizes do not count further copies of an object
		checkSizes(t, s, "at the end")
	}
}

func checkImage(t testing.TB, s *Store, img *Image) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.disk.dir, "images", img.Digest.hex(), "manifest.json"))
	if err != nil || sumDigest(b) != img.Digest {
		t.Errorf("manifest of %s: err %v, digest %s", img.Digest, err, sumDigest(b))
	}
	entries, _, err := merge(img.Manifest, s.Tree)
	if err != nil {
		t.Errorf("merge %s: %v", img.Digest, err)
		return
	}
	want := make(map[string]Entry)
	for _, e := range entries {
		want[e.Path] = e
	}
	got := make(map[string]Entry)
	root := s.Rootfs(img.Digest)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		e, err := statEntry(path)
		e.Path = strings.TrimPrefix(path, root+"/")
		got[e.Path] = e
		return err
	})
	if err != nil {
		t.Errorf("walk %s: %v", img.Digest, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("image %s (-want +got):\n%s", img.Digest, diff)
	}
}

// statEntry returns the entry for the file at path.
func statEntry(path string) (Entry, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Entry{}, err
	}
	e := Entry{Mode: st.Mode & 0o7777, MTime: st.Mtim.Sec, UID: st.Uid, GID: st.Gid}
	if euid := os.Geteuid(); euid != 0 && int(st.Uid) == euid && int(st.Gid) == os.Getegid() {
		e.UID, e.GID = 0, 0 // the engine's own user stands for root
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.Kind = KindDir
	case unix.S_IFLNK:
		e.Kind, e.Mode = KindSymlink, 0
		var err error
		if e.Link, err = os.Readlink(path); err != nil {
			return e, err
		}
	default:
		b, err := os.ReadFile(path)
		if err != nil {
			return e, err
		}
		e.Kind, e.Size, e.Digest = KindFile, int64(len(b)), sumDigest(b)
	}
	return e, nil
}

// putTree commits a tree of files (path → content), mode 0644.
func putTree(t testing.TB, s *Store, files map[string]string) Digest {
	t.Helper()
	w, err := s.Create()
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	defer w.Abort()
	for path, content := range files {
		if err := w.File(path, 0o644, testTime, strings.NewReader(content)); err != nil {
			t.Fatalf("File(%q): %v", path, err)
		}
	}
	d, err := w.Commit(t.Context())
	if err != nil {
		t.Fatalf("Commit: %v", err)
	}
	return d
}

// putImage puts an image of one part per tree.
func putImage(t testing.TB, s *Store, name, version string, trees ...Digest) *Image {
	t.Helper()
	img, err := s.PutImage(t.Context(), testManifest(name, version, trees...))
	if err != nil {
		t.Fatalf("PutImage(%s:%s): %v", name, version, err)
	}
	return img
}

func testManifest(name, version string, trees ...Digest) Manifest {
	m := Manifest{Name: name, Version: version, Config: []byte(`{"a": 1}`)}
	for i, d := range trees {
		m.Parts = append(m.Parts, Part{Kind: "code", Name: fmt.Sprintf("part%d", i), Tree: d})
	}
	return m
}

func TestPutImage(t *testing.T) {
	s := openStore(t, t.TempDir())
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 3*bufferSize/16)
	for _, f := range []struct {
		path    string
		mode    fs.FileMode
		content []byte
	}{
		{"usr/bin/tool", fs.ModeSetuid | fs.ModeSticky | 0o755, []byte("tool")},
		{"usr/lib/empty", 0o644, nil},
		{"usr/lib/empty2", 0o644, nil},
		{"usr/lib/large", 0o600, large},
		{"usr/lib/exact", 0o444, large[:bufferSize]},
		{"usr/lib/exact2", 0o444, large[:2*bufferSize]},
		{"usr/lib/just-over", 0o444, large[:bufferSize+1]},
		{"usr/lib/same", 0o600, large},
	} {
		for name, r := range map[string]io.Reader{
			"plain":     bytes.NewReader(f.content),
			"halves":    iotest.HalfReader(bytes.NewReader(f.content)),
			"early EOF": iotest.DataErrReader(bytes.NewReader(f.content)),
		} {
			if err := w.File(f.path, f.mode, testTime, r); err != nil {
				t.Fatalf("File(%q), %s reader: %v", f.path, name, err)
			}
		}
	}
	if err := w.Symlink("bin", "usr/bin", testTime); err != nil {
		t.Fatal(err)
	}
	if err := w.Symlink("usr/abs", "/etc/../passwd", testTime); err != nil {
		t.Fatal(err)
	}
	if err := w.Directory("tmp", fs.ModeSticky|0o777, testTime); err != nil {
		t.Fatal(err)
	}
	d, err := w.Commit(t.Context())
	if err != nil {
		t.Fatalf("Commit: %v", err)
	}
	img := putImage(t, s, "tool", "1", d)
	got, err := s.Tree(d)
	if err != nil {
		t.Fatal(err)
	}
	sec := testTime.Unix()
	file := func(path string, mode uint32, content []byte) Entry {
		return Entry{Path: path, Kind: KindFile, Mode: mode, MTime: sec, Size: int64(len(content)), Digest: sumDigest(content)}
	}
	want := &Tree{Entries: []Entry{
		{Path: "bin", Kind: KindSymlink, Link: "usr/bin", MTime: sec},
		{Path: "tmp", Kind: KindDir, Mode: 0o777, MTime: sec},
		{Path: "usr", Kind: KindDir, Mode: 0o755},
		{Path: "usr/abs", Kind: KindSymlink, Link: "/etc/../passwd", MTime: sec},
		{Path: "usr/bin", Kind: KindDir, Mode: 0o755},
		file("usr/bin/tool", 0o755, []byte("tool")),
		{Path: "usr/lib", Kind: KindDir, Mode: 0o755},
		file("usr/lib/empty", 0o644, nil),
		file("usr/lib/empty2", 0o644, nil),
		file("usr/lib/exact", 0o444, large[:bufferSize]),
		file("usr/lib/exact2", 0o444, large[:2*bufferSize]),
		file("usr/lib/just-over", 0o444, large[:bufferSize+1]),
		file("usr/lib/large", 0o600, large),
		file("usr/lib/same", 0o600, large),
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	if img.Files != 8 || img.Size != int64(4+len(large)+bufferSize+2*bufferSize+bufferSize+1) {
		t.Errorf("image has %d files, %d bytes", img.Files, img.Size)
	}
	for _, p := range mountPoints {
		if st, err := os.Lstat(filepath.Join(s.Rootfs(img.Digest), p)); err != nil || !st.IsDir() {
			t.Errorf("mount point %s: %v, %v", p, st, err)
		}
	}
	again := putImage(t, s, "tool", "1", d)
	if again != img {
		t.Errorf("the same image again: %v, want the one there is", again)
	}
	s = reopen(t, s)
	if diff := cmp.Diff([]*Image{img}, s.Images()); diff != "" {
		t.Errorf("images after reopening (-before +after):\n%s", diff)
	}
}

// TestCanceled: A cancelled context ends PutImage and Commit.
func TestCanceled(t *testing.T) {
	s := openStore(t, t.TempDir())
	d := putTree(t, s, map[string]string{"a": "a"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.PutImage(ctx, testManifest("x", "1", d)); !errors.Is(err, context.Canceled) {
		t.Errorf("PutImage: %v, want canceled", err)
	}
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Commit: %v, want canceled", err)
	}
}
