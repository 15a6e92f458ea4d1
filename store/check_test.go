package store

import (
	"context"
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
	"golang.org/x/sys/unix"
)

// flip changes one bit of a file in place and keeps the metadata.
func flip(t *testing.T, path string) {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	for _, err := range []error{os.WriteFile(path, b, 0), os.Chtimes(path, st.ModTime(), st.ModTime())} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// damagedStore makes two images that share a tree, then calls damage.
func damagedStore(t *testing.T, damage func(s *Store, img *Image, object func(content string) string)) (*Store, *Image) {
	t.Helper()
	return damagedStoreIn(t, t.TempDir(), damage)
}

func damagedStoreIn(t *testing.T, dir string, damage func(s *Store, img *Image, object func(content string) string)) (*Store, *Image) {
	t.Helper()
	s := openStore(t, dir)
	release := s.Hold()
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		w.File("usr/lib/shared", 0o644, testTime, strings.NewReader("shared")),
		w.File("usr/empty", 0o600, testTime, strings.NewReader("")),
		w.Symlink("usr/link", "lib/shared", testTime),
		w.File("config", 0o644, testTime, strings.NewReader("hidden")),
		w.Aside("aside", strings.NewReader("aside")),
	)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	own := putTree(t, s, map[string]string{"config": "config", "own/file": "own"})
	img := putImage(t, s, "app", "1", shared, own)
	putImage(t, s, "other", "1", shared)
	for _, d := range []Digest{shared, own} {
		if err := s.PutPart(t.Context(), string(d), Part{Name: "part", Tree: d}); err != nil {
			t.Fatal(err)
		}
	}
	release()
	damage(s, img, func(content string) string {
		e := Entry{Digest: sumDigest([]byte(content)), Mode: 0o644, MTime: testTime.Unix()}
		return filepath.Join(s.disk.dir, "objects", objectName(e.key(), 0))
	})
	return s, img
}

// checkAll runs Check and returns the reported problems.
func checkAll(t *testing.T, s *Store, o CheckOptions) []string {
	t.Helper()
	found := []string{}
	o.Report = func(p Problem) {
		for part := range strings.SplitSeq(p.Path, "/") {
			if len(part) >= 64 {
				p.Path = strings.Replace(p.Path, part, "X"+part[64:], 1)
			}
		}
		if strings.HasPrefix(p.Path, "objects/") {
			p.Path = "objects/" + filepath.Base(p.Path)
		}
		found = append(found, strings.TrimSuffix(fmt.Sprintf("%s: %s → %s", p.Path, p.What, p.Repair), " → "))
	}
	got, err := s.Check(t.Context(), o)
	if err != nil {
		t.Fatalf("Check: %v", err)
	}
	if got.Problems != len(found) {
		t.Errorf("%d problems counted, %d reported", got.Problems, len(found))
	}
	return found
}

// damaging holds the arguments of a case of TestCheckRepairs.
type damaging struct {
	t      *testing.T
	s      *Store
	img    *Image
	object func(content string) string // returns the object's path
}

// TestCheckRepairs: Check finds each kind of damage and repairs it from a sound copy; it drops an
// image without one, and the next build makes the image again.
func TestCheckRepairs(t *testing.T) {
	must := func(t *testing.T, errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	type damage = func(x damaging)
	root := func(s *Store, img *Image, path string) string { return filepath.Join(s.Rootfs(img.Digest), path) }
	tree := func(s *Store, img *Image, n int) string {
		return filepath.Join(s.disk.dir, "trees", img.Parts[n].Tree.hex()+".json")
	}
	for _, c := range []struct {
		name   string
		damage damage
		want   []string // with repair
		gone   bool     // whether the image app:1 is dropped
	}{
		{"nothing", func(x damaging) {}, []string{}, false},
		{"missing link", func(x damaging) {
			must(x.t, os.Remove(root(x.s, x.img, "usr/lib/shared")))
		}, []string{
			"images/X/rootfs/usr/lib: modified at NOW, not 0 → set back",
			"images/X/rootfs/usr/lib/shared: missing → made again",
		}, false},
		{"missing directory", func(x damaging) {
			must(x.t, os.RemoveAll(root(x.s, x.img, "usr")))
		}, []string{"images/X/rootfs: modified at NOW, not 0 → set back", "images/X/rootfs/usr: missing → made again"}, false},
		{"mode of the rootfs", func(x damaging) {
			must(x.t, os.Chmod(x.s.Rootfs(x.img.Digest), 0o700))
		}, []string{"images/X/rootfs: mode 0700, not 0755 → set back"}, false},
		{"missing rootfs", func(x damaging) {
			must(x.t, os.RemoveAll(x.s.Rootfs(x.img.Digest)))
		}, []string{"images/X/rootfs: missing → made from the objects"}, false},
		{"missing object", func(x damaging) {
			must(x.t, os.Remove(x.object("own")))
		}, []string{"objects/X: missing → linked from an image"}, false},
		{"missing object that the root does not show", func(x damaging) {
			must(x.t, os.Remove(x.object("hidden")))
		}, []string{"objects/X: missing → linked from an image"}, false},
		{"missing links that the root does not show", func(x damaging) {
			must(x.t, os.RemoveAll(filepath.Join(filepath.Dir(x.s.Rootfs(x.img.Digest)), hiddenName)))
		}, []string{"images/X/hidden: 2 objects that the root does not show are not kept → linked"}, false},
		{"mode of an object", func(x damaging) {
			must(x.t, os.Chmod(x.object("own"), 0o666))
		}, []string{"objects/X: mode 0666, not 0644 → set back"}, false},
		{"time of an object", func(x damaging) {
			must(x.t, os.Chtimes(x.object("own"), time.Unix(1, 0), time.Unix(1, 0)))
		}, []string{"objects/X: modified at 1, not 1700000000 → set back"}, false},
		{"file in place of a link", func(x damaging) {
			must(x.t, os.Remove(root(x.s, x.img, "own/file")), os.WriteFile(root(x.s, x.img, "own/file"), []byte("evil"), 0o644))
		}, []string{
			"images/X/rootfs/own: modified at NOW, not 0 → set back",
			"images/X/rootfs/own/file: not the object → made again",
		}, false},
		{"other file in place of an object", func(x damaging) {
			must(x.t, os.Remove(x.object("own")), os.WriteFile(x.object("own"), []byte("evil"), 0o644))
		}, []string{
			"objects/X: 4 bytes, not 3 → taken from an image",
			"images/X/rootfs/own/file: not the object → made again",
		}, false},
		{"file of nobody's", func(x damaging) {
			must(x.t, os.MkdirAll(root(x.s, x.img, "own/more/files"), 0o755), os.Chtimes(root(x.s, x.img, "own"), time.Unix(0, 0), time.Unix(0, 0)))
		}, []string{"images/X/rootfs/own/more: in none of the image's trees → removed"}, false},
		{"directory's mode, symlink, empty file", func(x damaging) {
			must(x.t, os.Chmod(root(x.s, x.img, "own"), 0o777), os.Remove(root(x.s, x.img, "usr/link")), os.Symlink("/etc", root(x.s, x.img, "usr/link")),
				os.WriteFile(root(x.s, x.img, "usr/empty"), []byte("not any more"), 0o600), os.Chtimes(root(x.s, x.img, "usr"), time.Unix(0, 0), time.Unix(0, 0)))
		}, []string{
			"images/X/rootfs/own: mode 0777, not 0755 → set back",
			"images/X/rootfs/usr/empty: 12 bytes, not 0 → made again",
			`images/X/rootfs/usr/link: leads to "/etc", not "lib/shared" → made again`,
		}, false},
		{"manifest", func(x damaging) {
			flip(x.t, filepath.Join(filepath.Dir(x.s.Rootfs(x.img.Digest)), "manifest.json"))
		}, []string{"images/X/manifest.json: content has changed → taken from the database"}, false},
		{"manifest in the database", func(x damaging) {
			_, err := x.s.meta.db.ExecContext(x.t.Context(), `UPDATE images SET manifest = '{}' WHERE digest = ?`, x.img.Digest)
			must(x.t, err)
		}, []string{"fre.db: the manifest of image sha256:APP has changed → taken from the image's directory"}, false},
		{"files of nobody's in the store", func(x damaging) {
			must(x.t, os.WriteFile(filepath.Join(x.s.disk.dir, "objects/stray"), nil, 0o600), os.WriteFile(filepath.Join(x.s.disk.dir, "trees/stray"), nil, 0o600),
				os.Mkdir(filepath.Join(x.s.disk.dir, "objects/zz"), 0o700), os.WriteFile(filepath.Join(x.s.disk.dir, "objects/zz/stray"), nil, 0o600),
				os.MkdirAll(filepath.Join(x.s.disk.dir, "images/stray/rootfs"), 0o700))
			image := filepath.Dir(x.s.Rootfs(x.img.Digest))
			must(x.t, os.Link(x.object("own"), filepath.Join(image, "stray")), os.Link(x.object("own"), filepath.Join(image, hiddenName, "stray")))
			must(x.t, os.Symlink("/etc", filepath.Join(x.s.disk.dir, "objects/00"))) // in place of a directory
		}, []string{
			"images/X/hidden/stray: none of the store's files → removed",
			"images/X/stray: none of the store's files → removed",
			"objects/00: none of the store's files → removed",
			"objects/stray: none of the store's files → removed",
			"objects/zz: none of the store's files → removed",
			"trees/stray: none of the store's files → removed",
			"images/stray: none of the store's files → removed",
		}, false},
		// The next cases lose content for good.
		{"flipped bit", func(x damaging) {
			flip(x.t, x.object("own"))
		}, []string{
			"objects/X: content has changed; no intact copy left → removed: recreated by the next build",
			"images/X: the file own/file is lost → dropped: build or pull the image again",
		}, true},
		{"truncated object", func(x damaging) {
			must(x.t, os.Truncate(x.object("own"), 1))
		}, []string{
			"objects/X: 1 bytes, not 3; no intact copy left → removed: recreated by the next build",
			"images/X: the file own/file is lost → dropped: build or pull the image again",
		}, true},
		{"manifest without objects", func(x damaging) {
			must(x.t, os.Remove(x.object("own")), os.Remove(root(x.s, x.img, "own/file")))
		}, []string{
			"objects/X: missing; no intact copy left → removed: recreated by the next build",
			"images/X: the file own/file is lost → dropped: build or pull the image again",
		}, true},
		{"tree", func(x damaging) {
			flip(x.t, tree(x.s, x.img, 1))
		}, []string{
			"trees/X.json: content has changed → removed: recreated by the next build",
			"images/X: the list of files of the part code part1 is lost → dropped: build or pull the image again",
		}, true},
		{"missing tree", func(x damaging) {
			must(x.t, os.Remove(tree(x.s, x.img, 1)))
		}, []string{
			"trees/X.json: missing → removed: recreated by the next build",
			"images/X: the list of files of the part code part1 is lost → dropped: build or pull the image again",
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := time.Now()
			s, img := damagedStore(t, func(s *Store, img *Image, object func(string) string) { c.damage(damaging{t, s, img, object}) })
			tell := func(lines []string) []string {
				for i, line := range lines {
					for at := before.Unix() - 1; at <= time.Now().Unix(); at++ {
						line = strings.Replace(line, fmt.Sprint("modified at ", at), "modified at NOW", 1)
					}
					lines[i] = strings.ReplaceAll(line, img.Digest.hex(), "APP")
				}
				return lines
			}
			for range 2 { // Check without Repair changes nothing
				found := checkAll(t, s, CheckOptions{})
				if (len(found) == 0) != (len(c.want) == 0) || strings.Contains(strings.Join(found, ""), "→") {
					t.Errorf("without repair: %q", found)
				}
			}
			found := tell(checkAll(t, s, CheckOptions{Repair: true}))
			slices.Sort(found) // Check reports in the order of the disk
			slices.Sort(c.want)
			if diff := cmp.Diff(c.want, found); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
			if found := checkAll(t, s, CheckOptions{}); len(found) > 0 {
				t.Errorf("after the repair: %q", found)
			}
			if _, err := s.Image("app:1"); errors.Is(err, fs.ErrNotExist) != c.gone {
				t.Errorf("the image after the repair: %v", err)
			}
			checkStore(t, s)
			// A build brings the lost image back.
			release := s.Hold()
			defer release()
			own := putTree(t, s, map[string]string{"config": "config", "own/file": "own"})
			putImage(t, s, "app", "1", img.Parts[0].Tree, own)
			s = reopen(t, s)
			if found := checkAll(t, s, CheckOptions{}); len(found) > 0 {
				t.Errorf("after building again: %q", found)
			}
		})
	}
}

// TestCheckSources: Check restores content from another copy or from a registry and rejects wrong
// content. Check does not drop an image in use.
func TestCheckSources(t *testing.T) {
	damaged := func() (*Store, *Image) {
		return damagedStore(t, func(_ *Store, _ *Image, object func(string) string) { flip(t, object("own")) })
	}
	type fetching = func(context.Context, *Entry, map[Digest]bool) (io.ReadCloser, string, error)
	fetch := func(content string) fetching {
		return func(_ context.Context, e *Entry, _ map[Digest]bool) (io.ReadCloser, string, error) {
			if e.Digest != sumDigest([]byte("own")) {
				return nil, "", fs.ErrNotExist
			}
			return io.NopCloser(strings.NewReader(content)), "registry", nil
		}
	}
	fails := func(err error) fetching {
		return func(context.Context, *Entry, map[Digest]bool) (io.ReadCloser, string, error) { return nil, "", err }
	}
	// Check asks only for images that a registry knows.
	s, img := damaged()
	found := checkAll(t, s, CheckOptions{Fetch: fetch("own")})
	want := []string{"objects/X: content has changed", "images/X: the file own/file is lost"}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("of no registry (-want +got):\n%s", diff)
	}
	known := func() {
		t.Helper()
		if _, err := s.TagRemote(t.Context(), img.Digest, "registry/app@"+string(sumDigest(nil))); err != nil {
			t.Fatal(err)
		}
	}
	known()
	for _, c := range []struct {
		o    CheckOptions
		want string
	}{
		{CheckOptions{Fetch: fetch("own")}, ""}, // a copy may still come
		{CheckOptions{Repair: true, Fetch: fails(unix.ENOSPC)}, "; repair failed: no space left on device"},
		{CheckOptions{Repair: true, Fetch: fetch("own")}, " → fetched from registry"},
	} {
		found = checkAll(t, s, c.o)
		if diff := cmp.Diff([]string{"objects/X: content has changed" + c.want}, found); diff != "" {
			t.Errorf("fetched (-want +got):\n%s", diff)
		}
	}
	checkImage(t, s, img)

	s, img = damaged()
	known()
	found = checkAll(t, s, CheckOptions{Repair: true, Fetch: fails(errors.New("it is gone"))})
	want = []string{
		"objects/X: content has changed; no intact copy left, nor fetched: it is gone → removed: recreated by the next build",
		"images/X: the file own/file is lost → dropped: build or pull the image again",
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("not fetched (-want +got):\n%s", diff)
	}

	s, img = damaged()
	known()
	inUse := func(d Digest) string {
		if d == img.Digest {
			return "function f"
		}
		return ""
	}
	for _, content := range []string{"", "owm", "own and more"} {
		found = checkAll(t, s, CheckOptions{Repair: true, Fetch: fetch(content), InUse: inUse})
		last := found[len(found)-1]
		if want := "images/X: the file own/file is lost; in use by function f: build the image again"; last != want {
			t.Errorf("fetched %q: %q, want %q", content, last, want)
		}
	}
	own := putTree(t, s, map[string]string{"config": "config", "own/file": "own"})
	if own != img.Parts[1].Tree {
		t.Fatalf("tree %s, want %s", own, img.Parts[1].Tree)
	}
	found = checkAll(t, s, CheckOptions{Repair: true, InUse: inUse})
	if diff := cmp.Diff([]string{"images/X/rootfs/own/file: not the object → made again"}, found); diff != "" {
		t.Errorf("after building again (-want +got):\n%s", diff)
	}
	checkImage(t, s, img)
}

// TestCheckFetchesTree: Check fetches a lost file list and rejects a wrong one. Check drops nothing
// because of a full disk.
func TestCheckFetchesTree(t *testing.T) {
	var tree *Tree
	s, img := damagedStore(t, func(s *Store, img *Image, _ func(string) string) {
		var err error
		if tree, err = s.disk.readTree(img.Parts[1].Tree); err != nil {
			t.Fatal(err)
		}
		if _, err := s.TagRemote(t.Context(), img.Digest, "registry/app@"+string(sumDigest(nil))); err != nil {
			t.Fatal(err)
		}
		flip(t, filepath.Join(s.disk.dir, "trees", img.Parts[1].Tree.hex()+".json"))
	})
	type fetching = func(context.Context, Digest) (*Tree, string, error)
	gives := func(t *Tree, err error) fetching {
		return func(context.Context, Digest) (*Tree, string, error) { return t, "registry", err }
	}
	for _, c := range []struct {
		o    CheckOptions
		want []string // the ends of the lines after "content has changed"
	}{
		{CheckOptions{FetchTree: gives(tree, nil)}, []string{""}}, // the list may still come
		{CheckOptions{Repair: true, FetchTree: gives(nil, unix.ENOSPC)}, []string{"; repair failed: no space left on device"}},
		{CheckOptions{Repair: true, FetchTree: gives(tree, nil)}, []string{" → fetched from registry"}},
		{CheckOptions{Repair: true, FetchTree: gives(nil, nil)}, nil},
	} {
		want := []string{}
		for _, end := range c.want {
			want = append(want, "trees/X.json: content has changed"+end)
		}
		if diff := cmp.Diff(want, checkAll(t, s, c.o)); diff != "" {
			t.Errorf("found (-want +got):\n%s", diff)
		}
	}
	checkImage(t, s, img)
	if err := os.Remove(filepath.Join(s.disk.dir, "trees", img.Parts[1].Tree.hex()+".json")); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"trees/X.json: missing; not fetched: the fetched content is wrong → removed: recreated by the next build",
		"images/X: the list of files of the part code part1 is lost → dropped: build or pull the image again",
	}
	if diff := cmp.Diff(want, checkAll(t, s, CheckOptions{Repair: true, FetchTree: gives(new(Tree), nil)})); diff != "" {
		t.Errorf("another one came (-want +got):\n%s", diff)
	}
}

// TestCheckCopies: Check repairs an object from one of its other copies.
func TestCheckCopies(t *testing.T) {
	s := openStore(t, t.TempDir())
	s.disk.linkLimit = 2
	d := putTree(t, s, map[string]string{"a": "content"})
	for i := range 3 {
		putImage(t, s, "app", fmt.Sprint(i), d)
	}
	names := objectNames(t, s)
	if len(names) != 3 {
		t.Fatalf("%d copies", len(names))
	}
	for _, name := range names[:2] {
		flip(t, name)
		if found := checkAll(t, s, CheckOptions{Repair: true}); len(found) != 1 || !strings.HasSuffix(found[0], "taken from another copy") {
			t.Errorf("%s damaged: %q", name, found)
		}
	}
	for _, img := range s.Images() {
		checkImage(t, s, img)
	}
}
