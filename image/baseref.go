package image

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/fre-engine/fre/store"
)

// BaseKind says where a base environment comes from.
type BaseKind string

// The kinds of bases.
const (
	BaseDebian  BaseKind = ""        // FRE's own, of the distribution's packages
	BaseOCI     BaseKind = "oci"     // an image of a registry, or of the store
	BaseArchive BaseKind = "archive" // what docker save writes, or an OCI layout as a tar
	BaseLayout  BaseKind = "layout"  // an OCI layout's directory
	BaseDir     BaseKind = "dir"     // a root file system's directory
)

// BaseRef says which base environment a template stands on.
type BaseRef struct {
	Kind    BaseKind
	Name    string // of one of FRE's: "python"; otherwise a reference, or a clean path below the template's directory
	Release string // of FRE's: codename of the distribution's release; "" for the host's own
}

var (
	basePattern     = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}(:[a-z]{1,32})?$`)
	baseDescription = `the name of a base environment such as "python", of a release's such as "python:trixie", or oci:IMAGE, archive:FILE, layout:DIRECTORY, dir:DIRECTORY`
)

// ParseBase reads a template's base: "python", "python:trixie", "oci:IMAGE",
// "archive:FILE", "layout:DIRECTORY", "dir:DIRECTORY".
func ParseBase(s string) (BaseRef, error) {
	kind, rest, ok := strings.Cut(s, ":")
	switch k := BaseKind(kind); {
	case ok && k == BaseOCI:
		r, err := store.ParseReference(rest)
		if err == nil {
			err = r.Check()
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
		return BaseRef{}, fmt.Errorf("bad base %q: write %s", s, baseDescription)
	}
	return BaseRef{Name: kind, Release: rest}, nil
}

// String is what a template writes.
func (r BaseRef) String() string {
	switch {
	case r.Kind != BaseDebian:
		return string(r.Kind) + ":" + r.Name
	case r.Release != "":
		return r.Name + ":" + r.Release
	}
	return r.Name
}

// baseName is the name of the base environment of FRE's that s names, or the kind
// of another.
func baseName(s string) string {
	name, _, _ := strings.Cut(s, ":")
	return name
}

// ForeignBase says whether the template stands on an image that FRE did not make.
func (t *Template) ForeignBase() bool {
	ref, err := ParseBase(t.Base)
	return err == nil && ref.Kind != BaseDebian
}
