package java

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Packages makes one part for each jar, at opt/java. It fetches no jar if the lock answers the
// request and the store has its parts.
func (r Site) Packages(ctx context.Context, s *image.Step, t *template.Template, lock *image.Lock) ([]store.Part, error) {
	site := &site{Site: r, step: s}
	section, ok := lock.Sites[r.Name()].(*Locked)
	if !ok {
		section, parts, err := site.resolve(ctx, t.Packages.Of("maven"))
		if err == nil {
			lock.Sites[r.Name()] = section
		}
		return parts, err
	}
	all := section.jars()
	parts := make([]store.Part, len(all))
	missing := false
	for i, p := range all {
		part, ok := s.Store.Part(key(p))
		part.Hash = p.Hashes[0]
		parts[i], missing = part, missing || !ok
	}
	if missing {
		return site.install(ctx, section)
	}
	return parts[:len(section.Packages)], nil
}

// resolve returns the lock's section for the requests, and the parts of its jars.
func (s *site) resolve(ctx context.Context, r *template.Requests) (*Locked, []store.Part, error) {
	of := resolution{pom: project(r.List, false), shared: true}
	if r.File != "" {
		p, err := parsePom(r.Text)
		if err != nil {
			return nil, nil, err
		}
		of.provided = p.provides()
		if of.pom, of.shared = p.plain(); !of.shared {
			of.pom = r.Text // the file may name extensions, which are programs
		}
		if of.shared && len(p.Dependencies) == 0 && !of.provided {
			return &Locked{LockedPackages: image.LockedPackages{Request: r.Key(), Packages: []image.LockedPackage{}}}, nil, nil
		}
	}
	s.step.Report(image.Progress{Step: "packages", Message: "resolve"})
	jars, provided, err := s.fetch(ctx, of)
	if err != nil {
		return nil, nil, err
	}
	return &Locked{image.LockedPackages{Request: r.Key(), Packages: locked(jars)}, locked(provided)}, inStore(jars), nil
}

// install fetches the locked jars, and returns the parts of the jars for the run time.
func (s *site) install(ctx context.Context, section *Locked) ([]store.Part, error) {
	all := section.jars()
	requests := make([]string, len(all))
	for i, p := range all {
		group, artifact, classifier := coordinates(p)
		requests[i] = group + ":" + artifact + ":" + p.Version
		if classifier != "" {
			requests[i] += ":" + classifier
		}
	}
	s.step.Report(image.Progress{Step: "packages", Message: "install", Total: int64(len(all))})
	jars, _, err := s.fetch(ctx, resolution{pom: project(requests, true), shared: true, locked: all})
	if err != nil {
		return nil, err
	}
	if len(jars) != len(all) {
		return nil, fmt.Errorf("%s names %d jars, the repositories gave %d: delete the file to resolve again", image.LockFile, len(all), len(jars))
	}
	jars = slices.DeleteFunc(jars, func(j jarPart) bool {
		return slices.ContainsFunc(section.Provided, func(p image.LockedPackage) bool { return key(p) == key(j.LockedPackage) })
	})
	return inStore(jars), nil
}

// resolution is a task for Maven.
type resolution struct {
	pom      []byte
	shared   bool                  // use the local repository that builds share: no program of the project runs
	provided bool                  // include the compiler's dependencies
	locked   []image.LockedPackage // unless nil, the jars must be exactly these
}

// fetch has Maven resolve a project. It makes a part of each jar for the run time (jars) and of
// each further jar for the compiler (provided).
func (s *site) fetch(ctx context.Context, of resolution) (jars, provided []jarPart, err error) {
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(b.Write(pomFile, of.pom), b.Mkdir("out")); err != nil {
		return nil, nil, err
	}
	found, err := s.classPath(ctx, b, of.shared, "runtime")
	if err != nil {
		return nil, nil, err
	}
	needed := len(found)
	if of.provided {
		more, err := s.classPath(ctx, b, of.shared, "compile")
		if err != nil {
			return nil, nil, err
		}
		found = append(found, slices.DeleteFunc(more, func(j jarFile) bool { return slices.Contains(found, j) })...)
	}
	from, err := s.repository(b, of.shared)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = from.Close() }()
	for n, j := range found {
		part, p, err := s.jarPart(ctx, b, from, j, n, of.locked)
		if err != nil {
			return nil, nil, err
		}
		jars = append(jars, jarPart{p, part})
		s.step.Report(image.Progress{Step: "packages", Name: j.name + " " + j.version, Done: int64(n + 1), Total: int64(len(found))})
	}
	return jars[:needed], jars[needed:], nil
}

// classPath has Maven resolve the bench's project for a scope, "runtime" or "compile".
func (s *site) classPath(ctx context.Context, b *install.Bench, shared bool, scope string) ([]jarFile, error) {
	repository, cache := "/work/repository", ""
	if shared {
		repository, cache = "/run", "maven"
	}
	words, err := s.maven(ctx, b, repository, cache, "-Dmdep.outputFile=/work/out/"+scope, "-DincludeScope="+scope, dependencyPlugin+":build-classpath")
	if err != nil {
		return nil, failed(err, words)
	}
	list, err := b.Read("out/" + scope)
	if err != nil {
		return nil, fmt.Errorf("maven: %w", err)
	}
	return parseClassPath(string(list), repository)
}

// repository opens Maven's local repository. A private repository may hold links that a program of
// the project made: they do not lead out of the bench.
func (s *site) repository(b *install.Bench, shared bool) (*os.Root, error) {
	if !shared {
		return b.Open("repository")
	}
	dir, err := install.Cache(s.step.Store, "maven")
	if err != nil {
		return nil, err
	}
	return os.OpenRoot(dir)
}

// jarPart makes the part of the nth jar in the local repository from.
func (s *site) jarPart(ctx context.Context, b *install.Bench, from *os.Root, j jarFile, n int, locked []image.LockedPackage) (store.Part, image.LockedPackage, error) {
	fail := func(err error) (store.Part, image.LockedPackage, error) {
		var known *image.PackageError
		if !errors.As(err, &known) { // a PackageError names the package itself
			err = fmt.Errorf("%s %s: %w", j.name, j.version, err)
		}
		return store.Part{}, image.LockedPackage{}, err
	}
	out := fmt.Sprintf("jars/%d", n)
	if err := b.Mkdir(out); err != nil {
		return fail(err)
	}
	dir, err := b.Open(out)
	if err != nil {
		return fail(err)
	}
	hash, err := copyJar(from, j.path, dir)
	if err := errors.Join(err, dir.Close()); err != nil {
		return fail(err)
	}
	p := image.LockedPackage{Name: j.name, Version: j.version, Hashes: []string{hash}}
	if locked != nil {
		i := slices.IndexFunc(locked, func(l image.LockedPackage) bool { return l.Name == p.Name && l.Version == p.Version })
		if i < 0 || locked[i].Hashes[0] != hash {
			return fail(&image.PackageError{Site: "maven", Package: p.Name + " " + p.Version, Cause: image.PackageChanged, Message: "hash mismatch: the repository's has " + hash})
		}
	}
	if part, ok := s.step.Store.Part(key(p)); ok {
		part.Hash = hash
		return part, p, nil
	}
	part, err := b.Put(ctx, key(p), store.Part{Kind: "maven", Name: p.Name, Version: p.Version, Prefix: jars, Hash: hash}, out, func(string) bool { return false })
	if err != nil {
		return fail(err)
	}
	return part, p, nil
}
