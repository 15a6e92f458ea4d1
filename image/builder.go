// Package image makes images of template directories: it reads the template,
// resolves and locks its packages, and puts base, packages, bootstrap and code
// together from the store's shared parts. What differs by language is a
// [Runtime].
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/store"
)

// Builder makes images out of templates. It is safe for use by several
// goroutines; its fields are set before the first call.
type Builder struct {
	Store    *store.Store // required
	Runtimes []Runtime    // required
	Run      Runner       // required by runtimes that install packages
	Settings Settings

	// Archive opens the Debian archive of the host's own release. It is called
	// once for each base environment that has to be built: an archive's index
	// is large, and is let go afterwards.
	Archive func() (Archive, error)

	Log *slog.Logger // nil: discarded

	mu    sync.Mutex
	locks map[string]*keyLock // what is being built now, by image name
}

// Archive is where Debian packages come from: *debian.Archive.
type Archive interface {
	Codename() string
	Resolve(ctx context.Context, roots, exclude []string) ([]debian.Package, error)
	Unpack(ctx context.Context, pkgs []debian.Package, w debian.Writer, keep func(path string) bool, report func(name string, done, total int64)) error
}

// Build makes the image of the template in dir, which holds fret.yaml and
// perhaps fret.lock. Parts the store has already are not made again. dir is
// only read: the caller writes the lock that comes back with [WriteLock].
//
// report, when not nil, is called by one goroutine at a time.
// Errors: [TemplateErrors] with file, line and column for what the template
// or lock says wrong; *[ExitError] for a build step that failed;
// fs.ErrNotExist without a fret.yaml; an errno such as ENOSPC of the store.
// After an error or cancelling nothing is left but parts that are whole.
func (b *Builder) Build(ctx context.Context, dir *os.Root, report func(Event)) (*store.Image, *Lock, error) {
	report = serial(report)
	src, err := readSmall(dir, TemplateFile, maxTemplateBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w: a function's directory holds one; fre new makes it", err)
	}
	if err != nil {
		return nil, nil, err
	}
	t, err := ParseTemplate(TemplateFile, src)
	if err != nil {
		return nil, nil, err
	}
	if err := t.Check(b.Runtimes); err != nil {
		return nil, nil, err
	}
	locked, err := ReadLock(dir)
	if err != nil {
		return nil, nil, err
	}
	img, lock, err := b.build(ctx, dir, t, locked, report)
	if err == nil {
		return img, lock, nil
	}
	err = t.fault(err)
	var placed TemplateErrors
	if !errors.As(err, &placed) { // the place says more than the name
		err = fmt.Errorf("build %s: %w", t.ID, err)
	}
	return nil, nil, err
}

func (b *Builder) build(ctx context.Context, dir *os.Root, t *Template, locked *Lock, report func(Event)) (*store.Image, *Lock, error) {
	defer b.Store.Hold()()
	runtime, err := b.runtime(t.Base)
	if err != nil {
		return nil, nil, err
	}
	base, err := b.Base(ctx, t.Base, report)
	if err != nil {
		return nil, nil, err
	}
	baseConfig, err := ConfigOf(base)
	if err != nil {
		return nil, nil, err
	}
	parts := slices.Clone(base.Parts)

	lock := &Lock{
		Version: lockVersion,
		Base:    LockedBase{Name: t.Base, Packages: baseConfig.Packages},
		Pip:     locked.PipFor(t), NPM: locked.NPMFor(t),
	}
	packages, err := b.packages(ctx, runtime, base, t, lock, report)
	if err != nil {
		return nil, nil, err
	}
	parts = append(parts, packages...)

	if files := runtime.Bootstrap(); len(files) > 0 {
		part, err := b.bootstrap(ctx, runtime.Name(), files)
		if err != nil {
			return nil, nil, err
		}
		parts = append(parts, part)
	}

	report(Event{Step: "code", Name: t.Code.Path})
	code, err := b.code(ctx, dir, t, base, report)
	if err != nil {
		return nil, nil, err
	}
	parts = append(parts, code)

	config, err := b.config(t, runtime, parts)
	if err != nil {
		return nil, nil, err
	}
	report(Event{Step: "link", Name: t.ID + ":" + t.Version})
	img, err := b.Store.PutImage(ctx, store.Manifest{Name: t.ID, Version: t.Version, Parts: parts, Config: config})
	if err != nil {
		return nil, nil, err
	}
	return img, lock, nil
}

// serial lets a runtime report from several goroutines.
func serial(report func(Event)) func(Event) {
	if report == nil {
		return func(Event) {}
	}
	var mu sync.Mutex
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		report(e)
	}
}

// packages runs the runtime's package tool, if the template asks for any.
func (b *Builder) packages(ctx context.Context, runtime Runtime, base *store.Image, t *Template, lock *Lock, report func(Event)) ([]store.Part, error) {
	if len(t.Packages.Pip) == 0 && len(t.Packages.NPM) == 0 {
		lock.Pip, lock.NPM = nil, nil
		return nil, nil
	}
	report(Event{Step: "packages"})
	var parts []store.Part
	err := b.step(b.Store.Rootfs(base.Digest), b.tools, report, func(s *Step) (err error) {
		parts, err = runtime.Packages(ctx, s, t, lock)
		return err
	})
	if err != nil {
		return nil, err
	}
	// A section that does not answer the request would be ignored for ever.
	lock.Pip, lock.NPM = lock.PipFor(t), lock.NPMFor(t)
	return parts, nil
}

// step calls f with a Step whose scratch directory lives as long as the call.
func (b *Builder) step(rootfs string, tools toolsFunc, report func(Event), f func(*Step) error) error {
	scratch, err := b.Store.MkdirScratch()
	if err != nil {
		return err
	}
	err = f(&Step{
		Rootfs: rootfs, Store: b.Store, Run: b.Run, Settings: b.Settings, Report: report, Scratch: scratch,
		Tools: func(ctx context.Context, base string, packages ...string) (string, error) {
			return tools(ctx, base, packages, report)
		},
	})
	return errors.Join(err, os.RemoveAll(scratch))
}

type toolsFunc func(ctx context.Context, base string, packages []string, report func(Event)) (rootfs string, err error)

func (b *Builder) config(t *Template, runtime Runtime, parts []store.Part) (json.RawMessage, error) {
	args, env, err := runtime.Command(t)
	if err != nil {
		return nil, err
	}
	c := Config{
		Base: t.Base, Handler: t.Handler, Args: args, Env: mergeEnv(env, t.Env),
		Protocol: ProtocolChannel, Tenant: t.Tenant,
		Instances: t.Instances, Resources: t.Resources, Network: t.Network,
	}
	if _, ok := runtime.(ForkServer); ok && t.Instances.Fork == ForkAuto && t.Network.Mode == NetworkNone {
		c.Forks = true
	}
	if len(runtime.Bootstrap()) == 0 && t.Instances.Isolation == IsolationEvent {
		c.Protocol = ProtocolStdio // kept warm, a program speaks the channel's protocol itself
	}
	if shell := runtime.Shell(t, c.Env); shell != nil && shell.holds(parts) {
		c.Shell = shell
	}
	return json.Marshal(c)
}

// mergeEnv sets the template's variables over the runtime's: with a name
// twice, libc and the languages disagree about which one counts.
func mergeEnv(runtime []string, template map[string]string) []string {
	var out []string
	for _, v := range runtime {
		name, _, _ := strings.Cut(v, "=")
		if _, ok := template[name]; !ok {
			out = append(out, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(template)) {
		out = append(out, name+"="+template[name])
	}
	return out
}

func (b *Builder) runtime(name string) (Runtime, error) {
	for _, r := range b.Runtimes {
		if r.Name() == name {
			return r, nil
		}
	}
	return nil, fmt.Errorf("%w %q", ErrUnknownBase, name)
}

func (b *Builder) log() *slog.Logger {
	if b.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return b.Log
}

// keyLock serialises the builds of one thing. Holding it is having taken the
// token out of the channel.
type keyLock struct {
	users int
	token chan struct{}
}

// lock waits until nobody else builds key. Whoever waited looks into the store
// again: most often what it wants is there now. That a waiter takes over when
// the first one is cancelled is why this is no singleflight.
func (b *Builder) lock(ctx context.Context, key string) (unlock func(), err error) {
	b.mu.Lock()
	if b.locks == nil {
		b.locks = map[string]*keyLock{}
	}
	l := b.locks[key]
	if l == nil {
		l = &keyLock{token: make(chan struct{}, 1)}
		l.token <- struct{}{}
		b.locks[key] = l
	}
	l.users++
	b.mu.Unlock()

	leave := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(b.locks, key)
		}
	}
	select {
	case <-l.token:
		return func() { l.token <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
