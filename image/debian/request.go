package debian

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"pault.ag/go/debian/version"
)

// request is a user's request for a package: "curl", "ghostscript=10.*".
type request struct{ name, version string }

// parseRequest reads NAME or NAME=VERSION; VERSION may have path.Match's wildcards.
func parseRequest(s string) (request, error) {
	name, wanted, pinned := strings.Cut(s, "=")
	if !validName(name) {
		return request{}, fmt.Errorf("bad package name %.80q", name)
	}
	if _, err := path.Match(wanted, ""); err != nil || pinned && wanted == "" {
		return request{}, fmt.Errorf("package %s: bad version %.80q: %w", name, wanted, errors.Join(path.ErrBadPattern, err))
	}
	return request{name, wanted}, nil
}

func (r request) admits(v string) bool {
	if r.version == "" {
		return true
	}
	ok, _ := path.Match(r.version, v) // parseRequest has tried the pattern
	return ok
}

// rootPackage returns the newest package that the request admits. It returns nil if an installed
// package satisfies the request.
func (x *index) rootPackage(s string, installed map[string]version.Version) (*Package, error) {
	r, err := parseRequest(s)
	if err != nil {
		return nil, err
	}
	if v, ok := installed[r.name]; ok {
		if r.admits(v.String()) {
			return nil, nil
		}
		return nil, fmt.Errorf("%w: %s is asked for, the base environment has %s", ErrInstalled, s, v)
	}
	p := x.packages[r.name]
	if p != nil && r.admits(p.Version) {
		return p, nil
	}
	if r.version == "" {
		if p = x.find(dependency{name: r.name}); p == nil {
			return nil, fmt.Errorf("%w: %q%s", ErrUnresolved, r.name, x.near(r.name))
		}
		return p, nil
	}
	if p == nil {
		return nil, fmt.Errorf("%w: %q%s", ErrUnresolved, r.name, x.near(r.name))
	}
	versions := []string{p.Version}
	for _, old := range x.older[r.name] {
		if r.admits(old.Version) {
			return old, nil
		}
		versions = append(versions, old.Version)
	}
	return nil, fmt.Errorf("%w: %s: the archive has %s", ErrUnresolved, s, strings.Join(slices.Compact(versions), ", "))
}

// installedSatisfies reports whether an installed package satisfies d. If not, other describes the
// installed package of the same name with a wrong version.
func (x *index) installedSatisfies(d dependency, installed map[string]version.Version) (ok bool, other string) {
	if v, there := installed[d.name]; there {
		if d.admits(v) {
			return true, ""
		}
		other = fmt.Sprintf("%s, but the base environment has %s", d, v)
	}
	return slices.ContainsFunc(x.provides[d.name], func(p provided) bool {
		_, there := installed[p.by.Name]
		return there && (d.op == "" || p.version != nil && d.admits(*p.version))
	}), other
}

// ErrInstalled: the request conflicts with the version of an installed package.
var ErrInstalled = errors.New("another version is installed")
