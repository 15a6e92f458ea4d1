package store

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// requireRoot skips without root; with FRE_TEST_ROOT=1 it fails.
func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("FRE_TEST_ROOT") == "1" {
			t.Fatal("FRE_TEST_ROOT=1, but not root")
		}
		t.Skip("needs root")
	}
}

// TestWriterRefuses: A writer refuses invalid paths, conflicts and truncated files, and Commit
// repeats the first error.
func TestWriterRefuses(t *testing.T) {
	s := openStore(t, t.TempDir())
	file := func(path string) func(*Writer) error {
		return func(w *Writer) error { return w.File(path, 0o644, testTime, strings.NewReader("x")) }
	}
	dir := func(path string) func(*Writer) error {
		return func(w *Writer) error { return w.Directory(path, 0o755, testTime) }
	}
	link := func(path, target string) func(*Writer) error {
		return func(w *Writer) error { return w.Symlink(path, target, testTime) }
	}
	cut := errors.New("cut")
	for _, test := range []struct {
		name  string
		steps []func(*Writer) error // only the last step fails
		want  error
	}{
		{"empty", []func(*Writer) error{file("")}, ErrPath},
		{"dot", []func(*Writer) error{dir(".")}, ErrPath},
		{"absolute", []func(*Writer) error{file("/etc/passwd")}, ErrPath},
		{"dot dot", []func(*Writer) error{file("a/../../b")}, ErrPath},
		{"inner dot", []func(*Writer) error{file("a/./b")}, ErrPath},
		{"double slash", []func(*Writer) error{file("a//b")}, ErrPath},
		{"trailing slash", []func(*Writer) error{dir("a/")}, ErrPath},
		{"NUL", []func(*Writer) error{file("a\x00b")}, ErrPath},
		{"long name", []func(*Writer) error{file(strings.Repeat("n", 256))}, ErrPath},
		{"long path", []func(*Writer) error{file(strings.Repeat("n/", 2048) + "n")}, ErrPath},
		{"empty target", []func(*Writer) error{link("a", "")}, ErrPath},
		{"NUL in target", []func(*Writer) error{link("a", "b\x00")}, ErrPath},
		{"long target", []func(*Writer) error{link("a", strings.Repeat("t", 4096))}, ErrPath},
		{"directory over file", []func(*Writer) error{file("a"), dir("a")}, ErrConflict},
		{"file over directory", []func(*Writer) error{dir("a"), file("a")}, ErrConflict},
		{"symlink over directory", []func(*Writer) error{file("a/b"), link("a", "b")}, ErrConflict},
		{"file below file", []func(*Writer) error{file("a"), file("a/b")}, ErrConflict},
		{"file below symlink", []func(*Writer) error{link("a", "/etc"), file("a/b/passwd")}, ErrConflict},
		{"read error", []func(*Writer) error{func(w *Writer) error {
			return w.File("a", 0o644, testTime, io.MultiReader(strings.NewReader("x"), iotest.ErrReader(cut)))
		}}, cut},
		{"cut archive", []func(*Writer) error{func(w *Writer) error {
			return w.File("a", 0o644, testTime, io.MultiReader(strings.NewReader("x"), iotest.ErrReader(io.ErrUnexpectedEOF)))
		}}, io.ErrUnexpectedEOF},
		{"cut large archive", []func(*Writer) error{func(w *Writer) error {
			return w.File("a", 0o644, testTime, io.MultiReader(bytes.NewReader(make([]byte, bufferSize+1)), iotest.ErrReader(io.ErrUnexpectedEOF)))
		}}, io.ErrUnexpectedEOF},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, err := s.Create()
			if err != nil {
				t.Fatal(err)
			}
			for i, step := range test.steps {
				err := step(w)
				if i < len(test.steps)-1 && err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				if i == len(test.steps)-1 && !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
			}
			if _, err := w.Commit(t.Context()); !errors.Is(err, test.want) {
				t.Errorf("Commit: %v, want the first error, %v", err, test.want)
			}
			if err := w.File("later", 0o644, testTime, strings.NewReader("")); err == nil {
				t.Error("File after Commit: want an error")
			}
			w.Abort()
		})
	}
}

func TestWriterLastFileWins(t *testing.T) {
	s := openStore(t, t.TempDir())
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"first", "second"} {
		if err := w.File("a/b", 0o644, testTime, strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Symlink("a/c", "b", testTime); err != nil {
		t.Fatal(err)
	}
	if err := w.File("a/c", 0o644, testTime, strings.NewReader("third")); err != nil {
		t.Fatal(err)
	}
	if err := w.Directory("a", 0o700, testTime); err != nil {
		t.Fatal(err)
	}
	d, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	img := putImage(t, s, "x", "1", d)
	for path, want := range map[string]string{"a/b": "second", "a/c": "third"} {
		b, err := os.ReadFile(filepath.Join(s.Rootfs(img.Digest), path))
		if string(b) != want {
			t.Errorf("%s holds %q (%v), want %q", path, b, err, want)
		}
	}
	if again := putTree(t, s, map[string]string{"z": "z"}); again == d {
		t.Error("two trees with one digest")
	}
}

// TestSameTreeIsOne: The same tree is stored once.
func TestSameTreeIsOne(t *testing.T) {
	s := openStore(t, t.TempDir())
	files := map[string]string{"a/b/c": "1", "a/d": "2", "e": ""}
	if a, b := putTree(t, s, files), putTree(t, s, files); a != b {
		t.Errorf("digests %s and %s of the same tree", a, b)
	}
	if names, err := readNames(s.disk.trees); err != nil || len(names) != 1 {
		t.Errorf("trees: %q, %v, want one", names, err)
	}
}

// sourceDir makes a directory with files of all kinds.
func sourceDir(t *testing.T, dir string) {
	t.Helper()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "sub/deep"), 0o750),
		os.WriteFile(filepath.Join(dir, "run.sh"), []byte("#!/bin/sh\n"), 0o755),
		os.Chmod(filepath.Join(dir, "run.sh"), 0o755|fs.ModeSetuid),
		os.WriteFile(filepath.Join(dir, "sub/deep/large"), bytes.Repeat([]byte("large"), bufferSize), 0o640),
		os.WriteFile(filepath.Join(dir, "sub/empty"), nil, 0o644),
		os.WriteFile(filepath.Join(dir, "sub/linked"), []byte("two names"), 0o644),
		os.Link(filepath.Join(dir, "sub/linked"), filepath.Join(dir, "sub/other-name")),
		os.Symlink("/absolute/../target", filepath.Join(dir, "sub/symlink")),
		os.WriteFile(filepath.Join(dir, "attributes"), []byte("has attributes"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	// cap_net_raw+ep in the kernel's format (linux/capability.h); setting it takes root.
	capability := []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	for _, a := range []struct{ file, name string }{
		{"attributes", "user.fre"}, {"attributes", "security.capability"}, {"sub", "user.fre"},
	} {
		err := unix.Setxattr(filepath.Join(dir, a.file), a.name, capability, 0)
		if err != nil && !errors.Is(err, unix.ENOTSUP) && (os.Geteuid() == 0 || !errors.Is(err, unix.EPERM)) {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "sub"), 0o750|fs.ModeSetgid|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
}

// TestOwners: A file with another owner is another object and has this owner in every image. Files
// of root keep the keys and digests of old stores.
func TestOwners(t *testing.T) {
	requireRoot(t)
	s := openStore(t, t.TempDir())
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	enter := func(dir string) {
		t.Helper()
		err := errors.Join(
			w.Directory(dir, 0o750, testTime),
			w.File(dir+"/file", 0o640, testTime, strings.NewReader("same")),
			w.File(dir+"/large", 0o640, testTime, bytes.NewReader(make([]byte, bufferSize+1))),
			w.File(dir+"/empty", 0o640, testTime, strings.NewReader("")),
			w.Symlink(dir+"/link", "file", testTime))
		if err != nil {
			t.Fatal(err)
		}
	}
	enter("root")
	if err := w.SetOwner(101, 102); err != nil {
		t.Fatal(err)
	}
	enter("www")
	if err := w.SetOwner(0, MaxID); err != nil {
		t.Fatal(err)
	}
	enter("nobody")
	d, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The final check of the store compares each entry with the disk.
	rootfs := s.Rootfs(putImage(t, s, "x", "1", d).Digest)
	for dir, want := range map[string][2]uint32{"root": {0, 0}, "www": {101, 102}, "nobody": {0, MaxID}} {
		for _, name := range []string{"", "/file", "/large", "/empty", "/link"} {
			e, err := statEntry(filepath.Join(rootfs, dir+name))
			if got := [2]uint32{e.UID, e.GID}; err != nil || got != want {
				t.Errorf("%s%s: owner %v (%v), want %v", dir, name, got, err, want)
			}
		}
	}
	a, _ := inode(t, filepath.Join(rootfs, "root/file"))
	b, _ := inode(t, filepath.Join(rootfs, "www/file"))
	if a == b {
		t.Error("files of different owners share an inode")
	}

	old := Entry{Path: "a", Kind: KindFile, Mode: 0o644, MTime: 1, Size: 1, Digest: sumDigest([]byte("x"))}
	if got, want := old.key(), "3c099aaa35b3ed4e90b989fafb97e3f4e1b11614652fff2a6b7952497bb1519b"; got != want {
		t.Errorf("key of a file of root's is %s, was %s", got, want)
	}
	encoded, err := (&Tree{Entries: []Entry{old}}).encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := sumDigest(encoded), Digest("sha256:9e3f9e89446db2ef370ddac1fe8e1a2de468fc45b606cebce1c68d3e624a28bf"); got != want {
		t.Errorf("digest of a tree of root's is %s, was %s", got, want)
	}

	w, err = s.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if err := w.SetOwner(MaxID+1, 0); !errors.Is(err, ErrOwner) {
		t.Errorf("SetOwner(%d, 0) = %v, want ErrOwner", MaxID+1, err)
	}
}

// TestAddDir: AddDir copies a directory without set-id bits, extended attributes and owners, and
// later changes of the source have no effect.
func TestAddDir(t *testing.T) {
	for _, prefix := range []string{"", "opt/x"} {
		t.Run("to "+prefix, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			dir := t.TempDir()
			sourceDir(t, dir)
			if os.Geteuid() == 0 {
				if err := os.Lchown(filepath.Join(dir, "run.sh"), 100000, 100000); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(filepath.Join(dir, "run.sh"), 0o755|fs.ModeSetuid); err != nil {
					t.Fatal(err)
				}
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			w, err := s.Create()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Abort()
			if err := w.AddDir(root, prefix); err != nil {
				t.Fatal(err)
			}
			d, err := w.Commit(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			// An object must not change with its source.
			for _, name := range []string{"sub/linked", "attributes", "sub/deep/large"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("overwritten"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			img := putImage(t, s, "x", "1", d)
			image := filepath.Join(s.Rootfs(img.Digest), prefix)
			if st, err := os.Stat(filepath.Join(image, "run.sh")); err != nil || st.Mode() != 0o755 {
				t.Errorf("run.sh: %v, %v, want mode 0755", st.Mode(), err)
			}
			for _, name := range []string{"attributes", "sub"} {
				if n, err := unix.Listxattr(filepath.Join(image, name), nil); n > 0 {
					t.Errorf("%s: %d bytes of extended attributes (%v), want none", name, n, err)
				}
			}
			if st, err := os.Stat(filepath.Join(image, "sub")); err != nil || st.Mode() != fs.ModeDir|0o750 {
				t.Errorf("sub: %v, %v, want mode 0750", st.Mode(), err)
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			// The final check of the store compares bytes and metadata with the tree; the test
			// compares the tree with the source.
			tree, err := s.Tree(d)
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[string]Kind)
			for _, e := range tree.Entries {
				got[e.Path] = e.Kind
			}
			want := make(map[string]Kind)
			for p := prefix; p != ""; p = parent(p) {
				want[p] = KindDir
			}
			for p, k := range map[string]Kind{
				"run.sh": KindFile, "attributes": KindFile, "sub": KindDir, "sub/deep": KindDir, "sub/deep/large": KindFile,
				"sub/empty": KindFile, "sub/linked": KindFile, "sub/other-name": KindFile, "sub/symlink": KindSymlink,
			} {
				want[join(prefix, p)] = k
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAddDirRefusesSpecialFiles: AddDir refuses fifos, sockets and devices by name.
func TestAddDirRefusesSpecialFiles(t *testing.T) {
	s := openStore(t, t.TempDir())
	for name, make := range map[string]func(path string) error{
		"fifo": func(path string) error { return unix.Mkfifo(path, 0o600) },
		"socket": func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
			}
			return err
		},
		"device": func(path string) error {
			requireRoot(t)
			return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := make(filepath.Join(dir, "sub/special")); err != nil {
				t.Fatal(err)
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			w, err := s.Create()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Abort()
			err = w.AddDir(root, "p")
			if !errors.Is(err, ErrFileType) || !strings.Contains(err.Error(), "p/sub/special") {
				t.Errorf("AddDir: %v, want ErrFileType naming p/sub/special", err)
			}
		})
	}
}

// FuzzCheckPath: An accepted path is clean and stays within its tree.
func FuzzCheckPath(f *testing.F) {
	for _, seed := range []string{"a", "a/b", "", ".", "..", "/a", "a/", "a//b", "a/../b", "a\x00", "\xff", "ő/ű", strings.Repeat("x", 256)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if checkPath(p) != nil {
			return
		}
		if text := strings.ToValidUTF8(p, "x"); !fs.ValidPath(text) || p == "." || !filepath.IsLocal(p) || filepath.Clean(p) != p || strings.Contains(p, "\x00") {
			t.Errorf("checkPath(%q) accepts a path that is not clean and local", p)
		}
	})
}

func FuzzDecodeTree(f *testing.F) {
	for _, seed := range []string{
		`{"entries":null}`,
		`{"entries":[{"path":"a","kind":"dir","mode":493}]}`,
		`{"entries":[{"path":"a","kind":"symlink","link":"/b"}]}`,
		`{"entries":[{"path":"a","kind":"file","mode":420,"size":1,"digest":"sha256:` + strings.Repeat("0", 64) + `"}]}`,
		`{"entries":[{"path":"a/b","kind":"dir"}]}`,
		`{"entries":[{"path":"../b","kind":"dir"}]}`,
		`{"entries":[{"path":"a","kind":"device"}]}`,
		`{"entries":[{"path":"a","kind":"dir","mode":2541}]}`,
		`{"entries":[]} {}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		tree, err := decodeTree(b)
		if err != nil {
			return
		}
		canonical, err := tree.encode()
		if err != nil {
			t.Fatalf("decoded, but not encoded again: %v", err)
		}
		again, err := decodeTree(canonical)
		if err != nil {
			t.Fatalf("own encoding %s refused: %v", canonical, err)
		}
		if diff := cmp.Diff(tree, again); diff != "" {
			t.Errorf("round trip (-first +second):\n%s", diff)
		}
	})
}
