package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// SiteDebian is the key of Debian packages, which need no package site.
const SiteDebian = "deb"

// Packages are a template's requests, by package site.
type Packages map[string]*Requests

// Of returns the requests to a site; without requests an empty value that p does not hold.
func (p Packages) Of(site string) *Requests {
	if r := p[site]; r != nil {
		return r
	}
	return &Requests{}
}

// Request sets the requests to a site.
func (t *Template) Request(site string, r *Requests) {
	t.Packages = maps.Clone(t.Packages)
	if t.Packages == nil {
		t.Packages = Packages{}
	}
	t.Packages[site] = r
}

// at returns the requests to a site, to be filled.
func (p Packages) at(site string) *Requests {
	if p[site] == nil {
		p[site] = &Requests{}
	}
	return p[site]
}

// trimmed returns p without the sites that have no requests, nil if none has.
func (p Packages) trimmed() Packages {
	maps.DeleteFunc(p, func(_ string, r *Requests) bool { return r.None() && len(r.Scripts) == 0 && len(r.Index) == 0 })
	if len(p) == 0 {
		return nil
	}
	return p
}

// packages are the keys below packages.
func (d *decoder) packages(p Packages) []field {
	var keys []field
	for i := range d.dialect.Sites {
		s := &d.dialect.Sites[i]
		keys = append(keys, field{key: s.Name, value: d.requests(p.at(s.Name), s), about: s.About, examples: s.Examples})
	}
	keys = append(keys, field{
		key: SiteDebian, value: d.strings(&p.at(SiteDebian).List, requirement(debPattern, `write a Debian package such as "curl" or "ghostscript=10.*"`)),
		about:    "Debian packages of the base's release, with what they need: NAME or NAME=VERSION with * and ?.",
		examples: []any{[]string{"curl", "ghostscript=10.*"}},
	})
	for i := range d.dialect.Sites {
		s := &d.dialect.Sites[i]
		if n := s.Scripts; n != nil {
			keys = append(keys, field{key: n.Key, value: d.strings(&p.at(s.Name).Scripts, requirement(n.Name.Pattern, n.Name.Want)), about: n.About, examples: n.Examples})
		}
		if n := s.Index; n != nil {
			keys = append(keys, field{key: n.Key, value: d.index(&p.at(s.Name).Index, n, s.Name), about: n.About, examples: n.Examples})
		}
	}
	return keys
}

// stepPackages are the keys below code.build.packages.
func (d *decoder) stepPackages(p Packages) []field {
	var keys []field
	for i := range d.dialect.Sites {
		if s := &d.dialect.Sites[i]; s.Step != "" {
			keys = append(keys, field{key: s.Name, value: d.strings(&p.at(s.Name).List, requirement(s.Request.Pattern, s.Step))})
		}
	}
	keys = append(keys, field{key: SiteDebian, value: d.strings(&p.at(SiteDebian).List, requirement(namePackage, `write a Debian package such as "make"`))})
	for i := range d.dialect.Sites {
		if s := &d.dialect.Sites[i]; s.Step != "" && s.Scripts != nil {
			keys = append(keys, field{key: s.Scripts.Key, value: d.strings(&p.at(s.Name).Scripts, requirement(s.Scripts.Name.Pattern, s.Scripts.Name.Want))})
		}
	}
	return keys
}

// index reads a mapping of packages to names of indexes.
func (d *decoder) index(dst *map[string]string, key *Names, site string) value {
	schema := object{
		{"type", "object"},
		{"propertyNames", object{{"pattern", key.Name.Pattern.String()}}},
		{"additionalProperties", patternSchema(namePattern)},
	}
	return value{schema, func(n ast.Node, path string) {
		m, ok := n.(ast.MapNode)
		if !ok {
			d.errorf(n, "%s must be a mapping of packages to the names of indexes, not %s", path, describe(n))
			return
		}
		*dst = map[string]string{}
		for it := m.MapRange(); it.Next(); {
			of := keyText(it.Key())
			if !key.Name.Pattern.MatchString(of) {
				d.errorf(it.Key(), "bad package %q in %s: %s", of, path, key.Name.Want)
				continue
			}
			name := of
			if key.Normal != nil {
				name = key.Normal(of)
			}
			if _, dup := (*dst)[name]; dup {
				d.errorf(it.Key(), "%s names the package %s twice", path, name)
				continue
			}
			d.at[join(path, name)] = nodePosition(it.Value())
			var index string
			d.text(&index, namePattern, "the name of an index in the engine's configuration (packages."+site+".indexes)").read(it.Value(), join(path, of))
			(*dst)[name] = index
		}
	}}
}

// packagesRelations checks the keys of sites against each other. at is the path of p.
func (dialect *Dialect) packagesRelations(p Packages, at string, fail func(path, format string, args ...any)) {
	for i := range dialect.Sites {
		s := &dialect.Sites[i]
		r := p.Of(s.Name)
		for _, n := range []struct {
			key  *Names
			used bool
		}{{s.Scripts, len(r.Scripts) > 0}, {s.Index, len(r.Index) > 0}} {
			if n.used && r.None() {
				fail(at+"."+n.key.Key, "%s.%s names packages, but %s.%s is empty", at, n.key.Key, at, s.Name)
			}
		}
	}
}

// scriptsNeed says in the schema which keys of sites need requests.
func (dialect *Dialect) scriptsNeed(step bool) object {
	var need object
	for _, s := range dialect.Sites {
		if s.Scripts != nil && (!step || s.Step != "") {
			need = append(need, member{s.Scripts.Key, []string{s.Name}})
		}
		if s.Index != nil && !step {
			need = append(need, member{s.Index.Key, []string{s.Name}})
		}
	}
	if need == nil {
		return nil
	}
	return object{{"dependentRequired", need}}
}

// buildExamples is an example of code.build.
func (dialect *Dialect) buildExamples() []any {
	return []any{object{{"run", "make"}, {"packages", object{{SiteDebian, []string{"make"}}}}, {"output", "dist"}}}
}

// handlers describes the handlers of each runtime.
func (dialect *Dialect) handlers() string {
	var b strings.Builder
	for _, r := range dialect.Runtimes {
		if r.Handler != "" {
			fmt.Fprintf(&b, "%s: %s. ", r.Name, r.Handler)
		}
	}
	return b.String() + "Other contracts have others: docs/contracts.md."
}

// example names a runtime, for errors.
func (dialect *Dialect) example() string {
	if len(dialect.Runtimes) == 0 {
		return ""
	}
	return fmt.Sprintf(" such as %q", dialect.Runtimes[0].Name)
}

// baseExample names a base, for errors.
func (dialect *Dialect) baseExample() string {
	if len(dialect.Bases) == 0 {
		return ""
	}
	return fmt.Sprintf(" such as %q", dialect.Bases[0])
}

func (d *decoder) baseExamples() []any {
	if len(d.dialect.Bases) == 0 {
		return nil
	}
	return []any{d.dialect.Bases[0], d.dialect.Bases[0] + ":trixie"}
}

// Sites returns the sites with requests, sorted.
func (p Packages) Sites() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(p)), func(site string) bool { return p[site].None() })
}
