package store

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestPartsMerge(t *testing.T) {
	s := openStore(t, t.TempDir())
	base := putTree(t, s, map[string]string{"usr/lib/a": "base a", "usr/lib/b": "base b", "file": "x"})
	code := putTree(t, s, map[string]string{"lib/b": "code b", "lib/c": "code c"})
	symlink := func(path string) Digest {
		w, err := s.Create()
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Symlink(path, "elsewhere", testTime); err != nil {
			t.Fatal(err)
		}
		d, err := w.Commit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	part := func(name string, d Digest, prefix string) Part {
		return Part{Kind: "code", Name: name, Tree: d, Prefix: prefix}
	}

	img, err := s.PutImage(t.Context(), Manifest{Name: "ok", Version: "1", Parts: []Part{
		part("base", base, ""), part("code", code, "usr"), part("link", symlink("a"), "usr/lib"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	root := s.Rootfs(img.Digest)
	for path, want := range map[string]string{"usr/lib/b": "code b", "usr/lib/c": "code c", "file": "x"} {
		if b, err := os.ReadFile(filepath.Join(root, path)); string(b) != want {
			t.Errorf("%s holds %q (%v), want %q", path, b, err, want)
		}
	}
	if l, err := os.Readlink(filepath.Join(root, "usr/lib/a")); l != "elsewhere" {
		t.Errorf("usr/lib/a is %q (%v), want the later part's symlink", l, err)
	}

	for _, test := range []struct {
		name  string
		parts []Part
		want  error
		text  []string
	}{
		{"file and directory", []Part{part("base", base, ""), part("code", code, "file")}, ErrConflict, []string{"base", "code", "file"}},
		{"symlink over directory", []Part{part("base", base, ""), part("link", symlink("usr"), "")}, ErrConflict, []string{"base", "link", "usr"}},
		{"mount point taken", []Part{part("link", symlink("proc"), "")}, ErrConflict, []string{"link", "proc", "mount point"}},
		{"unknown tree", []Part{part("gone", emptyDigest, "")}, fs.ErrNotExist, []string{"gone"}},
		{"bad prefix", []Part{part("base", base, "../up")}, ErrPath, []string{"base", "../up"}},
		{"long prefix", []Part{part("base", base, strings.Repeat("p/", 2046)+"p")}, ErrPath, []string{"base"}},
		{"bad digest", []Part{part("base", "sha256:../../x", "")}, nil, []string{"base", "malformed digest"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := s.PutImage(t.Context(), Manifest{Name: "bad", Version: "1", Parts: test.parts})
			if err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			for _, text := range test.text {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q does not name %q", err, text)
				}
			}
		})
	}
	for _, name := range []string{"", "sha256", "a:b", "a b", "a@b", "a\n", "\xff"} {
		if _, err := s.PutImage(t.Context(), testManifest(name, "1", base)); !errors.Is(err, ErrPath) {
			t.Errorf("name %q: %v, want ErrPath", name, err)
		}
	}
	if n := len(s.Images()); n != 1 {
		t.Errorf("%d images, want 1", n)
	}
}

func inode(t *testing.T, path string) (ino, nlink uint64) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("stat %s: %v", path, err)
	}
	return st.Ino, uint64(st.Nlink) //nolint:unconvert // 32 bits on arm64
}

// TestFilesAreShared: Images share equal files as hard links, except empty ones.
func TestFilesAreShared(t *testing.T) {
	s := openStore(t, t.TempDir())
	a := putImage(t, s, "a", "1", putTree(t, s, map[string]string{"x/shared": "same", "x/empty": ""}))
	b := putImage(t, s, "b", "1", putTree(t, s, map[string]string{"y/shared": "same", "y/empty": "", "y/own": "own"}))
	ia, n := inode(t, filepath.Join(s.Rootfs(a.Digest), "x/shared"))
	ib, _ := inode(t, filepath.Join(s.Rootfs(b.Digest), "y/shared"))
	if ia != ib || n != 3 {
		t.Errorf("inodes %d and %d with %d links, want one with 3", ia, ib, n)
	}
	ia, n = inode(t, filepath.Join(s.Rootfs(a.Digest), "x/empty"))
	ib, _ = inode(t, filepath.Join(s.Rootfs(b.Digest), "y/empty"))
	if ia == ib || n != 1 {
		t.Errorf("empty files share inode %d with %d links, want one each", ia, n)
	}
}

// TestLinkLimit: If a file has as many links as allowed, the store makes a further copy.
func TestLinkLimit(t *testing.T) {
	s := openStore(t, t.TempDir())
	s.disk.linkLimit = 3
	files := make(map[string]string)
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		files[name] = "same"
	}
	d := putTree(t, s, files)
	img := putImage(t, s, "x", "1", d)
	counts := make(map[uint64]int)
	for name := range files {
		ino, n := inode(t, filepath.Join(s.Rootfs(img.Digest), name))
		counts[ino]++
		if n > 3 {
			t.Errorf("%s has %d links, want at most 3", name, n)
		}
	}
	if len(counts) != 4 {
		t.Errorf("7 files on %d inodes, want 4: %v", len(counts), counts)
	}
	// A new process does not know which copy is full.
	s = reopen(t, s)
	s.disk.linkLimit = 3
	again := putImage(t, s, "y", "1", d)
	for _, img := range []*Image{img, again} {
		if err := s.RemoveImage(t.Context(), img.Digest); err != nil {
			t.Fatal(err)
		}
	}
	if names := objectNames(t, s); len(names) != 0 {
		t.Errorf("objects left: %q", names)
	}
}

func objectNames(t testing.TB, s *Store) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(s.disk.dir, "objects/*/*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestImageReferences(t *testing.T) {
	s := openStore(t, t.TempDir())
	tree := putTree(t, s, map[string]string{"a": "a"})
	v1 := putImage(t, s, "app", "1", tree)
	v2 := putImage(t, s, "app", "2", tree)
	latest := putImage(t, s, "web", "latest", tree)
	newer := putImage(t, s, "web", "9", tree)
	hexName := putImage(t, s, v1.Digest.hex()[:8], "1", tree)

	for _, test := range []struct {
		ref  string
		want Digest
		err  error
	}{
		{ref: "app", want: v2.Digest},
		{ref: "app:1", want: v1.Digest},
		{ref: "web", want: latest.Digest},
		{ref: "web:9", want: newer.Digest},
		{ref: string(v1.Digest), want: v1.Digest},
		{ref: v2.Digest.hex(), want: v2.Digest},
		{ref: v2.Digest.hex()[:12], want: v2.Digest},
		{ref: string(v2.Digest)[:20], want: v2.Digest},
		{ref: v1.Digest.hex()[:8], want: hexName.Digest}, // names take precedence over digests
		{ref: v1.Digest.hex()[:9], want: v1.Digest},
		{ref: "", err: ErrName},
		{ref: "app:3", err: fs.ErrNotExist},
		{ref: "app:", err: ErrName},
		{ref: "none", err: fs.ErrNotExist},
		{ref: "sha256:", err: fs.ErrNotExist},
		{ref: v2.Digest.hex()[:5], err: fs.ErrNotExist},
		{ref: "../../etc", err: fs.ErrNotExist},
	} {
		img, err := s.Image(test.ref)
		if !errors.Is(err, test.err) || err == nil && img.Digest != test.want {
			t.Errorf("Image(%q) = %v, %v, want %s, %v", test.ref, img, err, test.want, test.err)
		}
	}
	images := s.Images()
	for i := 1; i < len(images); i++ {
		if images[i].Created.After(images[i-1].Created) {
			t.Errorf("image %d is newer than the one before it", i)
		}
	}
}

func TestAmbiguousReference(t *testing.T) {
	s := Store{meta: new(metadata)}
	n := newSnapshot()
	for _, tail := range []string{"0", "1"} {
		d := Digest(digestPrefix + strings.Repeat("abcdef", 10) + "012" + tail)
		n.byDigest[d] = &Image{Digest: d}
	}
	n.images = slices.Collect(maps.Values(n.byDigest))
	s.meta.snap.Store(n)
	if _, err := s.Image("abcdef"); !errors.Is(err, ErrAmbiguous) {
		t.Errorf("Image: %v, want ErrAmbiguous", err)
	}
}

func TestTagMoves(t *testing.T) {
	s := openStore(t, t.TempDir())
	one := putTree(t, s, map[string]string{"a": "1"})
	two := putTree(t, s, map[string]string{"a": "2"})
	old := putImage(t, s, "app", "1", one)
	now := putImage(t, s, "app", "1", two)
	check := func(s *Store, named, unnamed Digest) {
		t.Helper()
		if img, err := s.Image("app:1"); err != nil || img.Digest != named || img.Name != "app" {
			t.Errorf("app:1 is %v, %v, want %s", img, err, named)
		}
		if img, err := s.Image(string(unnamed)); err != nil || img.Name != "" || img.Version != "" {
			t.Errorf("the other image: %v, %v, want it without a name", img, err)
		}
	}
	check(s, now.Digest, old.Digest)
	s = reopen(t, s)
	check(s, now.Digest, old.Digest)
	if back := putImage(t, s, "app", "1", one); back.Digest != old.Digest || !back.Created.Equal(old.Created) {
		t.Errorf("put again: %v, want %v", back, old)
	}
	check(s, old.Digest, now.Digest)
	s = reopen(t, s)
	check(s, old.Digest, now.Digest)
}

func TestRemoveImage(t *testing.T) {
	s := openStore(t, t.TempDir())
	shared := putTree(t, s, map[string]string{"shared": "shared", "hidden": "hidden"})
	own := putTree(t, s, map[string]string{"own": "own", "hidden": "over it"})
	loose := putTree(t, s, map[string]string{"loose": "loose"})
	keep := putImage(t, s, "keep", "1", shared)
	gone := putImage(t, s, "gone", "1", shared, own)
	for key, d := range map[string]Digest{"shared": shared, "own": own, "loose": loose} {
		if err := s.PutPart(t.Context(), key, Part{Kind: "pip", Name: key, Tree: d}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.PutFunction(t.Context(), Function{Name: "f", Image: gone.Digest}); err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveImage(t.Context(), gone.Digest); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "function f") {
		t.Errorf("RemoveImage: %v, want ErrInUse naming f", err)
	}
	// Nor after a redeployment, because the function may go back to the image.
	if err := s.PutFunction(t.Context(), Function{Name: "f", Image: keep.Digest, Images: []Digest{gone.Digest}}); err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveImage(t.Context(), gone.Digest); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "function f") {
		t.Errorf("RemoveImage of one to go back to: %v, want ErrInUse naming f", err)
	}
	if err := s.RemoveFunction(t.Context(), "f"); err != nil {
		t.Fatal(err)
	}
	release := s.Hold()
	if err := s.RemoveImage(t.Context(), gone.Digest); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sweep(t.Context(), SweepOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Part("own"); !ok {
		t.Error("part is gone under a lease taken before its image went")
	}
	if _, err := s.Tree(own); err != nil {
		t.Errorf("tree is gone under a lease taken before its image went: %v", err)
	}
	if names := objectNames(t, s); len(names) != 4 {
		t.Errorf("objects under a lease: %q, want all but loose", names)
	}
	if _, err := os.Lstat(s.Rootfs(gone.Digest)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("rootfs of the removed image: %v, want not exist", err)
	}
	release()
	release()
	if err := s.RemoveImage(t.Context(), gone.Digest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("RemoveImage twice: %v, want not exist", err)
	}
	got := map[string]bool{}
	for _, key := range []string{"shared", "own", "loose"} {
		_, got[key] = s.Part(key)
	}
	if diff := cmp.Diff(map[string]bool{"shared": true, "own": false, "loose": false}, got); diff != "" {
		t.Errorf("parts after the sweep (-want +got):\n%s", diff)
	}
	if names := objectNames(t, s); len(names) != 2 {
		t.Errorf("objects after the sweep: %q, want two", names)
	}
	if names, err := readNames(s.disk.trees); err != nil || len(names) != 1 {
		t.Errorf("trees after the sweep: %q, %v, want one", names, err)
	}
	checkImage(t, s, keep)
	// A tree is still whole after a later part hid some of its files.
	putImage(t, s, "again", "1", shared)
}

func TestSweepSparesEverythingWhenATreeIsDamaged(t *testing.T) {
	s, err := Open(t.TempDir(), testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d := putTree(t, s, map[string]string{"a": "a"})
	putImage(t, s, "x", "1", d)
	if err := os.WriteFile(filepath.Join(s.disk.dir, "trees", d.hex()+".json"), []byte(`{"entries":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	putTree(t, s, map[string]string{"b": "loose"})
	if _, err := s.Sweep(t.Context(), SweepOptions{}); !errors.Is(err, ErrTree) {
		t.Errorf("Sweep: %v, want ErrTree", err)
	}
	if names := objectNames(t, s); len(names) != 2 {
		t.Errorf("objects after the sweep: %q, want two", names)
	}
}

// TestListsFromMemory: Lists and look-ups are answered from memory, even without the files.
func TestListsFromMemory(t *testing.T) {
	s := openStore(t, t.TempDir())
	img := putImage(t, s, "f", "1", putTree(t, s, map[string]string{"a": "b"}))
	for _, dir := range []string{"images", "trees", "objects"} {
		path := filepath.Join(s.Dir(), dir)
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := os.Rename(path+".away", path); err != nil {
				t.Error(err)
			}
		}()
	}
	if diff := cmp.Diff([]*Image{img}, s.Images()); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	if got, err := s.Image("f:1"); err != nil || got.Digest != img.Digest {
		t.Errorf("look-up: %v, %v", got, err)
	}
}

// TestHiddenOfOldStore: Open adds the hidden links to images of an old store, also after a crash
// half way or with a lost database. So the removal of one image takes no content from another.
func TestHiddenOfOldStore(t *testing.T) {
	for _, c := range []struct {
		name string
		left int  // number of hidden links left
		lost bool // the database is lost
		torn bool // a tree is damaged
	}{{name: "none"}, {name: "some", left: 1}, {name: "lost database", lost: true}, {name: "damaged tree", torn: true}} {
		t.Run(c.name, func(t *testing.T) {
			s := openStoreUnchecked(t, t.TempDir())
			release := s.Hold()
			below := putTree(t, s, map[string]string{"a": "hidden a", "b": "hidden b"})
			img := putImage(t, s, "app", "1", below, putTree(t, s, map[string]string{"a": "a", "b": "b"}))
			shows := putImage(t, s, "shows", "1", putTree(t, s, map[string]string{"x": "hidden a", "y": "hidden b"}))
			torn := putTree(t, s, map[string]string{"torn": "torn"})
			putImage(t, s, "torn", "1", torn)
			release()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(s.disk.dir, "images", img.Digest.hex(), hiddenName)
			links, err := os.ReadDir(dir)
			if err != nil || len(links) != 2 {
				t.Fatalf("hidden links: %v, %v, want two", links, err)
			}
			for _, link := range links[c.left:] {
				if err := os.Remove(filepath.Join(dir, link.Name())); err != nil {
					t.Fatal(err)
				}
			}
			if c.left == 0 {
				if err := os.Remove(dir); err != nil {
					t.Fatal(err)
				}
			}
			if c.torn {
				flip(t, filepath.Join(s.disk.dir, "trees", torn.hex()+".json"))
			}
			makeOld(t, s.disk.dir, sizedSince-1)
			if c.lost {
				if err := os.Remove(filepath.Join(s.disk.dir, dbName)); err != nil {
					t.Fatal(err)
				}
			}
			s, err = Open(s.disk.dir, testLog(t))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.RemoveImage(t.Context(), shows.Digest); err != nil {
				t.Fatal(err)
			}
			want := []string{}
			if c.torn {
				want = []string{"trees/X.json: content has changed", "images/X: the list of files of the part code part0 is lost"}
			}
			if diff := cmp.Diff(want, checkAll(t, s, CheckOptions{})); diff != "" {
				t.Errorf("after the other image went (-want +got):\n%s", diff)
			}
			if !c.torn {
				checkStore(t, s)
			}
		})
	}
}

// TestPutImageKeepsConfig: PutImage does not change the caller's configuration.
func TestPutImageKeepsConfig(t *testing.T) {
	s := openStore(t, t.TempDir())
	tree := putTree(t, s, map[string]string{"a": "a"})
	const text = `{ "spaced" : true }`
	config := json.RawMessage(text)
	img, err := s.PutImage(t.Context(), Manifest{Name: "app", Version: "1", Parts: []Part{{Kind: "code", Name: "app", Tree: tree}}, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	if string(config) != text || string(img.Config) != `{"spaced":true}` {
		t.Errorf("passed %s, now %s; the image has %s", text, config, img.Config)
	}
}
