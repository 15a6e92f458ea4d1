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
			name, rest, constrained := strings.Cut(one, "(")
			name, _, _ = strings.Cut(strings.TrimSpace(name), ":")
			d := dependency{name: name}
			if !validName(name) {
				return nil, fmt.Errorf("bad dependency %.80q", one)
			}
			if constrained {
				rest = strings.TrimSpace(rest)
				inner, ok := strings.CutSuffix(rest, ")")
				if !ok {
					return nil, fmt.Errorf("bad dependency %.80q", one)
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
					return nil, fmt.Errorf("bad dependency %.80q", one)
				}
				var err error
				if d.version, err = parseVersion(number); err != nil {
					return nil, fmt.Errorf("bad dependency %.80q: %w", one, err)
				}
			}
			alternatives = append(alternatives, d)
		}
		all = append(all, alternatives)
	}
	return all, nil
}

// find returns the best package that satisfies d, or nil: the package of that name, else the
// provider with the highest priority, then with the first name.
func (x *index) find(d dependency) *Package {
	if p := x.packages[d.name]; p != nil && d.admits(p.parsed) {
		return p
	}
	var best *Package
	for _, v := range x.provides[d.name] {
		if d.op != "" && (v.version == nil || !d.admits(*v.version)) {
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
	taken := map[string]*Package{}
	parent := map[string]string{}
	var queue []*Package
	take := func(p *Package, by string) {
		if taken[p.Name] == nil && !slices.Contains(exclude, p.Name) {
			taken[p.Name], parent[p.Name] = p, by
			queue = append(queue, p)
		}
	}
	satisfied := func(d dependency) bool {
		if slices.Contains(exclude, d.name) {
			return true
		}
		if p := taken[d.name]; p != nil && d.admits(p.parsed) {
			return true
		}
		return slices.ContainsFunc(x.provides[d.name], func(v provided) bool {
			return taken[v.by.Name] == v.by && (d.op == "" || v.version != nil && d.admits(*v.version))
		})
	}
	for _, name := range roots {
		p, err := x.root(name, installed)
		if err != nil {
			return nil, err
		}
		if p != nil {
			take(p, "")
		}
	}
	for len(queue) > 0 {
		p := queue[0]
		queue = queue[1:]
		groups, err := parseDepends(p.depends)
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", p.Name, err)
		}
	groups:
		for _, g := range groups {
			if slices.ContainsFunc(g, satisfied) {
				continue
			}
			var others []string
			for _, d := range g {
				ok, other := x.installedSatisfies(d, installed)
				if ok {
					continue groups
				}
				if other != "" {
					others = append(others, other)
				}
			}
			for _, d := range g {
				q := x.find(d)
				if q == nil {
					continue
				}
				if _, there := installed[q.Name]; there || taken[q.Name] != nil && taken[q.Name] != q {
					continue
				}
				take(q, p.Name)
				continue groups
			}
			if len(others) > 0 {
				return nil, fmt.Errorf("%w: %s needs %s", ErrInstalled, p.Name, strings.Join(others, " or "))
			}
			wants := make([]string, len(g))
			for i, d := range g {
				wants[i] = d.String()
			}
			chain := strings.Join(wants, " | ")
			for n := p.Name; n != ""; n = parent[n] {
				chain = n + " → " + chain
			}
			return nil, fmt.Errorf("%w: %s", ErrUnresolved, chain)
		}
	}
	out := make([]Package, 0, len(taken))
	for _, p := range taken {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
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
