// Package image makes images of template directories: it reads the template,
// resolves and locks its packages, and puts base, packages, bootstrap and code
// together from the store's shared parts. What differs by language is a
// [Runtime], what differs by ecosystem a [Site].
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
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/store"
)

// Builder makes images out of templates. It is safe for use by several
// goroutines; its fields are set before the first call.
type Builder struct {
	Store    *store.Store // required
	Bases    []Base       // required
	Runtimes []Runtime    // required
	Sites    []Site       // of packages
	Run      Runner       // required by bases, runtimes and sites that run something
	Git      Repository   // required by templates with code from git
	Settings Settings

	// Archive opens the Debian archive of a release, by its codename; "" is
	// Release. It is called once for each base environment that has to be built: an
	// archive's index is large, and is let go afterwards.
	Archive func(release string) (Archive, error)

	// Release is the codename of the release that a base is of where the template
	// names none; "" where nobody knows.
	Release string

	Images Images // where bases that FRE does not make come from; nil: nowhere

	Log *slog.Logger // nil: discarded

	mu    sync.Mutex
	locks map[string]*keyLock // what is being built now, by image name
}

// Archive is where Debian packages come from: *debian.Archive.
type Archive interface {
	Codename() string
	Resolve(ctx context.Context, roots, exclude []string) ([]debian.Package, error)
	ResolveOver(ctx context.Context, requests []string, installed map[string]string, exclude []string) ([]debian.Package, error)
	ResolveLibraries(ctx context.Context, sonames []string, installed map[string]string, exclude []string, has func(soname string) bool) ([]debian.Package, error)
	Find(ctx context.Context, name, version string) (debian.Package, error)
	Extract(ctx context.Context, p debian.Package, w debian.Writer, keep func(path string) bool) (skipped []string, err error)
	Unpack(ctx context.Context, pkgs []debian.Package, w debian.Writer, keep func(path string) bool, report func(name string, done, total int64)) error
}

// TemplateIn reads the template in dir, unchecked against what there is to build with.
func TemplateIn(dir *os.Root) (*Template, error) {
	src, err := readSmall(dir, TemplateFile, maxTemplateBytes)
	if err != nil {
		return nil, err
	}
	return ParseTemplate(TemplateFile, src)
}

// Build makes the image of the template in dir, which holds fret.yaml and
// perhaps fret.lock. Parts the store has already are not made again. dir is
// only read: the caller writes the lock that comes back with [WriteLock].
//
// report, when not nil, is called by one goroutine at a time.
// Errors: [TemplateErrors] with file, line and column for what the template
// or lock says wrong; *[PackageError] for packages and their sites; *[ExitError] for
// a build step that failed;
// *[LockError] and [ErrOffline] where its options ([WithOptions]) forbid what would
// be needed; fs.ErrNotExist without a fret.yaml; an errno such as ENOSPC of the store.
// After an error or cancelling nothing is left but parts that are whole. A pipeline has
// nothing to lock: its lock is nil.
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
	if err := t.Check(b.Bases, b.Runtimes, b.Sites); err != nil {
		return nil, nil, err
	}
	if len(t.Pipeline) > 0 {
		img, err := b.buildPipeline(ctx, t, report)
		if err != nil {
			err = fmt.Errorf("build %s: %w", t.ID, err)
		}
		return img, nil, err
	}
	if err := b.read(t, dir); err != nil {
		return nil, nil, t.fault(err)
	}
	locked, err := ReadLock(dir)
	if err != nil {
		return nil, nil, err
	}
	img, lock, err := b.build(ctx, dir, t, locked, report)
	if err == nil {
		return img, lock, nil
	}
	err = t.fault(debianFault(err))
	var placed TemplateErrors
	if !errors.As(err, &placed) { // the place says more than the name
		err = fmt.Errorf("build %s: %w", t.ID, err)
	}
	return nil, nil, err
}

func (b *Builder) build(ctx context.Context, dir *os.Root, t *Template, locked *Lock, report func(Event)) (*store.Image, *Lock, error) {
	defer b.Store.Hold()()
	runtime, err := b.runtime(t.Runtime, t.Contract)
	if err != nil {
		return nil, nil, err
	}
	base, err := b.environmentOf(ctx, dir, t, locked, report)
	if err != nil {
		return nil, nil, err
	}
	parts := slices.Clone(base.image.Parts)

	lock := &Lock{
		Version: lockVersion,
		Base:    LockedBase{Name: t.Base, Digest: base.digest, Packages: base.debs},
		Git:     locked.GitFor(t),
	}
	of := buildOf{dir: dir, t: t, base: base.image, debs: base.debs, release: base.release, env: base.env, left: base.left, lock: lock, labels: OptionsOf(ctx).Labels, report: report}
	if t.ForeignBase() { // before anything is made for it
		if of.program, err = b.interpret(ctx, &of, runtime); err != nil {
			return nil, nil, err
		}
	}
	if err := b.projectRequests(ctx, &of, runtime); err != nil {
		return nil, nil, err
	}
	lock.Pip, lock.NPM, lock.Maven, lock.Composer = locked.PipFor(t), locked.NPMFor(t), locked.MavenFor(t), locked.ComposerFor(t)
	lock.Gem = locked.GemFor(t)
	lock.Deb = locked.DebFor(t, lock.Base)
	if locked != nil && t.Code.Build != nil {
		lock.Build = locked.Build // what of it answers is seen when it is used
	}
	held := OptionsOf(ctx).Locked
	if held {
		if err := locked.drift(lock, b.asked(t)); err != nil {
			return nil, nil, err
		}
	}
	packages, err := b.debs(ctx, &of)
	if err != nil {
		return nil, nil, err
	}
	parts = append(parts, packages...)
	if packages, err = b.packages(ctx, &of); err != nil {
		return nil, nil, err
	}
	parts = append(parts, packages...)

	if files := runtime.Bootstrap(); len(files) > 0 {
		part, err := b.bootstrap(ctx, &of, runtime, files)
		if err != nil {
			return nil, nil, err
		}
		parts = append(parts, part)
	}

	report(Event{Step: "code", Name: t.ID})
	code, err := b.code(ctx, &of, runtime)
	if err != nil {
		return nil, nil, err
	}
	report(Event{Step: "code", Name: t.ID, End: true})
	parts = append(parts, code)
	if held {
		if err := locked.drift(lock, nil); err != nil {
			return nil, nil, err
		}
		if !maps.Equal(locked.Base.Packages, lock.Base.Packages) {
			report(Event{Step: "warning", Name: t.Base, Message: "the base environment holds other versions than " + LockFile + " has on record"})
		}
		lock = locked
	}

	config, err := b.config(&of, runtime, parts)
	if err != nil {
		return nil, nil, err
	}
	report(Event{Step: "link", Name: t.ID + ":" + t.Version})
	img, err := b.Store.PutImage(ctx, store.Manifest{Name: t.ID, Version: t.Version, Parts: parts, Config: config})
	if err != nil {
		return nil, nil, err
	}
	report(Event{Step: "link", Name: t.ID + ":" + t.Version, Done: img.Size, Unit: UnitBytes, End: true})
	if err := b.warnOverlaps(&of, img); err != nil {
		return nil, nil, err
	}
	if !t.ForeignBase() {
		if err := b.warnMissing(&of, img); err != nil {
			return nil, nil, err
		}
	}
	return img, lock, nil
}

// environmentOf finds or makes the base environment of a template.
func (b *Builder) environmentOf(ctx context.Context, dir *os.Root, t *Template, locked *Lock, report func(Event)) (*environmentOf, error) {
	ref, err := ParseBase(t.Base)
	if err != nil {
		return nil, err
	}
	if ref.Kind != BaseDebian {
		var before LockedBase
		if locked != nil {
			before = locked.Base
		}
		return b.foreign(ctx, dir, ref, before, report)
	}
	img, err := b.baseWith(ctx, t.Base, t.Slim, t.Keep, report)
	if err != nil {
		return nil, err
	}
	c, err := ConfigOf(img)
	return &environmentOf{image: img, release: ref.Release, debs: c.Packages, left: c.LeftOut}, err
}

// buildOf is what the steps of one Build share.
type buildOf struct {
	dir     *os.Root // the template's
	t       *Template
	base    *store.Image
	debs    map[string]string // of the base: Debian packages and their versions
	release string            // of the base; "" for the host's own
	env     []string          // of the base, where FRE did not make it
	program string            // that runs the function, in a base that FRE did not make
	left    *LeftOut          // of the base
	lock    *Lock             // that of this build
	labels  map[string]string // of the image

	programs []string // directories of the packages' programs that have links: see [Programs]
	report   func(Event)
}

// read reads the files that the template names for its packages.
func (b *Builder) read(t *Template, dir *os.Root) error {
	for _, site := range b.Sites {
		r := t.Packages.of(site.Name())
		if r == nil || r.File == "" {
			continue
		}
		if err := r.read(dir, site); err != nil {
			field := "packages." + site.Name()
			return &FieldError{field, fmt.Sprintf("%s: %s", field, err)}
		}
	}
	return nil
}

// maxRequestFiles is more than files of requirements that name each other are.
const maxRequestFiles = 64

func (r *Requests) read(dir *os.Root, site Site) (err error) {
	if r.Text, err = readSmall(dir, r.File, maxTemplateBytes); err != nil {
		return err
	}
	reader, ok := site.(RequestReader)
	if !ok {
		return nil
	}
	r.Beside = map[string][]byte{}
	return reader.ReadRequests(r, func(name string) ([]byte, error) {
		name = path.Clean(name)
		if text, ok := r.Beside[name]; ok {
			return text, nil
		}
		if len(r.Beside) == maxRequestFiles {
			return nil, fmt.Errorf("%s names more than %d further files", r.File, maxRequestFiles)
		}
		text, err := readSmall(dir, name, maxLockBytes)
		if err != nil {
			return nil, err
		}
		r.Beside[name] = text
		return text, nil
	})
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

// packages has the sites install what the template asks of them, in their order.
func (b *Builder) packages(ctx context.Context, of *buildOf) ([]store.Part, error) {
	var parts []store.Part
	for _, site := range b.Sites {
		if r := of.t.Packages.of(site.Name()); r == nil || r.None() {
			continue
		}
		of.report(Event{Step: "packages", Message: site.Name()})
		err := b.step(of, func(s *Step) error {
			more, err := site.Packages(ctx, s, of.t, of.lock)
			if err != nil {
				return err
			}
			parts = append(parts, more...)
			p, ok := site.(Programs)
			if !ok {
				return nil
			}
			links, dir, err := p.Programs(ctx, s, of.lock)
			if err == nil && links.Tree != "" {
				parts, of.programs = append(parts, links), append(of.programs, path.Join("/", dir))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		of.report(Event{Step: "packages", Message: site.Name(), End: true})
	}
	// A section that does not answer the request would be ignored for ever.
	of.lock.Pip, of.lock.NPM, of.lock.Maven = of.lock.PipFor(of.t), of.lock.NPMFor(of.t), of.lock.MavenFor(of.t)
	of.lock.Composer, of.lock.Gem = of.lock.ComposerFor(of.t), of.lock.GemFor(of.t)
	return parts, nil
}

// step calls f with a Step over the base environment.
func (b *Builder) step(of *buildOf, f func(*Step) error) error {
	if !of.t.ForeignBase() {
		return b.stepIn(of.release, b.Store.Rootfs(of.base.Digest), nil, of.dir, of.report, func(s *Step) error {
			s.Debian = of.debs
			return f(s)
		})
	}
	// Tools are FRE's own.
	return b.stepIn("", b.Store.Rootfs(of.base.Digest), of.env, of.dir, of.report, func(s *Step) error {
		s.Platform = strings.TrimPrefix(string(of.base.Digest), "sha256:")[:12]
		return f(s)
	})
}

// stepIn calls f with a Step whose scratch directory lives as long as the call. Its
// tools are of the same release.
func (b *Builder) stepIn(release, rootfs string, env []string, dir *os.Root, report func(Event), f func(*Step) error) error {
	scratch, err := b.Store.MkdirScratch()
	if err != nil {
		return err
	}
	err = f(&Step{
		Rootfs: rootfs, Path: searchPath(env), Dir: dir, Store: b.Store, Run: guard{b.Run}, Settings: b.Settings, Report: report, Scratch: scratch,
		Tools: func(ctx context.Context, base string, packages ...string) (string, error) {
			img, err := b.tools(ctx, BaseRef{Name: base, Release: release}, packages, report)
			if err != nil {
				return "", err
			}
			return b.Store.Rootfs(img.Digest), nil
		},
	})
	return errors.Join(err, linux.RemoveAll(scratch))
}

func (b *Builder) config(of *buildOf, runtime Runtime, parts []store.Part) (json.RawMessage, error) {
	t := of.t
	args, env, err := runtime.Command(t)
	if err != nil {
		return nil, err
	}
	if t.ForeignBase() {
		args = append([]string{of.program}, args[1:]...)
		env = withPath(env, searchPath(of.env))
	}
	env = b.environment(t, env)
	c := Config{
		Base: t.Base, Runtime: t.Runtime, Handler: t.Handler, Args: args, Env: under(of.env, env),
		Protocol: ProtocolChannel, Tenant: t.Tenant,
		Instances: t.Instances, Resources: t.Resources, Network: t.Network, LeftOut: of.left, Keep: t.Keep,
		Secrets: t.Secrets, Access: t.Access, CORS: t.CORS, Labels: of.labels,
	}
	c.Triggers = t.Triggers
	if t.Events != DefaultEvents() {
		c.Events = &t.Events
	}
	if _, ok := runtime.(ForkServer); ok && t.Instances.Fork == ForkAuto && t.Network.Mode == NetworkNone {
		c.Forks = true
	}
	if t.Contract != ContractFRE {
		c.Contract = t.Contract
	}
	if t.Contract == ContractStdio {
		c.Protocol = ProtocolStdio
	}
	// The engine visits the namespaces of a runtime shell: no program that others
	// made may have run in there.
	if shell := runtime.Shell(t, env); shell != nil && shell.holds(parts) && !t.ForeignBase() {
		c.Shell = shell
	}
	return json.Marshal(c)
}

// environment is the runtime's, that of the package sites in use where the runtime
// says nothing of it, and the template's.
func (b *Builder) environment(t *Template, runtime []string) []string {
	env := slices.Clone(runtime)
	for _, site := range b.Sites {
		if r := t.Packages.of(site.Name()); r == nil || r.None() {
			continue
		}
		if p, ok := site.(ProgramDirs); ok {
			env = withProgramDirs(env, p.ProgramDirs())
		}
		for _, v := range site.Env() {
			name, _, _ := strings.Cut(v, "=")
			if !slices.ContainsFunc(env, func(have string) bool { return strings.HasPrefix(have, name+"=") }) {
				env = append(env, v)
			}
		}
	}
	return mergeEnv(env, t.Env)
}

// withProgramDirs has env's PATH begin with dirs, where it has one and they are not in it.
func withProgramDirs(env, dirs []string) []string {
	for i, v := range env {
		if at, ok := strings.CutPrefix(v, "PATH="); ok {
			have := strings.Split(at, ":")
			dirs = slices.DeleteFunc(slices.Clone(dirs), func(dir string) bool { return slices.Contains(have, dir) })
			env[i] = "PATH=" + strings.Join(slices.Concat(dirs, have), ":")
		}
	}
	return env
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

// runtime finds the one of that name for functions of a contract, "" for fre.
func (b *Builder) runtime(name string, contract Contract) (Runtime, error) {
	for _, r := range b.Runtimes {
		if r.Name() != name {
			continue
		}
		if of := ofContract(r, contract); of != nil {
			return of, nil
		}
	}
	return nil, fmt.Errorf("unknown runtime %q for the contract %q", name, contract)
}

func (b *Builder) base(name string) (*Base, error) {
	for i := range b.Bases {
		if b.Bases[i].Name == name {
			return &b.Bases[i], nil
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
