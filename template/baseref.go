package template

import (
	"fmt"
	"path"
	"strings"

	"github.com/fre-engine/fre/internal/lazyregexp"

	"github.com/fre-engine/fre/internal/reference"
)

// BaseKind says where a base environment comes from.
type BaseKind string

// The kinds of bases.
const (
	BaseDebian  BaseKind = ""        // FRE's own, made from the distribution's packages
	BaseOCI     BaseKind = "oci"     // an image from a registry or in the store
	BaseArchive BaseKind = "archive" // output of docker save, or an OCI layout as a tar
	BaseLayout  BaseKind = "layout"  // directory of an OCI layout
	BaseDir     BaseKind = "dir"     // directory of a root file system
)

// BaseRef names the base environment of a template.
type BaseRef struct {
	Kind    BaseKind
	Name    string // of an FRE base; otherwise a reference, or a clean path below the template's directory
	Release string // of an FRE base: codename of the distribution's release; "" for the host's
}

var (
	basePattern = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}(:[a-z]{1,32})?$`)
)

// ParseBase reads a template's base: "NAME", "NAME:RELEASE", "oci:IMAGE", "archive:FILE",
// "layout:DIRECTORY", "dir:DIRECTORY".
func ParseBase(s string) (BaseRef, error) { return parseBase(s, "NAME or NAME:RELEASE") }

// baseNames are examples of bases for errors: the first base, without and with a release.
func (dialect *Dialect) baseNames() string {
	if len(dialect.Bases) == 0 {
		return "NAME or NAME:RELEASE"
	}
	return fmt.Sprintf("%q or %q", dialect.Bases[0], dialect.Bases[0]+":trixie")
}

// parseBase is ParseBase with examples of names for errors.
func parseBase(s, names string) (BaseRef, error) {
	kind, rest, ok := strings.Cut(s, ":")
	switch k := BaseKind(kind); {
	case ok && k == BaseOCI:
		name, version, _, err := reference.Parse(rest)
		if err == nil {
			err = reference.Check(name, version)
		}
		if err != nil {
			return BaseRef{}, fmt.Errorf("bad base %q: %w", s, err)
		}
		return BaseRef{Kind: k, Name: rest}, nil
	case ok && (k == BaseArchive || k == BaseLayout || k == BaseDir):
		p := path.Clean(rest)
		if !pathPattern.MatchString(rest) || p == ".." || strings.HasPrefix(p, "../") || len(rest) > 4096 {
			return BaseRef{}, fmt.Errorf("bad base %q: name a path below the template's directory", s)
		}
		return BaseRef{Kind: k, Name: p}, nil
	}
	if !basePattern.MatchString(s) {
		return BaseRef{}, fmt.Errorf("bad base %q: write the name of a base environment, for example %s, or oci:IMAGE, archive:FILE, layout:DIRECTORY, dir:DIRECTORY", s, names)
	}
	return BaseRef{Name: kind, Release: rest}, nil
}

// String returns the base as a template writes it.
func (r BaseRef) String() string {
	switch {
	case r.Kind != BaseDebian:
		return string(r.Kind) + ":" + r.Name
	case r.Release != "":
		return r.Name + ":" + r.Release
	}
	return r.Name
}

// BaseName returns the name of the FRE base that s names, or the kind of a foreign base.
func BaseName(s string) string {
	name, _, _ := strings.Cut(s, ":")
	return name
}

// ForeignBase reports whether the template uses an image that FRE did not make.
func (t *Template) ForeignBase() bool {
	ref, err := ParseBase(t.Base)
	return err == nil && ref.Kind != BaseDebian
}
