// Package servertest holds a small but complete engine without sandboxes, for the tests of an
// engine's users: server, client, command line.
package servertest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
	"github.com/fre-engine/fre/volume"
)

// Epoch is the time of all events in an [Engine].
var Epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Engine keeps images and functions in memory. A function's answer depends on the path of the event
// (see Invoke); a run executes one of the commands listed at Run.
type Engine struct {
	mu         sync.Mutex
	images     []*store.Image // newest first
	functions  map[string]*engine.Function
	revisions  map[string]*engine.Revisions
	sandboxes  []*live.Sandbox
	containers []*container.Container
	logs       map[string][]live.LogLine
	more       chan struct{} // closed and replaced when a log line arrives or a sandbox ends
	calls      int
	noCache    bool // the build cache was removed
	holds      int  // see Hold
	changes    *store.Changes
}

// New returns an empty engine.
func New() *Engine {
	return &Engine{functions: map[string]*engine.Function{}, revisions: map[string]*engine.Revisions{}, logs: map[string][]live.LogLine{}, more: make(chan struct{}), changes: store.NewChanges(1000)}
}

// ParseTemplate reads a template for the real runtimes.
func (*Engine) ParseTemplate(name string, src []byte) (*template.Template, error) {
	return runtimes.Dialect().Parse(name, src)
}

// Template reads the fret.yaml in dir.
func (e *Engine) Template(dir *os.Root) (*template.Template, error) {
	src, err := dir.ReadFile(template.FileName)
	if err != nil {
		return nil, err
	}
	return e.ParseTemplate(template.FileName, src)
}

// Build makes an image whose digest is the digest of the directory's files. The template's pip
// packages select a failure: "no-such-package" fails like a resolver, "queue-full" as if too many
// builds waited, "endless" as if the build took too long, and "slow" blocks until ctx ends. A locked
// build fails without a lock.
func (e *Engine) Build(ctx context.Context, dir *os.Root, t *template.Template, report func(image.Progress)) (*store.Image, *image.Lock, error) {
	if o := image.OptionsOf(ctx); o.Locked {
		if _, err := dir.Stat(image.LockFile); err != nil {
			return nil, nil, &image.LockError{Drift: []string{"the file is missing"}}
		}
	}
	if slices.Contains(t.Packages.Of("pip").List, "queue-full") {
		return nil, nil, &live.QuotaError{Tenant: t.Tenant, What: live.QuotaOfBuilds, Limit: 16}
	}
	if slices.Contains(t.Packages.Of("pip").List, "endless") {
		return nil, nil, fmt.Errorf("%w: more than 1h0m0s", build.ErrBuildTime)
	}
	report(image.Progress{Step: "base", Name: t.Base, Message: "found", End: true})
	for _, p := range t.Packages.Of("pip").List {
		if strings.HasPrefix(p, "no-such-package") {
			return nil, nil, fmt.Errorf("resolve packages: %w", &image.ExitError{Args: []string{"uv"}, Status: 1, Output: "no-such-package was not found in the package registry"})
		}
		report(image.Progress{Step: "packages", Name: p, Message: "unpack", Done: 25e6, Total: 100e6, Unit: image.UnitBytes})
		if strings.HasPrefix(p, "slow") {
			<-ctx.Done()
			return nil, nil, context.Cause(ctx)
		}
		report(image.Progress{Step: "packages", Name: p, End: true})
	}
	hash := sha256.New()
	img := &store.Image{Created: Epoch}
	err := fs.WalkDir(dir.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := dir.ReadFile(path)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(hash, "%q %d\n", path, len(content))
		_, _ = hash.Write(content)
		img.Files++
		img.Size += int64(len(content))
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	report(image.Progress{Step: "link", Done: int64(img.Files), Total: int64(img.Files), Unit: image.UnitItems, End: true})
	digest := hash.Sum(nil)
	digest[0] &= 0x0f // begins with 0: the name of an image, such as "b", is no prefix of a digest
	return e.add(img, t, digest), &image.Lock{Version: 1, Base: image.LockedBase{Name: t.Base, Packages: map[string]string{}}}, nil
}

// ForTenant implements server.Engine. It returns ctx unchanged, because this engine connects to
// nothing.
func (e *Engine) ForTenant(ctx context.Context) context.Context { return ctx }

// Base makes an image with the base's name, and an image of the builder's tools.
func (e *Engine) Base(_ context.Context, name string, report func(image.Progress)) (*store.Image, error) {
	if !slices.Contains([]string{"python", "node", "native"}, name) {
		return nil, fmt.Errorf("%q: %w", name, image.ErrUnknownBase)
	}
	report(image.Progress{Step: "base", Name: name, Message: "unpacked"})
	tools := sha256.Sum256([]byte("tools-" + name))
	made := e.add(&store.Image{Created: Epoch, Size: 1 << 20, Files: 100}, &template.Template{ID: "tools-" + name, Version: "latest", Base: name, Tenant: "default"}, tools[:])
	made.Config = encode(image.Config{Base: name, Protocol: image.ProtocolNone, Labels: map[string]string{image.LabelKind: image.KindTools}})
	sum := sha256.Sum256([]byte(name))
	return e.add(&store.Image{Created: Epoch, Size: 1 << 20, Files: 100}, &template.Template{ID: name, Version: "latest", Base: name, Tenant: "default"}, sum[:]), nil
}

func (e *Engine) add(img *store.Image, t *template.Template, sum []byte) *store.Image {
	img.Name, img.Version, img.Digest = t.ID, t.Version, store.Digest(fmt.Sprintf("sha256:%x", sum))
	img.Built = img.Name + ":" + img.Version
	img.Names = []string{img.Built}
	img.Parts = []store.Part{{Kind: "base", Name: t.Base, Tree: img.Digest}}
	config := image.Config{Base: t.Base, Handler: t.Handler, Args: []string{"/opt/fre/main"}, Protocol: image.ProtocolChannel, Tenant: t.Tenant, Triggers: t.Triggers}
	if t.Handler == "" {
		config.Protocol = image.ProtocolNone
	}
	if t.Slim != template.SlimFalse && t.Handler != "" {
		config.LeftOut = &image.LeftOut{Packages: []string{"debconf", "dpkg"}, PackageBytes: 7_000_000, Files: []image.LeftOutFiles{{Pattern: "usr/share/doc", Files: 40, Bytes: 1_500_000}}}
	}
	img.Config = encode(config)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.images = slices.DeleteFunc(e.images, func(old *store.Image) bool { return old.Name == img.Name && old.Version == img.Version })
	e.images = slices.Insert(e.images, 0, img)
	e.noteLocked(store.ChangeImage, store.ActionCreate, string(img.Digest), "")
	e.noteLocked(store.ChangeImage, store.ActionTag, string(img.Digest), img.Name+":"+img.Version)
	return img
}

func encode(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// ImageList lists the images and returns the generation of the list's last change.
func (e *Engine) ImageList() ([]*store.Image, uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.images), e.changes.GenerationOf(store.ChangeImage)
}

// cacheUsage is the size of the build cache before its removal.
var cacheUsage = volume.Usage{Bytes: 3 << 20, Inodes: 5, AsOf: Epoch}

// Holdings reports three buffers of two sizes.
func (e *Engine) Holdings() (engine.Holdings, error) {
	return engine.Holdings{Sandboxes: len(e.Sandboxes(false)), Cgroups: 5, Buffers: buffer.Stats{Bytes: 64 << 20, Classes: []buffer.ClassStats{
		{Size: 4 << 10}, {Size: 16 << 10, Used: 2}, {Size: 1 << 20, Used: 1},
	}}}, nil
}

// Status reports an engine in which every function is busy. The engine is degraded while a function
// named "degraded" exists.
func (e *Engine) Status() (engine.Status, error) {
	held, err := e.Holdings()
	held.Buffers.Held, held.Buffers.Peak, held.Buffers.High, held.Buffers.Low = 2<<20, 5<<20, 60<<20, 48<<20
	s := engine.Status{
		Started: Epoch, Since: Epoch, Events: 3, MostEvents: 512, Waiting: 1, Queued: 7, Functions: len(e.Functions()),
		Buffers: held.Buffers, Sandboxes: held.Sandboxes, Cgroups: held.Cgroups, Parked: sandbox.ParkedStats{Bare: 4, Attached: 2},
	}
	for _, f := range e.Functions() {
		s.Busiest = append(s.Busiest, engine.FunctionLoad{Name: f.Name, Instances: 4, Busy: 4, Queued: 7, Waiting: 1})
		if f.Name == "degraded" {
			s.State, s.Reason = admission.Degraded, admission.Memory
		}
	}
	return s, err
}

// TenantUse returns zero.
func (e *Engine) TenantUse(string) live.Use { return live.Use{} }

// DiskUsage reports every image as unique, in blocks of 4 KiB, and one tenant.
func (e *Engine) DiskUsage() (*engine.DiskUsage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	u := &engine.DiskUsage{Tenants: []live.TenantUsage{{
		Name: "default", Limit: 1e9, Kind: volume.Image, Usage: volume.Usage{Bytes: 12 << 20, Inodes: 7, AsOf: time.Now()},
	}}}
	if !e.noCache {
		u.Cache = cacheUsage
	}
	for _, img := range e.images {
		bytes := (img.Size + 4095) / 4096 * 4096
		x := engine.ImageUsage{Image: img, ImageSize: store.ImageSize{Bytes: bytes, Inodes: int64(img.Files), UniqueBytes: bytes, UniqueInodes: int64(img.Files)}}
		for _, f := range e.functions {
			x.InUse = x.InUse || f.Image == img.Digest
		}
		if x.InUse {
			x.HeldBytes = bytes
		} else {
			u.ReclaimableBytes += bytes
		}
		u.Images = append(u.Images, x)
		u.ImageBytes += bytes
		u.ImageInodes += int64(img.Files)
	}
	for _, c := range e.containers {
		u.Containers = append(u.Containers, engine.ContainerUsage{ID: c.ID, Name: c.Config.Name, Running: c.State == live.StateRunning, Usage: c.Scratch})
	}
	return u, nil
}

// Changes returns the log of changes of images and functions.
func (e *Engine) Changes() *store.Changes { return e.changes }

func (e *Engine) noteLocked(kind store.ChangeKind, action store.ChangeAction, id, name string) {
	e.changes.Add(store.Change{Kind: kind, Action: action, ID: id, Name: name})
}

// Events emits changes like the real engine.
func (e *Engine) Events(ctx context.Context, o live.EventOptions, emit func(store.Change) error) error {
	for since := o.Since; ; {
		changes, ok := e.changes.Since(since)
		if !ok {
			return live.ErrChangesLost
		}
		for _, c := range changes {
			c.Time = Epoch
			if err := emit(c); err != nil {
				return err
			}
			since = c.Generation
		}
		if !o.Follow {
			return nil
		}
		select {
		case <-e.changes.After(since):
		case <-ctx.Done():
			return nil
		}
	}
}

// Image finds an image like the store.
func (e *Engine) Image(ref string) (*store.Image, error) {
	var found []*store.Image
	images, _ := e.ImageList()
	for _, img := range images {
		hex := strings.TrimPrefix(string(img.Digest), "sha256:")
		switch {
		case slices.Contains(img.Names, ref), slices.Contains(img.Names, ref+":latest"), img.Name == ref, string(img.Digest) == ref:
			return img, nil
		case len(ref) >= 6 && strings.HasPrefix(hex, strings.TrimPrefix(ref, "sha256:")):
			found = append(found, img)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("image %q: %w", ref, fs.ErrNotExist)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("image %q: %w", ref, store.ErrAmbiguous)
}

// History returns two steps for every image.
func (e *Engine) History(ref string) ([]oci.Step, error) {
	img, err := e.Image(ref)
	if err != nil {
		return nil, err
	}
	return []oci.Step{
		{Created: img.Created, CreatedBy: "COPY rootfs /", Size: img.Size, Comment: "by a test"},
		{Created: img.Created, CreatedBy: "CMD [\"/bin/sh\"]"},
	}, nil
}

// SBOM returns a document that names the image.
func (e *Engine) SBOM(ref string) ([]byte, error) {
	img, err := e.Image(ref)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "{\"bomFormat\":\"CycloneDX\",\"metadata\":{\"component\":{\"bom-ref\":%q}}}\n", img.Digest), nil
}

// TagImage adds a name to an image. No other image may have the name.
func (e *Engine) TagImage(_ context.Context, ref, name string) (*store.Image, error) {
	r, err := store.ParseReference(name)
	if err == nil {
		err = r.Check()
	}
	if err != nil {
		return nil, err
	}
	img, err := e.Image(ref)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	tagged := *img
	tagged.Names = append(slices.Clone(img.Names), r.Name+":"+cmp.Or(r.Version, "latest"))
	if tagged.Name == "" {
		tagged.Name, tagged.Version = r.Name, cmp.Or(r.Version, "latest")
	}
	e.images[slices.Index(e.images, img)] = &tagged
	e.noteLocked(store.ChangeImage, store.ActionTag, string(img.Digest), tagged.Names[len(img.Names)])
	return &tagged, nil
}

// RemoveImage removes a name. With the last name it removes the image, unless a function uses the
// image.
func (e *Engine) RemoveImage(_ context.Context, ref string, o build.RemoveOptions) (build.Removed, error) {
	img, err := e.Image(ref)
	if err != nil {
		return build.Removed{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	at := slices.Index(e.images, img)
	if len(img.Names) > 1 {
		for i, name := range img.Names {
			if ref == name || ref+":latest" == name || ref == name[:strings.LastIndexByte(name, ':')] {
				left := *img
				left.Names = slices.Delete(slices.Clone(img.Names), i, i+1)
				e.images[at] = &left
				e.noteLocked(store.ChangeImage, store.ActionUntag, string(img.Digest), name)
				return build.Removed{Image: img, Untagged: []string{name}}, nil
			}
		}
		if !o.Force {
			return build.Removed{}, fmt.Errorf("remove image %s: %w: %s", ref, build.ErrSeveralNames, strings.Join(img.Names, ", "))
		}
	}
	for _, f := range e.functions {
		if f.Image == img.Digest {
			return build.Removed{}, fmt.Errorf("remove image %s: function %s uses it: %w", ref, f.Name, store.ErrInUse)
		}
	}
	e.images = slices.Delete(e.images, at, at+1)
	for _, name := range img.Names {
		e.noteLocked(store.ChangeImage, store.ActionUntag, string(img.Digest), name)
	}
	e.noteLocked(store.ChangeImage, store.ActionDelete, string(img.Digest), "")
	return build.Removed{Image: img, Untagged: img.Names, Deleted: true}, nil
}

// GC removes images without names, with All every image that no function uses, and with Cache the
// build cache. GC ignores all other rules.
func (e *Engine) GC(_ context.Context, o build.GCOptions) (*build.GCReport, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	report := &build.GCReport{}
	used := map[store.Digest]bool{}
	for _, f := range e.functions {
		used[f.Image] = true
	}
	if o.Policy == nil {
		o.Policy = &build.GCPolicy{}
	}
	left := slices.DeleteFunc(slices.Clone(e.images), func(img *store.Image) bool {
		x := build.GCImage{Image: img, Bytes: img.Size}
		switch {
		case used[img.Digest], o.Policy.Only != nil && !o.Policy.Only(img):
			return false
		case o.Policy.Nameless && len(img.Names) == 0:
			x.Rule = build.RuleNameless
		case o.Policy.All:
			x.Rule = build.RuleAll
		default:
			return false
		}
		report.Images = append(report.Images, x)
		report.Add(store.Swept{Objects: img.Files, Inodes: img.Files, Bytes: img.Size})
		if !o.DryRun {
			e.noteLocked(store.ChangeImage, store.ActionDelete, string(img.Digest), "")
		}
		return true
	})
	if o.Cache && !e.noCache {
		report.CacheBytes = cacheUsage.Bytes
		report.Add(store.Swept{Inodes: int(cacheUsage.Inodes), Bytes: cacheUsage.Bytes})
		e.noCache = !o.DryRun
	}
	if !o.DryRun {
		e.images = left
	}
	return report, nil
}

// Fsck reports a problem for every image.
func (e *Engine) Fsck(_ context.Context, o store.CheckOptions) (store.Checked, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	done := store.Checked{Images: len(e.images), Problems: len(e.images)}
	for _, img := range e.images {
		p := store.Problem{Path: "images/" + string(img.Digest), What: "it is a fake"}
		if o.Repair {
			p.Repair = "it stays one"
			done.Repaired++
		}
		o.Report(p)
	}
	return done, nil
}

// wakeLocked wakes all waiters.
func (e *Engine) wakeLocked() {
	close(e.more)
	e.more = make(chan struct{})
}

// await waits until done returns true. done runs with e.mu held, and again after every change.
func (e *Engine) await(ctx context.Context, done func() bool) error {
	for {
		e.mu.Lock()
		ok, more := done(), e.more
		e.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Checks returns constant results: two checks succeed and one fails. The costs are constant too.
func (e *Engine) Checks(o engine.CheckOptions) ([]engine.Check, error) {
	checks := []engine.Check{
		{ID: "kernel", Name: "kernel", OK: true, Found: "6.18"},
		{ID: "cgroup_pids", Name: "cgroup pids", OK: false, Found: "not mounted", Effect: "process limits are per user", Next: "mount the pids controller"},
		{ID: "overlay", Name: "overlay", OK: true, Found: "index off", Does: "sizes are counted, not walked"},
	}
	if o.Costs {
		checks[0].Cost = sandbox.Cost{Time: 107 * time.Nanosecond, Of: "a system call"}
		checks[2].Cost = sandbox.Cost{Of: "an overlay mount", Err: unix.EPERM}
	}
	return checks, nil
}
