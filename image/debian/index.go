package debian

import (
	"slices"
	"strings"

	"pault.ag/go/debian/version"
)

// index holds the newest version of every package, and the providers of each name.
type index struct {
	packages map[string]*Package
	older    map[string][]*Package // further versions, newest first; few names have any
	provides map[string][]provided
}

type provided struct {
	by      *Package
	version *version.Version // nil: satisfies unversioned dependencies only
}

// satisfies reports whether d is unversioned or admits the provided version.
func (v provided) satisfies(d dependency) bool {
	return d.op == "" || v.version != nil && d.admits(*v.version)
}

// newIndex sorts the packages into the newest of each name and older ones. Provides are not in yet.
func newIndex(lists [][]*Package) *index {
	x := &index{packages: map[string]*Package{}, older: map[string][]*Package{}, provides: map[string][]provided{}}
	for _, l := range lists {
		for _, p := range l {
			old := x.packages[p.Name]
			switch {
			case old == nil:
				x.packages[p.Name] = p
			case version.Compare(p.parsed, old.parsed) > 0:
				x.packages[p.Name] = p
				x.older[p.Name] = append(x.older[p.Name], old)
			default:
				x.older[p.Name] = append(x.older[p.Name], p)
			}
		}
	}
	for _, l := range x.older {
		slices.SortStableFunc(l, func(a, b *Package) int { return version.Compare(b.parsed, a.parsed) })
	}
	return x
}

func (x *index) addProvides(p *Package) error {
	groups, err := parseDepends(p.provides)
	if err != nil {
		return err
	}
	for _, g := range groups {
		for _, d := range g {
			v := provided{by: p}
			if d.op == "=" {
				v.version = &d.version
			}
			x.provides[d.name] = append(x.provides[d.name], v)
		}
	}
	p.provides = ""
	return nil
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
