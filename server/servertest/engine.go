// Package servertest holds a complete little engine without sandboxes, for the
// tests of what stands before an engine: server, client, command line.
package servertest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/volume"
)

// Epoch is the time at which everything in an [Engine] happens.
var Epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Engine keeps images and functions in memory. Its functions answer by the
// event's path (Invoke says how); its runs know the commands of Run.
type Engine struct {
	mu         sync.Mutex
	images     []*store.Image // newest first
	functions  map[string]*engine.Function
	sandboxes  []*engine.Sandbox
	containers []*engine.Container
	logs       map[string][]engine.LogLine
	more       chan struct{} // closed and replaced when a log line comes or something ends
	calls      int
	noCache    bool // it was removed
	changes    *store.Changes
}

// New returns an engine with nothing in it.
func New() *Engine {
	return &Engine{functions: map[string]*engine.Function{}, logs: map[string][]engine.LogLine{}, more: make(chan struct{}), changes: store.NewChanges(1000)}
}

// Build makes an image whose digest is that of the directory's files. A
// template with a pip package "no-such-package" fails like a resolver does.
func (e *Engine) Build(ctx context.Context, dir *os.Root, report func(image.Event)) (*store.Image, *image.Lock, error) {
	src, err := dir.ReadFile("fret.yaml")
	if err != nil {
		return nil, nil, err
	}
	t, err := image.ParseTemplate("fret.yaml", src)
	if err != nil {
		return nil, nil, err
	}
	report(image.Event{Step: "base", Name: t.Base, Message: "found"})
	for i, p := range t.Packages.Pip {
		if strings.HasPrefix(p, "no-such-package") {
			return nil, nil, fmt.Errorf("resolve packages: %w", &image.ExitError{Args: []string{"uv"}, Code: 1, Output: "no-such-package was not found in the package registry"})
		}
		if strings.HasPrefix(p, "slow") {
			<-ctx.Done()
			return nil, nil, context.Cause(ctx)
		}
		report(image.Event{Step: "packages", Name: p, Done: int64(i + 1), Total: int64(len(t.Packages.Pip))})
	}
	hash := sha256.New()
	img := &store.Image{Created: Epoch}
	err = fs.WalkDir(dir.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := dir.ReadFile(path)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(hash, "%q %q\n", path, content)
		img.Files++
		img.Size += int64(len(content))
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	report(image.Event{Step: "link", Done: int64(img.Files), Total: int64(img.Files)})
	return e.add(img, t, hash.Sum(nil)), &image.Lock{Version: 1, Base: image.LockedBase{Name: t.Base, Packages: map[string]string{}}}, nil
}

// Base makes an image named like the base, and one of the builder's tools.
func (e *Engine) Base(_ context.Context, name string, report func(image.Event)) (*store.Image, error) {
	if !slices.Contains([]string{"python", "node", "native"}, name) {
		return nil, fmt.Errorf("%q: %w", name, image.ErrUnknownBase)
	}
	report(image.Event{Step: "base", Name: name, Message: "unpacked"})
	tools := sha256.Sum256([]byte("tools-" + name))
	made := e.add(&store.Image{Created: Epoch, Size: 1 << 20, Files: 100}, &image.Template{ID: "tools-" + name, Version: "latest", Base: name, Tenant: "default"}, tools[:])
	made.Config = encode(image.Config{Base: name, Protocol: image.ProtocolNone, Labels: map[string]string{image.LabelKind: image.KindTools}})
	sum := sha256.Sum256([]byte(name))
	return e.add(&store.Image{Created: Epoch, Size: 1 << 20, Files: 100}, &image.Template{ID: name, Version: "latest", Base: name, Tenant: "default"}, sum[:]), nil
}

func (e *Engine) add(img *store.Image, t *image.Template, sum []byte) *store.Image {
	img.Name, img.Version, img.Digest = t.ID, t.Version, store.Digest(fmt.Sprintf("sha256:%x", sum))
	img.Built = img.Name + ":" + img.Version
	img.Names = []string{img.Built}
	img.Parts = []store.Part{{Kind: "base", Name: t.Base, Tree: img.Digest}}
	config := image.Config{Base: t.Base, Handler: t.Handler, Args: []string{"/opt/fre/main"}, Protocol: image.ProtocolChannel, Tenant: t.Tenant}
	if t.Handler == "" {
		config.Protocol = image.ProtocolNone
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

// ImageList lists the images.
func (e *Engine) ImageList() ([]*store.Image, uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.images), e.changes.GenerationOf(store.ChangeImage)
}

// cacheUsage is what builds have downloaded, until it is removed.
var cacheUsage = volume.Usage{Bytes: 3 << 20, Inodes: 5, AsOf: Epoch}

// DiskUsage has every image unique, in blocks of 4 KiB, and one tenant.
func (e *Engine) DiskUsage() (*engine.DiskUsage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	u := &engine.DiskUsage{Tenants: []engine.TenantUsage{{
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
		u.Containers = append(u.Containers, engine.ContainerUsage{ID: c.ID, Name: c.Config.Name, Running: c.State == engine.StateRunning, Usage: c.Scratch})
	}
	return u, nil
}

// Changes counts the changes of images and functions.
func (e *Engine) Changes() *store.Changes { return e.changes }

func (e *Engine) noteLocked(kind store.ChangeKind, action store.ChangeAction, id, name string) {
	e.changes.Add(store.Change{Kind: kind, Action: action, ID: id, Name: name})
}

// Events emits changes as the engine does.
func (e *Engine) Events(ctx context.Context, o engine.EventOptions, emit func(store.Change) error) error {
	for since := o.Since; ; {
		changes, ok := e.changes.Since(since)
		if !ok {
			return engine.ErrChangesLost
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

// Image finds an image as the store does.
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

// History has two steps for every image.
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

// TagImage gives an image one more name, which no other image may have.
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
	e.images[slices.Index(e.images, img)] = &tagged
	e.noteLocked(store.ChangeImage, store.ActionTag, string(img.Digest), tagged.Names[len(img.Names)])
	return &tagged, nil
}

// RemoveImage takes a name away, and with the last the image, which no function
// may use.
func (e *Engine) RemoveImage(_ context.Context, ref string, o engine.RemoveOptions) (engine.Removed, error) {
	img, err := e.Image(ref)
	if err != nil {
		return engine.Removed{}, err
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
				return engine.Removed{Image: img, Untagged: []string{name}}, nil
			}
		}
		if !o.Force {
			return engine.Removed{}, fmt.Errorf("remove image %s: %w: %s", ref, engine.ErrSeveralNames, strings.Join(img.Names, ", "))
		}
	}
	for _, f := range e.functions {
		if f.Image == img.Digest {
			return engine.Removed{}, fmt.Errorf("remove image %s: function %s uses it: %w", ref, f.Name, store.ErrInUse)
		}
	}
	e.images = slices.Delete(e.images, at, at+1)
	for _, name := range img.Names {
		e.noteLocked(store.ChangeImage, store.ActionUntag, string(img.Digest), name)
	}
	e.noteLocked(store.ChangeImage, store.ActionDelete, string(img.Digest), "")
	return engine.Removed{Image: img, Untagged: img.Names, Deleted: true}, nil
}

// Deploy makes a function with one idle sandbox and one log line.
func (e *Engine) Deploy(_ context.Context, name string, img *store.Image, o engine.DeployOptions) (*engine.Function, error) {
	f := &engine.Function{Name: name, Image: img.Digest, ImageRef: img.Name + ":" + img.Version, Deployed: Epoch, Instances: 1}
	if err := json.Unmarshal(img.Config, &f.Config); err != nil {
		return nil, err
	}
	if f.Config.Protocol == image.ProtocolNone {
		return nil, fmt.Errorf("%s: %w", img.Name, engine.ErrNotReady)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if old := e.functions[name]; old != nil && !o.Replace {
		if template, _, _ := strings.Cut(old.ImageRef, ":"); template != img.Name {
			return nil, fmt.Errorf("deploy %s: %w by a function of template %s", name, engine.ErrNameTaken, template)
		}
	}
	e.endLocked(name)
	e.functions[name] = f
	sum := sha256.Sum256([]byte(name))
	e.sandboxes = append(e.sandboxes, &engine.Sandbox{
		ID: fmt.Sprintf("%x", sum[:8]), Function: name, Image: f.ImageRef, Tenant: f.Config.Tenant,
		Command: "/opt/fre/main", State: "idle", PID: 4242, Created: Epoch, Defences: []string{"seccomp", "capabilities"},
	})
	e.noteLocked(store.ChangeFunction, store.ActionDeploy, name, name)
	e.logLocked(name, "deployed")
	return f, nil
}

// GC removes the nameless images, or by All every image no function uses; of the
// other rules it knows nothing.
func (e *Engine) GC(_ context.Context, o engine.GCOptions) (*engine.GCReport, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	report := &engine.GCReport{}
	used := map[store.Digest]bool{}
	for _, f := range e.functions {
		used[f.Image] = true
	}
	if o.Policy == nil {
		o.Policy = &engine.GCPolicy{}
	}
	left := slices.DeleteFunc(slices.Clone(e.images), func(img *store.Image) bool {
		x := engine.GCImage{Image: img, Bytes: img.Size}
		switch {
		case used[img.Digest], o.Policy.Only != nil && !o.Policy.Only(img):
			return false
		case o.Policy.Nameless && len(img.Names) == 0:
			x.Rule = engine.RuleNameless
		case o.Policy.All:
			x.Rule = engine.RuleAll
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

// Fsck finds every image wanting.
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

// Functions lists the functions by name.
func (e *Engine) Functions() []*engine.Function {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []*engine.Function
	for _, f := range e.functions {
		shown := *f // which Invoke changes
		list = append(list, &shown)
	}
	slices.SortFunc(list, func(a, b *engine.Function) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Function describes one.
func (e *Engine) Function(name string) (*engine.Function, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.functions[name]
	if f == nil {
		return nil, fmt.Errorf("function %q: %w", name, fs.ErrNotExist)
	}
	shown := *f
	return &shown, nil
}

// RemoveFunction forgets a function and ends its sandboxes.
func (e *Engine) RemoveFunction(_ context.Context, name string) error {
	if _, err := e.Function(name); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.functions, name)
	e.noteLocked(store.ChangeFunction, store.ActionRemove, name, name)
	e.endLocked(name)
	return nil
}

// Invoke answers by the path: /fail, /crash, /timeout, /overloaded, /closed and
// /broken fail in these ways, /status/N answers with status N, /stream echoes
// the body line by line as it comes; anything else answers with the event as
// JSON and a header for each of the kinds the server must drop.
func (e *Engine) Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error) {
	if _, err := e.Function(name); err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.calls++
	id := "inv" + strconv.Itoa(e.calls)
	e.functions[name].Invocations++
	e.logLocked(name, r.Method+" "+r.Path)
	e.mu.Unlock()
	resp := &engine.Response{ID: id, Status: 200, Size: -1, Cold: true, Start: 1500 * time.Microsecond, Instance: "box1"}
	body := r.Body
	if body == nil {
		body = strings.NewReader("")
	}
	if code, ok := strings.CutPrefix(r.Path, "/status/"); ok {
		resp.Status, _ = strconv.Atoi(code)
	}
	switch r.Path {
	case "/fail":
		return nil, &engine.FunctionError{Type: "ValueError", Message: "no such colour", Stack: "secret stack"}
	case "/crash":
		return nil, &engine.CrashError{Status: sandbox.ExitStatus{Code: -1, Signal: 9}, Reason: "was killed by SIGKILL before it answered"}
	case "/timeout":
		return nil, engine.ErrTimeout
	case "/overloaded":
		return nil, engine.ErrOverloaded
	case "/closed":
		return nil, engine.ErrClosed
	case "/broken":
		resp.Body = io.NopCloser(io.MultiReader(strings.NewReader("half"), failingReader{}))
		return resp, nil
	case "/hang":
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case "/stream":
		pr, pw := io.Pipe()
		go func() {
			for in := bufio.NewReader(body); ; {
				line, err := in.ReadString('\n')
				if len(line) > 0 {
					_, _ = fmt.Fprint(pw, "echo ", line)
				}
				if err != nil {
					pw.CloseWithError(err)
					return
				}
			}
		}()
		resp.Body = pr
		return resp, nil
	}
	content, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	header := slices.Clone(r.Header)
	answer := append(encode(map[string]any{"method": r.Method, "path": r.Path, "query": r.Query, "header": header, "body": string(content)}), '\n')
	resp.Header = [][2]string{{"content-type", "application/json"}, {"x-fre-id", "forged"}, {"connection", "close"}, {"content-length", "1"}, {"x-own", "yes"}}
	resp.Size, resp.Body = int64(len(answer)), io.NopCloser(bytes.NewReader(answer))
	return resp, nil
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, &engine.CrashError{Reason: "died"} }

// logLocked adds a line and wakes followers.
func (e *Engine) logLocked(name, text string) {
	n := len(e.logs[name])
	e.logs[name] = append(e.logs[name], engine.LogLine{Time: Epoch.Add(time.Duration(n) * time.Second), Function: name, Sandbox: "box1", Stream: "stdout", Text: text})
	e.wakeLocked()
}

// wakeLocked wakes who waits for something to happen.
func (e *Engine) wakeLocked() {
	close(e.more)
	e.more = make(chan struct{})
}

// await waits until done says so, asked after all that happens.
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

// Logs emits what Deploy and Invoke noted.
func (e *Engine) Logs(ctx context.Context, name string, o engine.LogOptions, emit func(engine.LogLine) error) error {
	if _, err := e.Function(name); err != nil {
		if _, other := e.Container(name); other != nil {
			return err
		}
	}
	next := 0
	for first := true; ; first = false {
		e.mu.Lock()
		lines, more := slices.Clone(e.logs[name]), e.more
		e.mu.Unlock()
		if first && o.Tail >= 0 {
			next = max(0, len(lines)-o.Tail)
		}
		for ; next < len(lines); next++ {
			if lines[next].Time.Before(o.Since) {
				continue
			}
			if err := emit(lines[next]); err != nil {
				return err
			}
		}
		if !o.Follow {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil
		}
	}
}

// CreateContainer makes one whose id is the sum of its name.
func (e *Engine) CreateContainer(_ context.Context, cfg engine.ContainerConfig) (*engine.Container, error) {
	img, err := e.Image(cfg.Image)
	if err != nil {
		return nil, err
	}
	if cfg.Name == "" {
		cfg.Name = "calm_otter"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.containerLocked(cfg.Name) != nil {
		return nil, fmt.Errorf("create container: %w: %q is a container's already", engine.ErrNameTaken, cfg.Name)
	}
	c := &engine.Container{
		ID: fmt.Sprintf("%x", sha256.Sum256([]byte(cfg.Name))), Config: cfg, Digest: img.Digest, Args: slices.Concat(cfg.Entrypoint, cfg.Cmd),
		Created: Epoch, State: engine.StateCreated,
	}
	e.containers = append(e.containers, c)
	return c, nil
}

func (e *Engine) containerLocked(ref string) *engine.Container {
	for _, c := range e.containers {
		if c.Config.Name == ref || c.ID == ref || len(ref) >= 6 && strings.HasPrefix(c.ID, ref) {
			return c
		}
	}
	return nil
}

// Container describes one.
func (e *Engine) Container(ref string) (*engine.Container, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.containerLocked(ref)
	if c == nil {
		return nil, fmt.Errorf("container %q: %w", ref, fs.ErrNotExist)
	}
	shown := *c
	return &shown, nil
}

// StartContainer logs its command line as what it prints.
func (e *Engine) StartContainer(_ context.Context, ref string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.containerLocked(ref)
	switch {
	case c == nil:
		return fmt.Errorf("container %q: %w", ref, fs.ErrNotExist)
	case c.State == engine.StateRunning:
		return fmt.Errorf("start container %s: %w", ref, engine.ErrContainerRunning)
	}
	c.State, c.Started, c.PID = engine.StateRunning, Epoch, 4343
	e.logLocked(c.Config.Name, strings.Join(c.Args, " "))
	return nil
}

// AwaitContainer waits until one does not run, whatever until says.
func (e *Engine) AwaitContainer(ref string, _ engine.WaitCondition) (func(context.Context) (*engine.Container, error), error) {
	c, err := e.Container(ref)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*engine.Container, error) {
		err := e.await(ctx, func() bool {
			now := e.containerLocked(c.ID)
			if now != nil {
				*c = *now
			}
			return now == nil || now.State != engine.StateRunning
		})
		return c, err
	}, nil
}

// Attach fails: there are no streams.
func (e *Engine) Attach(ref string, _ engine.AttachOptions) (*engine.Attachment, error) {
	return nil, fmt.Errorf("attach to container %q: %w", ref, engine.ErrContainerStopped)
}

// RenameContainer gives one another name; its id stays.
func (e *Engine) RenameContainer(ref, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.containerLocked(ref)
	switch {
	case c == nil:
		return fmt.Errorf("container %q: %w", ref, fs.ErrNotExist)
	case e.containerLocked(name) != nil:
		return fmt.Errorf("rename container: %w: %q is a container's already", engine.ErrNameTaken, name)
	}
	c.Config.Name = name
	return nil
}

// Containers lists them, newest first.
func (e *Engine) Containers(all bool) []*engine.Container {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*engine.Container
	for _, c := range slices.Backward(e.containers) {
		if all || c.State == engine.StateRunning {
			shown := *c
			out = append(out, &shown)
		}
	}
	return out
}

// RemoveContainer removes one.
func (e *Engine) RemoveContainer(ref string, force engine.RemoveForce) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.containerLocked(ref)
	switch {
	case c == nil:
		return fmt.Errorf("container %q: %w", ref, fs.ErrNotExist)
	case c.State == engine.StateRunning && !bool(force):
		return fmt.Errorf("remove container %s: %w: stop it first, or use force", ref, engine.ErrContainerRunning)
	}
	e.containers = slices.DeleteFunc(e.containers, func(other *engine.Container) bool { return other == c })
	return nil
}

// Sandboxes lists those of the functions, and with all those that ended.
func (e *Engine) Sandboxes(all bool) []*engine.Sandbox {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []*engine.Sandbox
	for _, b := range e.sandboxes {
		if all || b.Exit == nil {
			shown := *b
			list = append(list, &shown)
		}
	}
	for _, c := range e.containers {
		if all || c.State == engine.StateRunning {
			list = append(list, &engine.Sandbox{
				ID: c.ID, Name: c.Config.Name, Image: c.Config.Image, Command: strings.Join(c.Args, " "), State: c.State, PID: c.PID, Created: c.Created, Exit: c.Exit,
			})
		}
	}
	return list
}

func (e *Engine) liveLocked(prefix string) (*engine.Sandbox, error) {
	for _, b := range e.sandboxes {
		if b.Exit == nil && prefix != "" && strings.HasPrefix(b.ID, prefix) {
			return b, nil
		}
	}
	return nil, fmt.Errorf("sandbox %q: %w", prefix, fs.ErrNotExist)
}

// Size is the same for all.
func (e *Engine) Size(s *engine.Sandbox) (sandbox.Size, error) {
	if s.Exit != nil {
		return sandbox.Size{}, os.ErrProcessDone
	}
	return sandbox.Size{Bytes: 4096, Inodes: 1}, nil
}

// Stats are the same for all.
func (e *Engine) Stats(id string) (sandbox.Stats, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.liveLocked(id); err != nil && e.containerLocked(id) == nil {
		return sandbox.Stats{}, err
	}
	return sandbox.Stats{MemoryBytes: 12 << 20, CPU: 1500 * time.Millisecond, Processes: 1, TmpBytes: 4096}, nil
}

// Processes has the first process of each.
func (e *Engine) Processes(id string) ([]engine.Process, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.containerLocked(id); c != nil && c.State == engine.StateRunning {
		return []engine.Process{{PID: c.PID, Parent: 1, UID: 165536, Started: Epoch, CPU: 250 * time.Millisecond, Command: strings.Join(c.Args, " ")}}, nil
	}
	b, err := e.liveLocked(id)
	if err != nil {
		return nil, err
	}
	return []engine.Process{{PID: b.PID, Parent: 1, UID: 165536, Started: Epoch, CPU: 1500 * time.Millisecond, Command: b.Command}}, nil
}

// Wait waits until a sandbox has ended.
func (e *Engine) Wait(ctx context.Context, id string) (*engine.Sandbox, error) {
	var found *engine.Sandbox
	err := e.await(ctx, func() bool {
		found = nil
		for _, b := range e.sandboxes {
			if id != "" && strings.HasPrefix(b.ID, id) {
				shown := *b
				found = &shown
			}
		}
		return found == nil || found.Exit != nil
	})
	if err == nil && found == nil {
		err = fmt.Errorf("sandbox %q: %w", id, fs.ErrNotExist)
	}
	return found, err
}

func (e *Engine) endLocked(function string) {
	for _, b := range e.sandboxes {
		if b.Function == function {
			exitLocked(b, sandbox.ExitStatus{})
		}
	}
}

func exitLocked(b *engine.Sandbox, s sandbox.ExitStatus) {
	if b.Exit == nil {
		b.State, b.PID, b.Defences, b.Ended, b.Exit = "exited", 0, nil, Epoch.Add(time.Minute), &s
	}
}

// Stop ends a sandbox with status 0.
func (e *Engine) Stop(_ context.Context, id string, _ time.Duration) error {
	e.mu.Lock()
	if c := e.containerLocked(id); c != nil && c.State == engine.StateRunning {
		defer e.mu.Unlock()
		c.State, c.PID, c.Finished, c.Exit = engine.StateExited, 0, Epoch, &sandbox.ExitStatus{}
		e.wakeLocked()
		return nil
	}
	e.mu.Unlock()
	return e.end(id, sandbox.ExitStatus{})
}

// Kill ends a sandbox by SIGKILL.
func (e *Engine) Kill(id string) error {
	return e.end(id, sandbox.ExitStatus{Code: -1, Signal: int(unix.SIGKILL)})
}

// Signal ends a sandbox by a signal that it does not handle.
func (e *Engine) Signal(id string, sig unix.Signal) error {
	return e.end(id, sandbox.ExitStatus{Code: -1, Signal: int(sig)})
}

func (e *Engine) end(id string, s sandbox.ExitStatus) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	b, err := e.liveLocked(id)
	if err != nil {
		return err
	}
	exitLocked(b, s)
	e.wakeLocked()
	return nil
}

// Run knows the commands cat, echo WORD…, env, exit N, yes (until killed),
// sleep (until killed, reading nothing) and locked (cannot be executed).
func (e *Engine) Run(ctx context.Context, r engine.RunRequest) (result engine.RunResult, err error) {
	if _, err := e.Image(r.Image); err != nil {
		return result, err
	}
	result.Start = sandbox.StartShell
	if r.Trace {
		result.Trace = []sandbox.TraceStep{{Name: "prepared", Done: 40 * time.Microsecond}, {Name: "executed", Done: 150500}}
	}
	switch args := r.Args; args[0] {
	case "cat":
		if _, err := io.Copy(r.Stdout, r.Stdin); err != nil {
			return result, err
		}
	case "echo":
		_, _ = fmt.Fprintln(r.Stdout, strings.Join(args[1:], " "))
	case "env":
		_, _ = fmt.Fprintln(r.Stdout, strings.Join(r.Env, "\n"))
	case "exit":
		_, _ = fmt.Fprintln(r.Stderr, "leaving")
		result.Code, _ = strconv.Atoi(args[1])
	case "yes":
		for ctx.Err() == nil {
			_, _ = fmt.Fprintln(r.Stdout, "y")
		}
		return result, context.Cause(ctx)
	case "sleep":
		_, _ = fmt.Fprintln(r.Stdout, "asleep")
		<-ctx.Done()
		return result, context.Cause(ctx)
	case "locked":
		return result, &sandbox.StartError{Step: sandbox.StepExec, Detail: "locked", Err: unix.EACCES}
	default:
		return result, &sandbox.StartError{Step: sandbox.StepExec, Detail: args[0], Err: unix.ENOENT}
	}
	return result, nil
}

// Checks reports one thing that is there, one that is not, and costs that are
// always the same.
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
