package python

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/template"
)

// Locked is the lock's section of packages.pip. It is valid while Request is the requests'
// [template.Requests.Key] and Index is packages.pip_index.
type Locked struct {
	Request  []string              `json:"request"`
	Index    map[string]string     `json:"index,omitempty"`
	Packages []image.LockedPackage `json:"packages"` // sorted by name
}

// newLocked returns the section for packages in any order.
func newLocked(request []string, index map[string]string, packages []image.LockedPackage) *Locked {
	return &Locked{Request: request, Index: index, Packages: canonical(packages)}
}

// Section returns an empty section.
func (Site) Section() image.Section { return &Locked{} }

// Answers compares requests and indexes.
func (l *Locked) Answers(r *template.Requests) bool {
	return slices.Equal(l.Request, r.Key()) && maps.Equal(l.Index, r.Index)
}

// Check refuses bad names and hashes, and packages to build whose tools are built as well.
func (l *Locked) Check() error {
	for i := range l.Packages {
		if err := checkLocked(&l.Packages[i]); err != nil {
			return err
		}
	}
	for name, index := range l.Index {
		if !image.LockedName.MatchString(name) || !template.ValidName(index) {
			return fmt.Errorf("package %q: bad index %q", name, index)
		}
	}
	return nil
}

var sourcePattern = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.(tar\.gz|zip)$`)

func checkLocked(p *image.LockedPackage) error {
	if !image.LockedName.MatchString(p.Name) || !image.LockedVersion.MatchString(p.Version) {
		return fmt.Errorf("bad package %q version %q", p.Name, p.Version)
	}
	if len(p.Hashes) == 0 {
		return fmt.Errorf("package %s %s has no hash", p.Name, p.Version)
	}
	if p.Source != "" && (!sourcePattern.MatchString(p.Source) || len(p.Hashes) != 1) {
		return fmt.Errorf("package %s %s: bad source %q with %d hashes", p.Name, p.Version, p.Source, len(p.Hashes))
	}
	for _, h := range p.Hashes {
		if !image.ValidHash(h) {
			return fmt.Errorf("package %s %s: bad hash %q", p.Name, p.Version, h)
		}
	}
	return checkBuildRequirements(p)
}

func checkBuildRequirements(p *image.LockedPackage) error {
	if len(p.Requires) > 0 && p.Source == "" {
		return fmt.Errorf("package %s %s has build requirements but is not built from source", p.Name, p.Version)
	}
	for _, r := range p.Requires {
		if r.Source != "" {
			return fmt.Errorf("package %s %s: the build requirement %s is a source distribution", p.Name, p.Version, r.Name)
		}
		if err := checkLocked(&r); err != nil {
			return fmt.Errorf("package %s %s: build requirement: %w", p.Name, p.Version, err)
		}
	}
	return nil
}

// canonical returns the packages in the order of the file.
func canonical(packages []image.LockedPackage) []image.LockedPackage {
	out := slices.Clone(packages)
	for i, p := range out {
		hashes := slices.Clone(p.Hashes)
		slices.Sort(hashes)
		out[i].Hashes, out[i].Requires = slices.Compact(hashes), canonical(p.Requires)
	}
	slices.SortFunc(out, func(a, b image.LockedPackage) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Version, b.Version))
	})
	return out
}
