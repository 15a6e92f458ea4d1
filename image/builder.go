// Package image builds images from template directories. It reads the template, resolves and locks
// packages, and combines base, packages, bootstrap and code from the store's shared parts. A
// [Runtime] describes a language, a [Site] a source of packages.
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
	"github.com/fre-engine/fre/template"
)

// Builder builds images from templates. It is safe for concurrent use; the caller sets the fields
// before the first call.
type Builder struct {
	Store    *store.Store // required
	Bases    []Base       // required
	Runtimes []Runtime    // required
	Sites    []Site       // sources of packages
	Run      Runner       // required if a base, runtime or site runs programs
	Git      Repository   // required for templates with code from git
	Settings Settings

	// Archive opens the Debian archive of a release by its codename; "" means Release. Builder
	// calls Archive once for each base environment it builds, and drops the archive afterwards,
	// because the index is large.
	Archive func(release string) (Archive, error)

	// Release is the codename of the default release of bases; "" if unknown.
	Release string

	Images Images // source of bases that FRE does not make; nil: none

	Log *slog.Logger // nil: discarded

	mu    sync.Mutex
	locks map[string]*keyLock // by image name: builds under way
}

// Archive is a source of Debian packages: *debian.Archive.
type Archive interface {
	Codename() string
	Resolve(ctx context.Context, roots, exclude []string) ([]debian.Package, error)
	ResolveOver(ctx context.Context, requests []string, installed map[string]string, exclude []string) ([]debian.Package, error)
	ResolveLibraries(ctx context.Context, sonames []string, installed map[string]string, exclude []string, has func(soname string) bool) ([]debian.Package, error)
	Find(ctx context.Context, name, version string) (debian.Package, error)
	Extract(ctx context.Context, p debian.Package, w debian.Writer, keep func(path string) bool) (skipped []string, err error)
	Unpack(ctx context.Context, pkgs []debian.Package, w debian.Writer, keep func(path string) bool, report func(name string, done, total int64)) error
}

// Parse reads a fret.yaml with the builder's bases, runtimes and sites, without comparing the
// template with them. Errors: [template.Errors].
func (b *Builder) Parse(name string, src []byte) (*template.Template, error) {
	return Dialect(b.Bases, b.Runtimes, b.Sites).Parse(name, src)
}

// Template reads the template in dir as [Builder.Parse] does. Errors also: fs.ErrNotExist without a
// fret.yaml.
func (b *Builder) Template(dir *os.Root) (*template.Template, error) {
	src, err := readSmall(dir, template.FileName, template.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: run the command in a function's directory, or create a function with fre new", err)
	}
	if err != nil {
		return nil, err
	}
	return b.Parse(template.FileName, src)
}

// Build makes the image of t, the template in dir, which holds perhaps fret.lock. Build changes t. It
// reuses parts already in the store. Build only reads dir: the caller writes the returned lock with
// [WriteLock]. A pipeline has no lock: the returned lock is nil.
//
// Unless nil, report is called by one goroutine at a time.
//
// Errors: [template.Errors] with file, line and column for faults in the template or lock;
// *[PackageError] for packages and their sites; *[ExitError] for a failed build step; *[LockError]
// and [ErrOffline] if the options ([WithOptions]) forbid a necessary step; an errno of the store, for
// example ENOSPC. After an error or cancellation only whole
// parts remain in the store.
func (b *Builder) Build(ctx context.Context, dir *os.Root, t *template.Template, report func(Progress)) (*store.Image, *Lock, error) {
	report = serial(report)
	if err := CheckTemplate(t, b.Bases, b.Runtimes, b.Sites); err != nil {
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
		return nil, nil, t.Fault(err)
	}
	locked, err := ReadLock(dir, b.Sites)
	if err != nil {
		return nil, nil, err
	}
	img, lock, err := b.build(ctx, dir, t, locked, report)
	if err == nil {
		return img, lock, nil
	}
	err = t.Fault(debianFault(err))
	var placed template.Errors
	if !errors.As(err, &placed) { // the place says more than the name
		err = fmt.Errorf("build %s: %w", t.ID, err)
	}
	return nil, nil, err
}

func (b *Builder) build(ctx context.Context, dir *os.Root, t *template.Template, locked *Lock, report func(Progress)) (*store.Image, *Lock, error) {
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

	lock := newLock(b.Sites, LockedBase{Name: t.Base, Digest: base.digest, Packages: base.debs}, locked)
	lock.Git = locked.GitFor(t)
	of := buildOf{dir: dir, t: t, base: base.image, debs: base.debs, release: base.release, env: base.env, left: base.left, lock: lock, labels: OptionsOf(ctx).Labels, report: report}
	if t.ForeignBase() { // before any work is done for the build
		if of.program, err = b.interpret(ctx, &of, runtime); err != nil {
			return nil, nil, err
		}
	}
	if err := b.projectRequests(ctx, &of, runtime); err != nil {
		return nil, nil, err
	}
	lock.prune(t)
	lock.Deb = locked.DebFor(t, lock.Base)
	if locked != nil && t.Code.Build != nil {
		lock.Build = locked.Build // each use checks whether the section still matches
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

	report(Progress{Step: "code", Name: t.ID})
	code, err := b.code(ctx, &of, runtime)
	if err != nil {
		return nil, nil, err
	}
	report(Progress{Step: "code", Name: t.ID, End: true})
	parts = append(parts, code)
	if held {
		if err := locked.drift(lock, nil); err != nil {
			return nil, nil, err
		}
		if !maps.Equal(locked.Base.Packages, lock.Base.Packages) {
			report(Progress{Step: "warning", Name: t.Base, Message: "the base environment's versions differ from the record in " + LockFile})
		}
		lock = locked
	}

	config, err := b.config(&of, runtime, parts)
	if err != nil {
		return nil, nil, err
	}
	report(Progress{Step: "link", Name: t.ID + ":" + t.Version})
	img, err := b.Store.PutImage(ctx, store.Manifest{Name: t.ID, Version: t.Version, Parts: parts, Config: config})
	if err != nil {
		return nil, nil, err
	}
	report(Progress{Step: "link", Name: t.ID + ":" + t.Version, Done: img.Size, Unit: UnitBytes, End: true})
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
func (b *Builder) environmentOf(ctx context.Context, dir *os.Root, t *template.Template, locked *Lock, report func(Progress)) (*environmentOf, error) {
	ref, err := template.ParseBase(t.Base)
	if err != nil {
		return nil, err
	}
	if ref.Kind != template.BaseDebian {
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

// buildOf is the state shared by the steps of one Build.
type buildOf struct {
	dir     *os.Root // the template's directory
	t       *template.Template
	base    *store.Image
	debs    map[string]string // Debian packages of the base and their versions
	release string            // of the base; "" for the host's release
	env     []string          // environment of a base that FRE did not make
	program string            // runs the function, in a base that FRE did not make
	left    *LeftOut          // of the base
	lock    *Lock             // the lock of this build
	labels  map[string]string // of the image

	programs []string // directories of links to the packages' programs: see [Programs]
	report   func(Progress)
}

// read reads the files with requests for packages that the template names.
func (b *Builder) read(t *template.Template, dir *os.Root) error {
	for _, site := range b.Sites {
		r := t.Packages.Of(site.Name())
		if r.File == "" {
			continue
		}
		if err := readRequests(r, dir, site); err != nil {
			field := "packages." + site.Name()
			return &template.FieldError{Field: field, Message: fmt.Sprintf("%s: %s", field, err)}
		}
	}
	return nil
}

// maxRequestFiles exceeds the number of requirement files that include each other in practice.
const maxRequestFiles = 64

func readRequests(r *template.Requests, dir *os.Root, site Site) (err error) {
	if r.Text, err = readSmall(dir, r.File, template.MaxBytes); err != nil {
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

// serial serialises calls of report, because a runtime may report from several goroutines.
func serial(report func(Progress)) func(Progress) {
	if report == nil {
		return func(Progress) {}
	}
	var mu sync.Mutex
	return func(e Progress) {
		mu.Lock()
		defer mu.Unlock()
		report(e)
	}
}

// packages has the sites install the requested packages, in the order of b.Sites.
func (b *Builder) packages(ctx context.Context, of *buildOf) ([]store.Part, error) {
	var parts []store.Part
	for _, site := range b.Sites {
		if r := of.t.Packages.Of(site.Name()); r.None() {
			continue
		}
		of.report(Progress{Step: "packages", Message: site.Name()})
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
		of.report(Progress{Step: "packages", Message: site.Name(), End: true})
	}
	of.lock.prune(of.t) // otherwise sections that answer no request would stay for ever
	return parts, nil
}

// step calls f with a Step in the base environment.
func (b *Builder) step(of *buildOf, f func(*Step) error) error {
	if !of.t.ForeignBase() {
		return b.stepIn(of.release, b.Store.Rootfs(of.base.Digest), nil, of.dir, of.report, func(s *Step) error {
			s.Debian = of.debs
			return f(s)
		})
	}
	// Tools come from FRE's own bases.
	return b.stepIn("", b.Store.Rootfs(of.base.Digest), of.env, of.dir, of.report, func(s *Step) error {
		s.Platform = strings.TrimPrefix(string(of.base.Digest), "sha256:")[:12]
		return f(s)
	})
}

// stepIn calls f with a Step. The Step's scratch directory exists during the call, and its tools
// are of the given release.
func (b *Builder) stepIn(release, rootfs string, env []string, dir *os.Root, report func(Progress), f func(*Step) error) error {
	scratch, err := b.Store.MkdirScratch()
	if err != nil {
		return err
	}
	err = f(&Step{
		Rootfs: rootfs, Path: searchPath(env), Dir: dir, Store: b.Store, Run: guard{b.Run}, Settings: b.Settings, Report: report, Scratch: scratch,
		Tools: func(ctx context.Context, base string, packages ...string) (string, error) {
			img, err := b.tools(ctx, template.BaseRef{Name: base, Release: release}, packages, report)
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
	if t.Events != template.DefaultEvents() {
		c.Events = &t.Events
	}
	if _, ok := runtime.(ForkServer); ok && t.Instances.Fork == template.ForkAuto && t.Network.Mode == template.NetworkNone {
		c.Forks = true
	}
	if t.Contract != template.ContractFRE {
		c.Contract = t.Contract
	}
	if t.Contract == template.ContractStdio {
		c.Protocol = ProtocolStdio
	}
	// The engine enters the namespaces of a parked interpreter, so only programs of FRE and of the
	// distribution may have run there.
	if interpreter := runtime.Parked(t, env); interpreter != nil && interpreter.holds(parts) && !t.ForeignBase() {
		c.Parked = interpreter
	}
	return json.Marshal(c)
}

// environment returns the variables of the runtime, then of the package sites in use, then of the
// template. A site does not replace a variable of the runtime; the template does.
func (b *Builder) environment(t *template.Template, runtime []string) []string {
	env := slices.Clone(runtime)
	for _, site := range b.Sites {
		if r := t.Packages.Of(site.Name()); r.None() {
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

// withProgramDirs puts missing dirs at the front of PATH, if env has a PATH.
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

// mergeEnv replaces the runtime's variables by the template's. A name must not occur twice: libc
// and the languages disagree about which value counts.
func mergeEnv(runtime []string, own map[string]string) []string {
	var out []string
	for _, v := range runtime {
		name, _, _ := strings.Cut(v, "=")
		if _, ok := own[name]; !ok {
			out = append(out, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		out = append(out, name+"="+own[name])
	}
	return out
}

// runtime finds a runtime by name and contract; contract "" means fre.
func (b *Builder) runtime(name string, contract template.Contract) (Runtime, error) {
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

// keyLock serialises the builds of one key. The holder has taken the token from the channel.
type keyLock struct {
	users int
	token chan struct{}
}

// lock waits until no other build of key runs. A caller that waited looks into the store again,
// because the result is usually there now. It is not a singleflight, so that a waiter can take over
// when the first builder is cancelled.
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
