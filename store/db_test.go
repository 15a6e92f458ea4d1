package store

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// TestLock: A second engine on the same state directory is refused with the pid of the first.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	_, err := Open(dir, testLog(t))
	locked, ok := errors.AsType[*LockedError](err)
	if !ok || !errors.Is(err, ErrLocked) || locked.PID != os.Getpid() {
		t.Fatalf("second Open: %v, want ErrLocked with pid %d", err, os.Getpid())
	}
	if !strings.Contains(err.Error(), "engine already running on that state directory") {
		t.Errorf("message: %s", err)
	}
	// A child between fork and exec holds a copy of the descriptor.
	child, err := unix.Dup(int(s.lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	reopen(t, s)
}

// state must survive closing and opening.
type state struct {
	Images    []*Image
	Functions []*Function
	Tenants   map[string]Tenant
}

func stateOf(s *Store) state {
	return state{s.Images(), s.Functions(), s.meta.snap.Load().tenants}
}

// populate fills the store with images, functions and tenants.
func populate(t *testing.T, s *Store) {
	t.Helper()
	a := putTree(t, s, map[string]string{"a": "a", "e": ""})
	b := putTree(t, s, map[string]string{"a": "b"})
	putImage(t, s, "app", "1", a)
	img := putImage(t, s, "app", "1", b)
	putImage(t, s, "app", "1", a) // the name goes back to the older image
	web := putImage(t, s, "web", "latest", a, b)
	for i, f := range []Function{
		{Name: "one", Image: img.Digest, Spec: json.RawMessage(`{"n":1}`), Deployed: testTime},
		{Name: "two", Image: web.Digest},
	} {
		if err := s.PutFunction(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Tenant(t.Context(), f.Name); err != nil || n.ID != uint32(i+1) {
			t.Fatalf("Tenant: %v, %v, want id %d", n, err, i+1)
		}
	}
}

// TestReopen: Images, functions and tenants are the same after Close and Open.
func TestReopen(t *testing.T) {
	s := openStore(t, t.TempDir())
	populate(t, s)
	want := stateOf(s)
	s = reopen(t, s)
	if diff := cmp.Diff(want, stateOf(s)); diff != "" {
		t.Errorf("state (-before +after):\n%s", diff)
	}
}

// TestDatabaseIsRebuilt: Open rebuilds a lost or damaged database without loss.
func TestDatabaseIsRebuilt(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"lost":  os.Remove,
		"empty": func(path string) error { return os.Truncate(path, 0) },
		"garbage": func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("garbage ", 2048)), 0o600)
		},
		"page overwritten": func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for i := 4096; i < len(b); i++ {
				b[i] = 0xa5
			}
			return os.WriteFile(path, b, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			populate(t, s)
			want := stateOf(s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if err := damage(filepath.Join(s.disk.dir, dbName)); err != nil {
				t.Fatal(err)
			}
			s = openStore(t, s.disk.dir)
			if diff := cmp.Diff(want, stateOf(s)); diff != "" {
				t.Errorf("state (-before +after):\n%s", diff)
			}
			if n, err := s.Tenant(t.Context(), "third"); err != nil || n.ID != 3 {
				t.Errorf("next tenant: %v, %v, want id 3", n, err)
			}
			s = reopen(t, s)
			if got := len(s.Images()); got != len(want.Images) {
				t.Errorf("%d images after another Open, want %d", got, len(want.Images))
			}
		})
	}
}

func TestIndexIsLostToo(t *testing.T) {
	s := openStore(t, t.TempDir())
	putImage(t, s, "app", "1", putTree(t, s, map[string]string{"a": "1"}))
	old := s.Images()[0]
	now := putImage(t, s, "app", "1", putTree(t, s, map[string]string{"a": "2"}))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The times of the manifests tell which image is newer.
	for d, at := range map[Digest]time.Time{old.Digest: testTime, now.Digest: testTime.Add(time.Second)} {
		if err := os.Chtimes(filepath.Join(s.disk.dir, "images", d.hex(), "manifest.json"), at, at); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{dbName, indexName, indexLogName} {
		if err := os.RemoveAll(filepath.Join(s.disk.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s = openStore(t, s.disk.dir)
	if img, err := s.Image("app:1"); err != nil || img.Digest != now.Digest || len(s.Images()) != 2 {
		t.Errorf("app:1 is %v, %v among %d images, want %s among 2", img, err, len(s.Images()), now.Digest)
	}
}

func TestNewerDatabaseIsRefused(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.meta.db.Exec(`PRAGMA user_version = 99`); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, testLog(t)); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("Open: %v, want a refusal naming version 99", err)
	}
}

// TestOpenRemovesDeep: Open removes the leftover directories of a build step, however deep.
func TestOpenRemovesDeep(t *testing.T) {
	s := openStore(t, t.TempDir())
	scratch, err := s.MkdirScratch()
	if err != nil {
		t.Fatal(err)
	}
	fretest.NestDirs(t, scratch, 600)
	fretest.LimitFiles(t, 200)
	reopen(t, s) // the final check of the store looks into tmp/
}

// TestOpenWithoutRemoving: A leftover directory that Open cannot remove stops neither Open nor a
// new tree.
func TestOpenWithoutRemoving(t *testing.T) {
	fretest.RequireRoot(t)
	s := openStore(t, t.TempDir())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	stays := filepath.Join(s.disk.dir, "tmp", "tree-1")
	if err := errors.Join(os.Mkdir(stays, 0o700), unix.Mount(t.TempDir(), stays, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(stays, unix.MNT_DETACH) }()
	s = openStore(t, s.disk.dir)
	putTree(t, s, map[string]string{"a": "a"})
	if err := errors.Join(unix.Unmount(stays, 0), os.Remove(stays)); err != nil {
		t.Error(err)
	}
}

// TestReconcile: Open removes the leftovers of a crash and the entries whose files are gone.
func TestReconcile(t *testing.T) {
	s := openStore(t, t.TempDir())
	populate(t, s)
	web, err := s.Image("web")
	if err != nil {
		t.Fatal(err)
	}
	d := web.Parts[0].Tree
	if err := s.PutPart(t.Context(), "none", Part{Kind: "pip", Name: "none", Tree: emptyDigest}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("PutPart without a tree: %v, want not exist", err)
	}
	lost := putTree(t, s, map[string]string{"lost": "lost"})
	if err := s.PutPart(t.Context(), "lost", Part{Kind: "pip", Name: "lost", Tree: lost}); err != nil {
		t.Fatal(err)
	}
	if err := s.PutPart(t.Context(), "kept", Part{Kind: "pip", Name: "kept", Tree: d}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.MkdirScratch(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.MkdirAll(filepath.Join(s.disk.dir, "images", strings.Repeat("0", 64), "rootfs/etc"), 0o700),
		os.MkdirAll(filepath.Join(s.disk.dir, "tmp/image-1/rootfs"), 0o700),
		os.WriteFile(filepath.Join(s.disk.dir, "tmp/index.json"), nil, 0o600),
		os.RemoveAll(filepath.Dir(s.Rootfs(web.Digest))),
		os.Remove(filepath.Join(s.disk.dir, "trees", lost.hex()+".json")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s = openStore(t, s.disk.dir) // the final check of the store sees tmp/ and the stray directory
	if _, err := s.Image("web"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("image without a directory: %v, want not exist", err)
	}
	if _, err := s.Function("two"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its function: %v, want not exist", err)
	}
	if _, err := s.Function("one"); err != nil {
		t.Errorf("the other function: %v", err)
	}
	if _, ok := s.Part("lost"); ok {
		t.Error("part without a tree is there")
	}
	if _, ok := s.Part("kept"); !ok {
		t.Error("part with a tree is gone")
	}
}

func TestFunctions(t *testing.T) {
	s := openStore(t, t.TempDir())
	img := putImage(t, s, "app", "1", putTree(t, s, map[string]string{"a": "a"}))
	ctx := t.Context()
	if err := s.PutFunction(ctx, Function{Name: "f", Image: emptyDigest}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unknown image: %v, want not exist", err)
	}
	if err := s.PutFunction(ctx, Function{Name: "f", Image: img.Digest, Spec: []byte("{")}); err == nil {
		t.Error("bad spec: want an error")
	}
	if err := s.PutFunction(ctx, Function{Name: "", Image: img.Digest}); !errors.Is(err, ErrPath) {
		t.Errorf("no name: %v, want ErrPath", err)
	}
	for _, name := range []string{"b", "a", "b"} {
		if err := s.PutFunction(ctx, Function{Name: name, Image: img.Digest, Deployed: testTime}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for _, f := range s.Functions() {
		names = append(names, f.Name)
	}
	if diff := cmp.Diff([]string{"a", "b"}, names); diff != "" {
		t.Errorf("functions (-want +got):\n%s", diff)
	}
	if err := s.RemoveFunction(ctx, "c"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("RemoveFunction of none: %v, want not exist", err)
	}
	if err := s.RemoveFunction(ctx, "a"); err != nil {
		t.Error(err)
	}
	if _, err := s.Function("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed function: %v, want not exist", err)
	}
}

// TestFunctionImages: The images to which a function may go back stay in its record over a restart
// and a rebuilt database. A lost image leaves the record.
func TestFunctionImages(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	var images []Digest
	for _, text := range []string{"a", "b", "c"} {
		images = append(images, putImage(t, s, text, "1", putTree(t, s, map[string]string{"file": text})).Digest)
	}
	if err := s.PutFunction(t.Context(), Function{Name: "f", Image: images[0], Images: []Digest{emptyDigest}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with an image that is not there: %v, want ErrNotExist", err)
	}
	if err := s.PutFunction(t.Context(), Function{Name: "f", Image: images[0], Images: slices.Concat(images, images), Deployed: testTime}); err != nil {
		t.Fatal(err)
	}
	want := slices.Sorted(slices.Values(images[1:]))
	again := func() {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, dir)
	}
	check := func(what string) {
		t.Helper()
		f, err := s.Function("f")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, f.Images); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("at once")
	again()
	check("from the database")
	if err := errors.Join(s.Close(), os.Remove(filepath.Join(dir, dbName))); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir)
	check("from the index")
	lost := want[0]
	if err := os.RemoveAll(filepath.Join(dir, "images", lost.hex())); err != nil {
		t.Fatal(err)
	}
	want = want[1:]
	again()
	check("with one lost")
	again()
	check("with one lost, from the database")
}

func TestRenameFunction(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	img := putImage(t, s, "app", "1", putTree(t, s, map[string]string{"a": "a"}))
	for _, name := range []string{"a", "b"} {
		if err := s.PutFunction(t.Context(), Function{Name: name, Image: img.Digest, Deployed: testTime, Spec: []byte(`"` + name + `"`)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.RenameFunction(t.Context(), "a", "b"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("to a name that is taken: %v, want ErrExist", err)
	}
	if err := s.RenameFunction(t.Context(), "c", "d"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of none: %v, want ErrNotExist", err)
	}
	if err := s.RenameFunction(t.Context(), "a", "z.t"); err != nil {
		t.Fatal(err)
	}
	want := []*Function{
		{Name: "b", Image: img.Digest, Spec: []byte(`"b"`), Deployed: testTime},
		{Name: "z.t", Image: img.Digest, Spec: []byte(`"a"`), Deployed: testTime},
	}
	for _, what := range []string{"at once", "from the database", "from the index"} {
		if diff := cmp.Diff(want, s.Functions()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if what == "from the database" {
			if err := os.Remove(filepath.Join(dir, dbName)); err != nil {
				t.Fatal(err)
			}
		}
		s = openStore(t, dir)
	}
}

func TestTenantIDsAreUnique(t *testing.T) {
	s := openStore(t, t.TempDir())
	var g errgroup.Group
	for i := range 20 {
		g.Go(func() error {
			_, err := s.Tenant(t.Context(), fmt.Sprint("tenant", i%5))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	ids := make(map[uint32]bool)
	for _, n := range s.meta.snap.Load().tenants {
		ids[n.ID] = true
	}
	if diff := cmp.Diff(map[uint32]bool{1: true, 2: true, 3: true, 4: true, 5: true}, ids); diff != "" {
		t.Errorf("ids (-want +got):\n%s", diff)
	}
}

// TestConcurrent: Every image is whole while many goroutines build, list and remove, even during
// sweeps.
func TestConcurrent(t *testing.T) {
	s := openStore(t, t.TempDir())
	var g errgroup.Group
	for i := range 6 {
		g.Go(func() error {
			for n := range 5 {
				if err := buildAndRemove(t, s, i, n); err != nil {
					return fmt.Errorf("builder %d, round %d: %w", i, n, err)
				}
			}
			return nil
		})
	}
	built := make(chan struct{})
	var swept errgroup.Group
	swept.Go(func() error {
		for {
			select {
			case <-built:
				return nil
			default:
			}
			if _, err := s.Sweep(t.Context(), SweepOptions{}); err != nil {
				return err
			}
		}
	})
	err := g.Wait()
	close(built)
	if err := swept.Wait(); err != nil {
		t.Errorf("Sweep while others build: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := len(s.Images()); got != 6 {
		t.Errorf("%d images left, want each builder's last", got)
	}
	// The end of the last hold sweeps the rest. Each builder's own file and the shared file remain.
	if names := objectNames(t, s); len(names) != 7 {
		t.Errorf("objects left: %q, want 7", names)
	}
}

func buildAndRemove(t *testing.T, s *Store, i, n int) error {
	t.Helper()
	release := s.Hold()
	defer release()
	w, err := s.Create()
	if err != nil {
		return err
	}
	defer w.Abort()
	for path, content := range map[string]string{"shared": "shared", "own": fmt.Sprint(i, n), "empty": ""} {
		if err := w.File(path, 0o644, testTime, strings.NewReader(content)); err != nil {
			return err
		}
	}
	d, err := w.Commit(t.Context())
	if err != nil {
		return err
	}
	if err := s.PutPart(t.Context(), fmt.Sprint("part", i, n), Part{Name: "p", Tree: d}); err != nil {
		return err
	}
	img, err := s.PutImage(t.Context(), testManifest(fmt.Sprint("image", i), fmt.Sprint(n), d))
	if err != nil {
		return err
	}
	for _, img := range s.Images() {
		if img.Digest == "" || img.Files != 3 {
			return fmt.Errorf("list shows %+v", img)
		}
	}
	if b, err := os.ReadFile(filepath.Join(s.Rootfs(img.Digest), "own")); string(b) != fmt.Sprint(i, n) {
		return fmt.Errorf("own holds %q, %w", b, err)
	}
	if n == 0 {
		return nil
	}
	old, err := s.Image(fmt.Sprintf("image%d:%d", i, n-1))
	if err != nil {
		return err
	}
	return s.RemoveImage(t.Context(), old.Digest)
}

// TestSameImageAtOnce: One of many equal calls makes the image, and all return the same image.
func TestSameImageAtOnce(t *testing.T) {
	s := openStore(t, t.TempDir())
	d := putTree(t, s, map[string]string{"a": "a"})
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			_, err := s.PutImage(t.Context(), testManifest("same", "1", d))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := len(s.Images()); n != 1 {
		t.Errorf("%d images, want 1", n)
	}
}

// execOn runs statements on the database of a closed store.
func execOn(t *testing.T, dir string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, dbName))
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	for _, q := range statements {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// makeOld turns the database of a closed store into one of an older version, with the tables and
// columns of that version.
func makeOld(t *testing.T, dir string, version int) {
	t.Helper()
	statements := append(slices.Clone(migrations[:version]), fmt.Sprintf(`PRAGMA user_version = %d`, version))
	of := map[string]string{ // columns of the first version
		"images": "digest, manifest, created, size, files", "image_parts": "*", "tags": "*", "parts": "*", "functions": "*", "tenants": "*",
	}
	if version >= sizedSince {
		for _, table := range []string{"image_sizes", "sized_trees", "cohorts", "cohort_trees", "sized_objects"} {
			of[table] = "*"
		}
	}
	if version >= 4 {
		of["images"] = "*"
	}
	if version >= 5 {
		of["image_uses"] = "*"
	}
	from := filepath.Join(dir, "new.db")
	statements = append(statements, fmt.Sprintf(`ATTACH '%s' AS new`, from))
	for table, columns := range of {
		into := table
		if columns != "*" {
			into += "(" + columns + ")"
		}
		statements = append(statements, fmt.Sprintf(`INSERT INTO %s SELECT %s FROM new.%s`, into, columns, table))
	}
	if err := os.Rename(filepath.Join(dir, dbName), from); err != nil {
		t.Fatal(err)
	}
	execOn(t, dir, statements...)
	if err := os.Remove(from); err != nil {
		t.Fatal(err)
	}
}

// TestOldDatabases: Open migrates a database of each older version without loss. The next Open
// finds the same state.
func TestOldDatabases(t *testing.T) {
	for version := 1; version < len(migrations); version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			s := openStore(t, t.TempDir())
			populate(t, s)
			img, err := s.Image("web")
			if err != nil {
				t.Fatal(err)
			}
			if err := s.PutPart(t.Context(), "part", Part{Kind: "pip", Name: "part", Tree: img.Parts[0].Tree}); err != nil {
				t.Fatal(err)
			}
			if version >= 2 { // an additional name
				if _, err := s.Tag(t.Context(), img.Digest, "alias"); err != nil {
					t.Fatal(err)
				}
			}
			want, used := stateOf(s), s.LastUsed(img.Digest)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			makeOld(t, s.disk.dir, version)
			for range 2 {
				s = openStore(t, s.disk.dir)
				if diff := cmp.Diff(want, stateOf(s)); diff != "" {
					t.Fatalf("state (-before +after):\n%s", diff)
				}
				if _, ok := s.Part("part"); !ok {
					t.Error("the part of a build is gone")
				}
				if got := s.LastUsed(img.Digest); version >= 5 && !got.Equal(used) {
					t.Errorf("last used at %v, want %v", got, used)
				}
				if found := checkAll(t, s, CheckOptions{}); len(found) > 0 {
					t.Errorf("Check: %q", found)
				}
				checkSizes(t, s, "opened")
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			s = openStore(t, s.disk.dir)
			if n, err := s.Tenant(t.Context(), "third"); err != nil || n.ID != 3 {
				t.Errorf("next tenant: %v, %v, want id 3", n, err)
			}
			if _, err := s.Tag(t.Context(), img.Digest, "more"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDamagedRows: Open finds damaged rows on intact pages: a manifest that does not match its
// digest, and a reference to a missing image. Open rebuilds the state without loss.
func TestDamagedRows(t *testing.T) {
	for _, damage := range []string{
		`UPDATE images SET manifest = replace(manifest, 'part0', 'part1')`,
		`DELETE FROM images WHERE digest = (SELECT image FROM functions LIMIT 1)`,
		`UPDATE tags SET image = 'sha256:0' WHERE name = 'web'`,
		`INSERT INTO remotes VALUES ('a', 'sha256:1', 'sha256:0')`,
	} {
		s := openStore(t, t.TempDir())
		populate(t, s)
		want := stateOf(s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		execOn(t, s.disk.dir, damage)
		s = openStore(t, s.disk.dir)
		if diff := cmp.Diff(want, stateOf(s)); diff != "" {
			t.Errorf("%s: state (-before +after):\n%s", damage, diff)
		}
	}
}

// TestDamagedPages: A check of the open store finds an overwritten page of the database and leaves
// the repair to the next start. The next start rebuilds the database without loss.
func TestDamagedPages(t *testing.T) {
	const pageSize = 4096
	s := openStore(t, t.TempDir())
	populate(t, s)
	want := stateOf(s)
	for page := 0; ; page++ {
		s = reopen(t, s) // all data is in the file now
		path := filepath.Join(s.disk.dir, dbName)
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if int64(page)*pageSize >= st.Size() {
			if page < 10 {
				t.Errorf("the database has %d pages only", page)
			}
			return
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt(bytes.Repeat([]byte{0xa5}, pageSize), int64(page)*pageSize)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, repair := range []bool{false, true} {
			found := checkAll(t, s, CheckOptions{Repair: repair})
			if len(found) != 1 || !strings.HasSuffix(found[0], "the next start of the engine rebuilds the database from the manifests") {
				t.Errorf("page %d, repair %t: %q", page, repair, found)
			}
		}
		s = reopen(t, s)
		if diff := cmp.Diff(want, stateOf(s)); diff != "" {
			t.Fatalf("page %d: state (-before +after):\n%s", page, diff)
		}
		if found := checkAll(t, s, CheckOptions{}); len(found) > 0 {
			t.Errorf("page %d, opened again: %q", page, found)
		}
	}
}

// TestDamagedIndex: Check rebuilds an index of the database that misses rows.
func TestDamagedIndex(t *testing.T) {
	s := openStore(t, t.TempDir())
	populate(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// Each call opens the database anew, with the current schema.
	execOn(t, s.disk.dir, `CREATE TABLE kept AS SELECT * FROM sqlite_schema WHERE name = 'tags_image'`, `PRAGMA writable_schema = 1`, `DELETE FROM sqlite_schema WHERE name = 'tags_image'`)
	execOn(t, s.disk.dir, `UPDATE tags SET image = (SELECT max(image) FROM tags)`, `UPDATE tags SET image = (SELECT min(digest) FROM images) WHERE name = 'web'`)
	execOn(t, s.disk.dir, `PRAGMA writable_schema = 1`, `INSERT INTO sqlite_schema SELECT * FROM kept`)
	execOn(t, s.disk.dir, `DROP TABLE kept`)
	s = openStore(t, s.disk.dir)
	for repair, want := range []string{"", " → indexes rebuilt"} {
		found := checkAll(t, s, CheckOptions{Repair: repair == 1})
		if want = "fre.db: row 2 missing from index tags_image" + want; len(found) != 1 || found[0] != want {
			t.Errorf("found %q, want %q", found, want)
		}
	}
	if found := checkAll(t, s, CheckOptions{}); len(found) > 0 {
		t.Errorf("after the repair: %q", found)
	}
}
