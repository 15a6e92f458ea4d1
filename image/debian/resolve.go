package debian

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"pault.ag/go/debian/version"
)

// Resolve returns the roots and their dependencies, sorted by name, each in its newest version.
// Pre-Depends and Depends count, Recommends do not. Of alternatives, a package that is already
// taken wins, then the first that can be satisfied. Packages in exclude are left out and count as
// installed. Names may be virtual. Errors wrap [ErrUnresolved] and name the chain that leads to the
// missing package, or names similar to an unknown root.
func (a *Archive) Resolve(ctx context.Context, roots, exclude []string) ([]Package, error) {
	x, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	return x.resolve(roots, nil, exclude)
}

func (x *index) resolve(roots []string, installed map[string]version.Version, exclude []string) ([]Package, error) {
	r := &resolution{index: x, installed: installed, exclude: exclude, taken: map[string]*Package{}, parent: map[string]string{}}
	for _, name := range roots {
		p, err := x.rootPackage(name, installed)
		if err != nil {
			return nil, err
		}
		if p != nil {
			r.take(p, "")
		}
	}
	for len(r.queue) > 0 {
		p := r.queue[0]
		r.queue = r.queue[1:]
		groups, err := parseDepends(p.depends)
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", p.Name, err)
		}
		for _, g := range groups {
			if err := r.choose(p, g); err != nil {
				return nil, err
			}
		}
	}
	out := make([]Package, 0, len(r.taken))
	for _, p := range r.taken {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// resolution is the state of one call of [index.resolve].
type resolution struct {
	index     *index
	installed map[string]version.Version
	exclude   []string
	taken     map[string]*Package
	parent    map[string]string // package → package that needed it first; "" for a root
	queue     []*Package        // taken packages with unread dependencies
}

func (r *resolution) take(p *Package, by string) {
	if r.taken[p.Name] == nil && !slices.Contains(r.exclude, p.Name) {
		r.taken[p.Name], r.parent[p.Name] = p, by
		r.queue = append(r.queue, p)
	}
}

// satisfied reports whether an excluded or taken package satisfies d.
func (r *resolution) satisfied(d dependency) bool {
	if slices.Contains(r.exclude, d.name) {
		return true
	}
	if p := r.taken[d.name]; p != nil && d.admits(p.parsed) {
		return true
	}
	return slices.ContainsFunc(r.index.provides[d.name], func(v provided) bool {
		return r.taken[v.by.Name] == v.by && v.satisfies(d)
	})
}

// choose takes a package for the first satisfiable alternative of the group, unless a taken or
// installed package satisfies one.
func (r *resolution) choose(p *Package, group []dependency) error {
	if slices.ContainsFunc(group, r.satisfied) {
		return nil
	}
	var others []string
	for _, d := range group {
		ok, other := r.index.installedSatisfies(d, r.installed)
		if ok {
			return nil
		}
		if other != "" {
			others = append(others, other)
		}
	}
	for _, d := range group {
		if q := r.index.find(d); q != nil && r.free(q) {
			r.take(q, p.Name)
			return nil
		}
	}
	if len(others) > 0 {
		return fmt.Errorf("%w: %s needs %s", ErrInstalled, p.Name, strings.Join(others, " or "))
	}
	return r.unresolved(p, group)
}

// free reports whether no other package of q's name is installed or taken.
func (r *resolution) free(q *Package) bool {
	_, there := r.installed[q.Name]
	return !there && (r.taken[q.Name] == nil || r.taken[q.Name] == q)
}

// unresolved names the chain of packages from a root to the missing dependency.
func (r *resolution) unresolved(p *Package, group []dependency) error {
	wants := make([]string, len(group))
	for i, d := range group {
		wants[i] = d.String()
	}
	chain := strings.Join(wants, " | ")
	for n := p.Name; n != ""; n = r.parent[n] {
		chain = n + " → " + chain
	}
	return fmt.Errorf("%w: %s", ErrUnresolved, chain)
}

// ResolveOver is like Resolve for requests ("curl", "ghostscript=10.*") on a system with installed
// packages (name → version). It does not return installed packages. If a dependency needs another
// version of an installed package, the error wraps [ErrInstalled].
func (a *Archive) ResolveOver(ctx context.Context, requests []string, installed map[string]string, exclude []string) ([]Package, error) {
	x, err := a.load(ctx)
	if err != nil {
		return nil, err
	}
	have := map[string]version.Version{}
	for name, v := range installed {
		if have[name], err = parseVersion(v); err != nil {
			return nil, fmt.Errorf("installed package %s: version %.80q: %w", name, v, err)
		}
	}
	return x.resolve(requests, have, exclude)
}

// Find returns the package with exactly this name and version. Errors: [ErrUnresolved].
func (a *Archive) Find(ctx context.Context, name, wanted string) (Package, error) {
	x, err := a.load(ctx)
	if err != nil {
		return Package{}, err
	}
	var versions []string
	for _, p := range append([]*Package{x.packages[name]}, x.older[name]...) {
		if p == nil {
			break
		}
		if p.Version == wanted {
			return *p, nil
		}
		versions = append(versions, p.Version)
	}
	if len(versions) == 0 {
		return Package{}, fmt.Errorf("%w: %q%s", ErrUnresolved, name, x.near(name))
	}
	return Package{}, fmt.Errorf("%w: %s %s: the archive has %s", ErrUnresolved, name, wanted, strings.Join(slices.Compact(versions), ", "))
}
