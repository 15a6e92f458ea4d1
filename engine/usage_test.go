package engine

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

// TestWorkLimit: a tenant stores at most the engine's limit in /work, including its earlier files.
// A neighbour's files are not affected.
func TestWorkLimit(t *testing.T) {
	r := open(t)
	functions := func() {
		r.deploy("a", nil)
		r.deploy("b", func(c *image.Config) { c.Tenant = "other" })
	}
	fill := func(function, name, mib string, fits bool) {
		t.Helper()
		out, _, err := r.look(function, "fill=/work/"+name+"&mib="+mib)
		if err != nil {
			t.Fatal(err)
		}
		if full := strings.Contains(out, "no space left") || strings.Contains(out, "quota exceeded"); full == fits || !full && out != "" {
			t.Errorf("%s writes %s MiB to %s: %q; fits: %v", function, mib, name, out, fits)
		}
	}
	usage := func() map[string]live.TenantUsage {
		t.Helper()
		u, err := r.DiskUsage()
		if err != nil {
			t.Fatal(err)
		}
		tenants := map[string]live.TenantUsage{}
		for _, x := range u.Tenants {
			tenants[x.Name] = x
		}
		return tenants
	}
	functions()
	fill("a", "before", "10", true)
	r.stop()

	r.start(Config{Work: live.WorkConfig{Limit: 16 << 20, Tenants: map[string]int64{"other": 48 << 20}}})
	u := usage()
	if a := u["default"]; a.Limit != 16<<20 || a.Bytes < 10<<20 || a.Bytes > 11<<20 || a.Inodes != 2 {
		t.Errorf("10 MiB in one file before there was a limit: %+v", a)
	}
	fill("a", "more", "16", false)
	fill("b.other", "more", "32", true)
	fill("b.other", "too much", "32", false)
	u = usage()
	if a := u["default"]; a.Bytes > 16<<20 || a.Bytes < 15<<20 || a.AsOf.IsZero() {
		t.Errorf("full: %+v", a)
	}
	if b := u["other"]; b.Limit != 48<<20 || b.Bytes > 48<<20 || b.Bytes < 47<<20 {
		t.Errorf("full: %+v", b)
	}
	r.stop()

	r.start(Config{Work: live.WorkConfig{Limit: 8 << 20}}) // less than already stored
	fill("a", "again", "1", false)
	if _, _, err := r.look("a", "file=/work/before"); err != nil {
		t.Errorf("what was there before: %v", err)
	}
	if a := usage()["default"]; a.Limit != 8<<20 || a.Bytes < 10<<20 {
		t.Errorf("a limit below what is there: %+v", a)
	}
}

// TestWorkLimitRefused: the engine refuses to start with limits that the host cannot enforce.
func TestWorkLimitRefused(t *testing.T) {
	fretest.RequireRoot(t)
	m, err := volume.Open(volume.Config{Dir: t.TempDir(), Avoid: []volume.Kind{volume.Quota, volume.Image}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, test := range []struct {
		cfg     live.WorkConfig
		refused bool
	}{
		{live.WorkConfig{}, false},
		{live.WorkConfig{Tenants: map[string]int64{"a": 0}}, false},
		{live.WorkConfig{Limit: 1}, true},
		{live.WorkConfig{Tenants: map[string]int64{"a": 1}}, true},
	} {
		if err := test.cfg.Check(m); errors.Is(err, volume.ErrNoLimits) != test.refused || (err != nil) != test.refused {
			t.Errorf("%+v: %v", test.cfg, err)
		}
	}
}

// TestDiskUsage: disk usage reports all images together, each image, each image's own bytes, and
// the bytes that the removal of unused images would free.
func TestDiskUsage(t *testing.T) {
	r := open(t)
	r.deploy("used", nil)
	var unused []store.Digest
	for _, name := range []string{"unused", "too"} {
		unused = append(unused, r.image(name, func(c *image.Config) { c.Env = []string{"X=" + name} }).Digest)
	}
	before, err := r.DiskUsage()
	if err != nil {
		t.Fatal(err)
	}
	inUse := map[string]bool{}
	for _, img := range before.Images {
		inUse[img.Name] = img.InUse
		// All images have the binary from one tree.
		if binary := int64(len(fnBinary)); img.Bytes < binary || img.UniqueBytes <= 0 || img.UniqueBytes >= binary {
			t.Errorf("image %s: %+v, of a binary of %d bytes", img.Name, img.ImageSize, binary)
		}
	}
	if diff := cmp.Diff(map[string]bool{"used": true, "unused": false, "too": false}, inUse); diff != "" {
		t.Errorf("in use (-want +got):\n%s", diff)
	}
	r.deploy("twice", func(c *image.Config) { c.Env = []string{"X=twice"} }) // shares the binary with the other function
	before, err = r.DiskUsage()
	if err != nil {
		t.Fatal(err)
	}
	var held, alone int64
	for _, img := range before.Images {
		held += img.HeldBytes
		if img.InUse {
			alone += img.UniqueBytes
		}
	}
	if held != before.ImageBytes-before.ReclaimableBytes || held < alone+int64(len(fnBinary)) {
		t.Errorf("in use hold %d bytes, of %d of which %d could be free; %d are of one alone", held, before.ImageBytes, before.ReclaimableBytes, alone)
	}
	for _, d := range unused {
		if err := r.store.RemoveImage(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	after, err := r.DiskUsage()
	if err != nil {
		t.Fatal(err)
	}
	if got := before.ImageBytes - after.ImageBytes; got != before.ReclaimableBytes || got == 0 || after.ReclaimableBytes != 0 {
		t.Errorf("%d bytes could be free, and %d are; then %d could be", before.ReclaimableBytes, got, after.ReclaimableBytes)
	}
	var rootfs int64
	if err := filepath.Walk(r.store.Rootfs(after.Images[0].Digest), func(_ string, info os.FileInfo, err error) error {
		rootfs++
		return err
	}); err != nil || after.Images[0].Inodes < rootfs {
		t.Errorf("the root has %d inodes, counted are %d (%v)", rootfs, after.Images[0].Inodes, err)
	}
}

// TestDiskUsageOfContainers: disk usage reports a container's written bytes during and after the
// run. After the removal the bytes are gone.
func TestDiskUsageOfContainers(t *testing.T) {
	r := open(t)
	r.ordinary("ordinary")
	c := r.create(container.Config{Name: "web", Cmd: prog("orders"), OpenStdin: true, StdinOnce: true})
	usage := func() []ContainerUsage {
		t.Helper()
		u, err := r.DiskUsage()
		if err != nil {
			t.Fatal(err)
		}
		return u.Containers
	}
	if got := usage(); len(got) != 1 || got[0].Name != "web" || got[0].Running || got[0].Bytes != 0 {
		t.Errorf("created: %+v", got)
	}
	r.attach(c.ID, strings.NewReader("write /new "+strings.Repeat("x", 3000)+"\n"))
	c = r.exited(c.ID)
	if got := usage(); len(got) != 1 || got[0].Running || got[0].Bytes < 4096 || got[0].Inodes < 1 || got[0].AsOf.IsZero() {
		t.Errorf("ended: %+v", got)
	}
	if err := r.RemoveContainer(c.ID, false); err != nil {
		t.Fatal(err)
	}
	if got := usage(); len(got) != 0 {
		t.Errorf("removed: %+v", got)
	}
}

// TestDiskUsageOfPlainContainers: without a counting volume, the engine walks a container's files
// once after its end and keeps the result.
func TestDiskUsageOfPlainContainers(t *testing.T) {
	r := open(t)
	r.ordinary("ordinary")
	r.stop()
	r.start(Config{avoid: []volume.Kind{volume.Quota, volume.Image}})
	var field *template.FieldError
	if _, err := r.CreateContainer(t.Context(), container.Config{Image: "ordinary", ScratchBytes: 1 << 20}); !errors.As(err, &field) || field.Field != "scratch_bytes" {
		t.Errorf("a limit that nothing keeps: %v", err)
	}
	c := r.create(container.Config{Cmd: prog("write", "/new", strings.Repeat("x", 3000))})
	r.attach(c.ID, nil)
	r.exited(c.ID)
	var counted volume.Usage
	var err error
	eventually(t, "what it wrote to be counted", func() bool {
		counted, err = r.ContainerScratch(c.ID)
		return err != nil || !counted.AsOf.IsZero()
	})
	if err != nil || counted.Bytes < 4096 {
		t.Errorf("counted %+v, %v", counted, err)
	}
	r.stop()
	r.start(Config{})
	if kept, err := r.ContainerScratch(c.ID); err != nil || !kept.AsOf.Equal(counted.AsOf) || kept.Bytes != counted.Bytes {
		t.Errorf("the next engine knows %+v, %v, want %+v", kept, err, counted)
	}
}

// TestDiskUsageOfCache: disk usage reports the downloads of builds. On request they are deleted,
// unless a build runs.
func TestDiskUsageOfCache(t *testing.T) {
	r := open(t)
	r.stop()
	dir := filepath.Join(r.state, "cache", "debian")
	fill := func() {
		t.Helper()
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "x.deb"), make([]byte, 100<<10), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	fill()
	r.start(Config{})
	var used *DiskUsage
	eventually(t, "the cache to be counted", func() bool {
		var err error
		used, err = r.DiskUsage()
		return err != nil || !used.Cache.AsOf.IsZero()
	})
	if used == nil || used.Cache.Bytes < 100<<10 || used.Cache.Bytes > 200<<10 || used.Cache.Inodes != 3 {
		t.Fatalf("used: %+v", used)
	}
	gc := func(dry bool) (*build.GCReport, error) {
		return r.GC(t.Context(), build.GCOptions{DryRun: dry, Cache: true})
	}
	end := r.turn("acme")
	if _, err := gc(false); !errors.Is(err, store.ErrInUse) {
		t.Errorf("while a build runs: %v, want ErrInUse", err)
	}
	end()
	for _, dry := range []bool{true, false} {
		if got, err := gc(dry); err != nil || got.CacheBytes != used.Cache.Bytes || got.Bytes != got.CacheBytes || got.Inodes != 2 {
			t.Errorf("dry %t: %+v, %v, want %d bytes", dry, got, err, used.Cache.Bytes)
		}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) == dry {
			t.Errorf("dry %t: %v", dry, err)
		}
	}
	if got, err := gc(false); err != nil || got.Bytes != 0 {
		t.Errorf("of an empty cache: %+v, %v", got, err)
	}
	if err := os.RemoveAll(filepath.Dir(dir)); err != nil { // the cache is safe to delete
		t.Fatal(err)
	}
	if got, err := gc(false); err != nil || got.Bytes != 0 {
		t.Errorf("of a cache that somebody has deleted: %+v, %v", got, err)
	}
	if used, err := r.DiskUsage(); err != nil || used.Cache.Bytes != 0 || used.Cache.Inodes != 0 {
		t.Errorf("used afterwards: %+v, %v", used, err)
	}
}
