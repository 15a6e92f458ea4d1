package template

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// entry returns the requests to a site, to be filled.
func (p Packages) entry(site string) *Requests {
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

// Sites returns the sites with requests, sorted.
func (p Packages) Sites() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(p)), func(site string) bool { return p[site].None() })
}

// Request sets the requests to a site.
func (t *Template) Request(site string, r *Requests) {
	t.Packages = maps.Clone(t.Packages)
	if t.Packages == nil {
		t.Packages = Packages{}
	}
	t.Packages[site] = r
}

// Requests are packages by name, in the site's syntax, or a file beside the template with such
// requests: at most one of the two.
type Requests struct {
	List   []string
	File   string   // clean relative path
	Extras []string // sorted; optional dependencies of a project in File

	Index   map[string]string // packages, by normal name, that come from the named index of the engine's configuration
	Scripts []string          // names of the packages whose install scripts run

	Text   []byte            // content of File, after Build has read it
	Beside map[string][]byte // further files that File uses, by clean relative path: see [RequestReader]
}

// Key returns the text by which a lock identifies the requests: the list, or name and digest of
// each file.
func (r Requests) Key() []string {
	if r.File == "" {
		return slices.Clone(r.List)
	}
	extras := ""
	if len(r.Extras) > 0 {
		extras = "[" + strings.Join(r.Extras, ",") + "]"
	}
	out := []string{fmt.Sprintf("%s%s sha256:%x", r.File, extras, sha256.Sum256(r.Text))}
	for _, name := range slices.Sorted(maps.Keys(r.Beside)) {
		out = append(out, fmt.Sprintf("%s sha256:%x", name, sha256.Sum256(r.Beside[name])))
	}
	return out
}

// None reports whether there are no requests.
func (r Requests) None() bool { return len(r.List) == 0 && r.File == "" }
