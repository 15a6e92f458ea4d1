package debian

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"pault.ag/go/debian/version"
)

// dependency is one alternative of a dependency field: name (op version).
type dependency struct {
	name    string
	op      string // "", "<<", "<=", "=", ">=", ">>"
	version version.Version
}

func (d dependency) String() string {
	if d.op == "" {
		return d.name
	}
	v := d.version.String()
	if d.version.Epoch == 0 && strings.Contains(d.version.Version, ":") {
		v = "0:" + v // the library omits an epoch of 0, and then the first colon would end an epoch
	}
	return fmt.Sprintf("%s (%s %s)", d.name, d.op, v)
}

// admits reports whether version v satisfies d.
func (d dependency) admits(v version.Version) bool {
	c := version.Compare(v, d.version)
	switch d.op {
	case "<<":
		return c < 0
	case "<=":
		return c <= 0
	case "=":
		return c == 0
	case ">=":
		return c >= 0
	case ">>":
		return c > 0
	}
	return true
}

// parseDepends reads "a (>= 1) | b, c:any". All groups are required, and one alternative of each.
// See Debian policy 7.1.
func parseDepends(s string) ([][]dependency, error) {
	var all [][]dependency
	for group := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(group) == "" {
			continue
		}
		var alternatives []dependency
		for one := range strings.SplitSeq(group, "|") {
			d, err := parseDependency(one)
			if err != nil {
				return nil, err
			}
			alternatives = append(alternatives, d)
		}
		all = append(all, alternatives)
	}
	return all, nil
}

// parseDependency reads "a (>= 1)" or "c:any".
func parseDependency(s string) (dependency, error) {
	name, rest, constrained := strings.Cut(s, "(")
	name, _, _ = strings.Cut(strings.TrimSpace(name), ":")
	d := dependency{name: name}
	if !validName(name) {
		return d, fmt.Errorf("bad dependency %.80q", s)
	}
	if !constrained {
		return d, nil
	}
	inner, ok := strings.CutSuffix(strings.TrimSpace(rest), ")")
	if !ok {
		return d, fmt.Errorf("bad dependency %.80q", s)
	}
	number := strings.TrimLeft(inner, "<>=")
	d.op = inner[:len(inner)-len(number)]
	switch d.op {
	case "<": // obsolete spellings, policy 7.1
		d.op = "<="
	case ">":
		d.op = ">="
	case "<<", "<=", "=", ">=", ">>":
	default:
		return d, fmt.Errorf("bad dependency %.80q", s)
	}
	var err error
	if d.version, err = parseVersion(number); err != nil {
		return d, fmt.Errorf("bad dependency %.80q: %w", s, err)
	}
	return d, nil
}

// find returns the best package that satisfies d, or nil: the package of that name, else the
// provider with the highest priority, then with the first name.
func (x *index) find(d dependency) *Package {
	if p := x.packages[d.name]; p != nil && d.admits(p.parsed) {
		return p
	}
	var best *Package
	for _, v := range x.provides[d.name] {
		if !v.satisfies(d) {
			continue
		}
		p := v.by
		if best == nil || p.priority < best.priority || p.priority == best.priority && p.Name < best.Name {
			best = p
		}
	}
	return best
}

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
		p, err := x.root(name, installed)
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

// near returns a phrase with up to three known names nearest to name.
func (x *index) near(name string) string {
	type candidate struct {
		name     string
		distance int
	}
	var c []candidate
	for n := range x.packages {
		if d := distance(name, n); d <= 2 || d <= len(name)/3 {
			c = append(c, candidate{n, d})
		}
	}
	slices.SortFunc(c, func(a, b candidate) int {
		if a.distance != b.distance {
			return a.distance - b.distance
		}
		return strings.Compare(a.name, b.name)
	})
	if len(c) == 0 {
		return ""
	}
	names := make([]string, 0, 3)
	for _, k := range c[:min(3, len(c))] {
		names = append(names, k.name)
	}
	return "; near: " + strings.Join(names, ", ")
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
