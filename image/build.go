package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

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
	packages, err := b.installDebs(ctx, &of)
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

// code makes the part with the function's files. Modes are normalised. File times are kept, because
// caches of languages compare them; directory times are not, because an editor's temporary file
// changes them. On the way code checks the handler, in the code and in the base. source.go makes
// the output of a [CodeBuilder].
func (b *Builder) code(ctx context.Context, of *buildOf, runtime Runtime) (store.Part, error) {
	part := store.Part{Kind: "code", Name: of.t.ID, Version: of.t.Version, Prefix: codePrefix}
	err := b.withSource(ctx, of, func(source *os.Root) (err error) {
		if of.t.Code.Build != nil {
			part.Tree, err = b.runBuild(ctx, of, source)
			return err
		}
		if builder, ok := runtime.(CodeBuilder); ok && !OptionsOf(ctx).AsIs {
			if built, err := b.built(ctx, of, source, builder); err != nil || built.Tree != "" {
				part.Tree = built.Tree
				return err
			}
		}
		part.Tree, err = b.storeCode(ctx, of, source, of.t.Code.Path)
		return err
	})
	if err == nil {
		err = b.checkSyntax(ctx, of, runtime, part.Tree)
	}
	if of.t.Code.Git != nil && err == nil {
		part.Hash = "git:" + of.lock.Git.Commit
	}
	return part, err
}
