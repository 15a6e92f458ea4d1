package python

import (
	"context"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// Packages makes one part for each package version at opt/python, with compiled bytecode. It
// fetches no package if the lock answers the request and the store has its parts.
func (r Site) Packages(ctx context.Context, step *image.Step, t *template.Template, lock *image.Lock) ([]store.Part, error) {
	program, v, err := interpreter(step)
	if err != nil {
		return nil, err
	}
	site := &site{step: step, python: program, version: v, tools: r.Tools, compilers: r.Compilers, index: t.Packages.Of("pip").Index}
	locked, ok := lock.Sites[r.Name()].(*Locked)
	if !ok {
		if locked, err = site.lock(ctx, t.Packages.Of("pip")); err != nil {
			return nil, err
		}
		lock.Sites[r.Name()] = locked
	}
	parts, missing := site.inStore(locked.Packages)
	if len(missing) == 0 {
		return parts, nil
	}
	names := make([]string, len(missing))
	for i, m := range missing {
		names[i] = locked.Packages[m].Name + " " + locked.Packages[m].Version
	}
	if err := image.Offline(ctx, "packages.pip: "+strings.Join(names, ", ")); err != nil {
		return nil, err
	}
	pinned, wheels, err := site.buildMissing(ctx, locked.Packages, parts, missing)
	if err != nil {
		return nil, err
	}
	if pinned != nil {
		lock.Sites[r.Name()] = newLocked(locked.Request, site.index, pinned)
	}
	if len(wheels) > 0 {
		err = site.install(ctx, locked.Packages, parts, wheels)
	}
	return parts, err
}

// lock resolves the requests.
func (s *site) lock(ctx context.Context, r *template.Requests) (*Locked, error) {
	if err := image.Offline(ctx, "an answer to packages.pip"); err != nil {
		return nil, err
	}
	s.step.Report(image.Progress{Step: "packages", Message: "resolve"})
	packages, err := s.resolve(ctx, r)
	if err != nil {
		return nil, err
	}
	return newLocked(r.Key(), s.index, packages), nil
}

// inStore returns the parts of packages, and the indexes of those that the store lacks.
func (s *site) inStore(packages []image.LockedPackage) (parts []store.Part, missing []int) {
	parts = make([]store.Part, len(packages))
	for i, p := range packages {
		part, ok := s.step.Store.Part(s.key(p))
		if len(p.Hashes) == 1 {
			part.Hash = p.Hashes[0]
		}
		if parts[i] = part; !ok {
			missing = append(missing, i)
		}
	}
	return parts, missing
}

// buildMissing builds the missing packages that come as source, sets their parts, and returns the
// indexes of the others, which are wheels. An old lock does not pin the packages for a build: then
// buildMissing also returns all packages, with these pinned; else nil.
func (s *site) buildMissing(ctx context.Context, packages []image.LockedPackage, parts []store.Part, missing []int) (pinned []image.LockedPackage, wheels []int, err error) {
	for _, m := range missing {
		p := packages[m]
		if p.Source == "" {
			wheels = append(wheels, m)
			continue
		}
		made, part, err := s.fromSource(ctx, p, nil)
		if err != nil {
			return nil, nil, err
		}
		if parts[m] = part; len(p.Requires) == len(made.Requires) {
			continue
		}
		if image.OptionsOf(ctx).Locked {
			if err := s.step.Store.PutPart(ctx, s.key(p), part); err != nil {
				return nil, nil, err
			}
			continue
		}
		if pinned == nil {
			pinned = slices.Clone(packages)
		}
		pinned[m] = made
	}
	return pinned, wheels, nil
}
