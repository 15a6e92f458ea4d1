package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// plainRuntime runs a program of the code on any base.
type plainRuntime struct{}

func (plainRuntime) Name() string                 { return "plain" }
func (plainRuntime) Bases() []string              { return []string{image.AnyBase} }
func (plainRuntime) Bootstrap() map[string][]byte { return nil }
func (plainRuntime) Command(*template.Template) (args, env []string, err error) {
	return []string{"/bin/prog", "function"}, nil, nil
}
func (plainRuntime) Parked(*template.Template, []string) *image.ParkedInterpreter { return nil }

// gated are the base images of builds. Each build has a base of its own, and waits at a gate during
// the lookup.
type gated struct {
	image.Images
	entered chan string // ids of templates
	gates   sync.Map    // by id: chan struct{}, closed to release the build
	open    atomic.Bool // all builds pass
	now     atomic.Int64
	most    atomic.Int64 // highest number of builds at the same time
}

func (g *gated) gate(id string) chan struct{} {
	c, _ := g.gates.LoadOrStore(id, make(chan struct{}))
	return c.(chan struct{})
}

// let releases a build.
func (g *gated) let(id string) { close(g.gate(id)) }

func (g *gated) Pull(ctx context.Context, ref string, pinned store.Digest, report func(image.Progress)) (*store.Image, store.Digest, error) {
	n := g.now.Add(1)
	defer g.now.Add(-1)
	for old := g.most.Load(); n > old && !g.most.CompareAndSwap(old, n); old = g.most.Load() {
	}
	if !g.open.Load() {
		id := strings.TrimSuffix(strings.TrimPrefix(ref, "base-"), ":1")
		g.entered <- id
		select {
		case <-g.gate(id):
		case <-ctx.Done():
			return nil, "", ctx.Err()
		}
	}
	return g.Images.Pull(ctx, ref, pinned, report)
}

func (r *rig) gated() *gated {
	r.ordinary("ordinary")
	b := r.cfg.Builder
	g := &gated{Images: b.Images, entered: make(chan string, 100)}
	b.Images, b.Runtimes = g, []image.Runtime{plainRuntime{}}
	return g
}

// template makes a directory to build from.
func (r *rig) template(tenant, id string) *os.Root {
	r.t.Helper()
	if _, err := r.TagImage(r.t.Context(), "ordinary:1", "base-"+id+":1"); err != nil {
		r.t.Fatal(err)
	}
	dir := r.t.TempDir()
	text := fmt.Sprintf("id: %s\ntenant: %s\nbase: oci:base-%[1]s:1\nruntime: plain\n", id, tenant)
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, template.FileName), []byte(text), 0o644),
		os.WriteFile(filepath.Join(dir, "main.txt"), []byte(id), 0o644),
		os.Chtimes(filepath.Join(dir, "main.txt"), time.Time{}, time.Unix(1, 0)), // the same files give the same image
	); err != nil {
		r.t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = root.Close() })
	return root
}

// built is a build in the background.
type built struct {
	waits chan string // receives the messages of a waiting build
	ended chan error
	img   *store.Image // set when the build has ended
}

// turn takes a turn of a tenant's builds. The returned function ends the build.
func (r *rig) turn(tenant string) (end func()) {
	began, over, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- r.Building(context.WithoutCancel(r.t.Context()), tenant, "turn", nil, func(context.Context) error {
			close(began)
			<-over
			return nil
		})
	}()
	select {
	case <-began:
	case err := <-ended:
		r.t.Fatal(err)
	}
	return func() {
		close(over)
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	}
}

func (r *rig) build(ctx context.Context, tenant, id string) *built {
	b := &built{waits: make(chan string, 2), ended: make(chan error, 1)}
	dir := r.template(tenant, id)
	go func() {
		var err error
		b.img, _, err = r.Build(ctx, dir, func(e image.Progress) {
			if e.Step == "wait" && !e.End {
				b.waits <- e.Message
			}
		})
		b.ended <- err
	}()
	return b
}

// builds compares the numbers of acme's running and waiting builds.
func (r *rig) builds(what string, running, waiting int64) {
	r.t.Helper()
	if u := r.TenantUse("acme"); u.Builds != running || u.WaitingBuilds != waiting {
		r.t.Errorf("%s: %d builds run and %d wait, want %d and %d", what, u.Builds, u.WaitingBuilds, running, waiting)
	}
}

// TestBuildsQuota: a tenant has a limit of simultaneous builds. Further builds report the wait, and
// run in order of arrival. Builds of another tenant do not wait.
func TestBuildsQuota(t *testing.T) {
	for name, c := range map[string]struct {
		q    live.Quotas
		most int
	}{"of the quota": {live.Quotas{Builds: 2}, 2}, "by default": {live.Quotas{}, build.DefaultBuilds}} {
		t.Run(name, func(t *testing.T) {
			r, now := quotaRig(t, c.q)
			g := r.gated()
			var all []*built
			begin := func(tenant, id string) *built {
				b := r.build(t.Context(), tenant, id)
				all = append(all, b)
				return b
			}
			enters := func(id string) {
				t.Helper()
				if got := <-g.entered; got != id {
					t.Errorf("%s is built, want %s", got, id)
				}
			}
			for i := range c.most {
				id := fmt.Sprintf("run%d", i)
				begin("acme", id)
				enters(id)
			}
			for i := range 3 {
				b := begin("acme", fmt.Sprintf("wait%d", i))
				want := fmt.Sprintf("tenant acme runs %d builds, the most allowed; builds ahead in the queue: %d", c.most, i)
				if diff := cmp.Diff(want, <-b.waits); diff != "" {
					t.Errorf("what it says (-want +got):\n%s", diff)
				}
			}
			gone, cancel := context.WithCancel(t.Context())
			left := r.build(gone, "acme", "left")
			<-left.waits
			cancel()
			if err := <-left.ended; !errors.Is(err, context.Canceled) {
				t.Errorf("one that is given up while it waits: %v", err)
			}
			r.builds("three wait, and one was given up", int64(c.most), 3)
			begin("other", "other")
			enters("other")

			g.let("run1") // when any build ends, the next build gets its turn
			enters("wait0")
			g.let("wait0")
			enters("wait1")
			r.builds("one waits", int64(c.most), 1)
			now.Store(&live.Quotas{Builds: 1})
			g.let("run0")
			if err := <-all[0].ended; err != nil {
				t.Error(err)
			}
			r.builds("the quota was lowered", int64(c.most)-1, 1)
			now.Store(&live.Quotas{Builds: 100})
			begin("acme", "late") // first to see the new quota; wait1 waited before
			ids := []string{<-g.entered, <-g.entered}
			slices.Sort(ids)
			if diff := cmp.Diff([]string{"late", "wait2"}, ids); diff != "" {
				t.Errorf("once there is room for all (-want +got):\n%s", diff)
			}
			g.open.Store(true)
			for _, id := range append(ids, "wait1", "other") {
				g.let(id)
			}
			for i := 2; i < c.most; i++ {
				g.let(fmt.Sprintf("run%d", i))
			}
			for _, b := range all[1:] {
				if err := <-b.ended; err != nil {
					t.Error(err)
				}
			}
			r.builds("all have ended", 0, 0)
		})
	}
}

// TestBuildsWaiting: the number of waiting builds is limited. The engine refuses the next build at
// once and leaves nothing behind.
func TestBuildsWaiting(t *testing.T) {
	r, _ := quotaRig(t, live.Quotas{Builds: 1})
	g := r.gated()
	all := []*built{r.build(t.Context(), "acme", "first")}
	<-g.entered
	for i := range build.MostWaiting {
		b := r.build(t.Context(), "acme", fmt.Sprintf("f%d", i))
		<-b.waits
		all = append(all, b)
	}
	for range 3 {
		var full *live.QuotaError
		if err := <-r.build(t.Context(), "acme", "more").ended; !errors.As(err, &full) || full.What != live.QuotaOfBuilds || full.Limit != build.MostWaiting {
			t.Errorf("one more: %v, want a QuotaError", err)
		}
	}
	r.builds("they wait", 1, build.MostWaiting)
	g.open.Store(true)
	g.let("first")
	for _, b := range all {
		if err := <-b.ended; err != nil {
			t.Error(err)
		}
	}
	if err := <-r.build(t.Context(), "acme", "more").ended; err != nil {
		t.Errorf("once there is room: %v", err)
	}
	r.builds("all have ended", 0, 0)
}

// TestBuildsRace: of simultaneous builds at most the quota run, whether they succeed, fail or are
// cancelled. No build remains counted.
func TestBuildsRace(t *testing.T) {
	const most = 3
	r, _ := quotaRig(t, live.Quotas{Builds: most})
	g := r.gated()
	g.open.Store(true)
	var wg sync.WaitGroup
	for i := range most + build.MostWaiting {
		dir := r.template("acme", fmt.Sprintf("f%d", i))
		if i%4 == 1 {
			if _, err := r.RemoveImage(t.Context(), fmt.Sprintf("base-f%d:1", i), build.RemoveOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%4 == 2 {
				wg.Go(cancel)
			}
			_, _, err := r.Build(ctx, dir, nil)
			switch i % 4 {
			case 1:
				if err == nil {
					t.Error("it was built on nothing")
				}
			case 2: // both results are right
			default:
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := g.most.Load(); n > most {
		t.Errorf("%d builds were under way at once, want %d at most", n, most)
	}
	r.builds("all have ended", 0, 0)
}

// TestBuildTime: the time limit of a build covers all steps, but not the wait. After the limit the
// next build gets the place.
func TestBuildTime(t *testing.T) {
	r := open(t)
	r.stop()
	r.start(Config{BuildTime: time.Millisecond, Quotas: func(string) live.Quotas { return live.Quotas{Builds: 1} }})
	r.gated()
	for range 2 {
		if err := <-r.build(t.Context(), "acme", "f").ended; !errors.Is(err, build.ErrBuildTime) {
			t.Errorf("a build without an end: %v, want ErrBuildTime", err)
		}
	}
	r.builds("they are over", 0, 0)
	if n := r.TenantUse("acme").Images; n != 0 {
		t.Errorf("%d images are there", n)
	}
}

// TestBuildsClose: running and waiting builds end with the engine.
func TestBuildsClose(t *testing.T) {
	r, _ := quotaRig(t, live.Quotas{Builds: 1})
	g := r.gated()
	runs := r.build(t.Context(), "acme", "runs")
	<-g.entered
	waits := r.build(t.Context(), "acme", "waits")
	<-waits.waits
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // Close does not wait for builds
	if err := r.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close: %v", err)
	}
	for _, b := range []*built{runs, waits} {
		if err := <-b.ended; err == nil {
			t.Error("it was built")
		}
	}
	r.builds("the engine has ended", 0, 0)
}

// TestImagesQuota: of images made at the same time, in any way, the store never holds more than the
// tenant's quota, not even for a moment. An image that exists already needs no quota.
func TestImagesQuota(t *testing.T) {
	r, now := quotaRig(t, live.Quotas{})
	g := r.gated()
	g.open.Store(true)
	of := r.image("f", nil)
	if err := <-r.build(t.Context(), "acme", "first").ended; err != nil {
		t.Fatal(err)
	}
	each := r.TenantUse("acme").ImageBytes
	for name, c := range map[string]struct {
		q    live.Quotas
		what string
	}{
		"images": {live.Quotas{Images: 3, Builds: 20}, "images"},
		"bytes":  {live.Quotas{ImageBytes: 3*each + each/2, Builds: 20}, "bytes of images"},
	} {
		now.Store(&c.q)
		since := r.Changes().Generation()
		var made []*built
		for i := range 8 {
			made = append(made, r.build(t.Context(), "acme", fmt.Sprintf("%s%d", name, i)))
		}
		var stored []*built
		for _, b := range made {
			var full *live.QuotaError
			switch err := <-b.ended; {
			case err == nil:
				stored = append(stored, b)
			case !errors.As(err, &full) || full.What != c.what:
				t.Errorf("%s: %v, want a QuotaError of %s", name, err, c.what)
			}
		}
		there := 0
		changes, _ := r.Changes().Since(since)
		for _, c := range changes {
			if c.Kind == store.ChangeImage && c.Action == store.ActionTag && strings.HasPrefix(c.Name, name) {
				there++
			}
		}
		if use := r.TenantUse("acme"); len(stored) != 2 || there != 2 || use.Images != 3 || c.q.ImageBytes > 0 && use.ImageBytes > c.q.ImageBytes {
			t.Errorf("%s: %d were built, %d were there, if for a moment, and %d are, want 2 beside the first", name, len(stored), there, use.Images)
		}
		if name == "images" { // other ways to make images
			var full *live.QuotaError
			if _, err := r.Reconfigure(t.Context(), of, "more", nil, func(c *image.Config) error { c.Tenant = "acme"; return nil }); !errors.As(err, &full) {
				t.Errorf("Reconfigure: %v, want a QuotaError", err)
			}
		}
		if _, err := r.RemoveImage(t.Context(), string(stored[0].img.Digest), build.RemoveOptions{}); err != nil {
			t.Fatal(err)
		}
		// Two builds of the same image share the last place.
		g.open.Store(false)
		one, other := r.build(t.Context(), "acme", "same"+name), r.build(t.Context(), "acme", "same"+name)
		<-g.entered
		<-g.entered
		g.open.Store(true)
		g.let("same" + name)
		if err := errors.Join(<-one.ended, <-other.ended); err != nil {
			t.Errorf("%s, once there is room: %v", name, err)
		}
		for _, img := range []*store.Image{stored[1].img, one.img} {
			if _, err := r.RemoveImage(t.Context(), string(img.Digest), build.RemoveOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	left, err := os.ReadDir(filepath.Join(r.state, "store", "tmp"))
	if err != nil || len(left) > 0 {
		t.Errorf("what was refused has left %v, %v", left, err)
	}
}

// TestBuildNames: if builds of two tenants begin while an image name is free, one tenant gets the
// name. The second build is refused and leaves no image. A further build of this tenant is refused
// before any work, with the reason.
func TestBuildNames(t *testing.T) {
	r, _ := quotaRig(t, live.Quotas{})
	g := r.gated()
	ctx := build.KeepNames(t.Context())
	of := map[string]*built{"acme": r.build(ctx, "acme", "app"), "other": r.build(ctx, "other", "app")}
	<-g.entered
	<-g.entered
	g.let("app")
	var first, second string
	var taken *build.ImageNameError
	for tenant, b := range of {
		switch err := <-b.ended; {
		case err == nil:
			first = tenant
		case errors.As(err, &taken):
			second = tenant
		default:
			t.Errorf("%s: %v", tenant, err)
		}
	}
	if first == "" || second == "" {
		t.Fatalf("%q was built, and %q refused, want one each", first, second)
	}
	name := of[first].img.Names[0]
	if got, err := r.Image(name); err != nil || got.Digest != of[first].img.Digest || taken.Name != name {
		t.Errorf("%s is %v's, %v; %s was refused", name, got, err, taken.Name)
	}
	if use := r.TenantUse(second); use.Images != 0 {
		t.Errorf("what was refused has left %d images", use.Images)
	}
	if err := r.MayName(name, second); !errors.As(err, &taken) {
		t.Errorf("MayName: %v", err)
	}
	if err := r.MayName(name, first); err != nil {
		t.Errorf("MayName of its own: %v", err)
	}
	mine, err := r.TagImage(ctx, string(of[first].img.Digest), "more:1")
	if err != nil || len(mine.Names) != 2 {
		t.Errorf("a name that is free: %v, %v", mine, err)
	}
	if _, err := r.TagImage(ctx, string(r.image("others", func(c *image.Config) { c.Tenant = second }).Digest), "more:1"); !errors.As(err, &taken) {
		t.Errorf("TagImage: %v, want an ImageNameError", err)
	}
}

// Build builds the template in dir.
func (r *rig) Build(ctx context.Context, dir *os.Root, report func(image.Progress)) (*store.Image, *image.Lock, error) {
	t, err := r.Template(dir)
	if err != nil {
		return nil, nil, err
	}
	return r.Engine.Build(ctx, dir, t, report)
}
