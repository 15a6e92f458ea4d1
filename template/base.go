package template

import (
	"fmt"
	"path"
	"strings"

	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/internal/reference"
)

// ParseBase reads a template's base: "NAME", "NAME:RELEASE", "oci:IMAGE", "archive:FILE",
// "layout:DIRECTORY", "dir:DIRECTORY".
func ParseBase(s string) (BaseRef, error) { return parseBase(s, "NAME or NAME:RELEASE") }

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

// BaseName returns the name of the FRE base that s names, or the kind of a foreign base.
func BaseName(s string) string {
	name, _, _ := strings.Cut(s, ":")
	return name
}

var basePattern = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}(:[a-z]{1,32})?$`)

// ForeignBase reports whether the template uses an image that FRE did not make.
func (t *Template) ForeignBase() bool {
	ref, err := ParseBase(t.Base)
	return err == nil && ref.Kind != BaseDebian
}

// Reads returns the paths beside the template that a build reads even if .freignore excludes them
// from the code: requests for packages, the base, the code's archive.
func (t *Template) Reads() []string {
	var out []string
	if ref, err := ParseBase(t.Base); err == nil && ref.Kind != BaseDebian && ref.Kind != BaseOCI {
		out = append(out, ref.Name)
	}
	for _, site := range t.Packages.Sites() {
		if file := t.Packages[site].File; file != "" {
			out = append(out, file)
		}
	}
	if t.Code.Archive != "" {
		out = append(out, t.Code.Archive)
	}
	return out
}

func (dialect *Dialect) baseSchema() object {
	names := strings.Join(dialect.Bases, "|")
	return object{
		{"type", "string"},
		{"anyOf", []object{
			{{"enum", dialect.Bases}},
			{{"pattern", "^(" + names + "):[a-z]{1,32}$"}},
			{{"pattern", `^oci:[A-Za-z0-9\[][A-Za-z0-9._:/@\[\]-]*$`}},
			{{"pattern", `^(archive|layout|dir):[^/\x00-\x1f][^\x00-\x1f]*$`}, {"not", object{{"pattern", `^[a-z]+:([^/]+/)*\.\.(/|$)`}}}},
		}},
	}
}

// basesPattern matches the given bases of FRE's, of any release, and the bases of others.
func basesPattern(bases []string, foreign bool) string {
	own := "(" + strings.Join(bases, "|") + ")(:|$)"
	if foreign {
		return "^(" + own + "|" + foreignKinds + ")"
	}
	return "^" + own
}

const foreignKinds = "(oci|archive|layout|dir):"

// baseNames are examples of bases for errors: the first base, without and with a release.
func (dialect *Dialect) baseNames() string {
	if len(dialect.Bases) == 0 {
		return "NAME or NAME:RELEASE"
	}
	return fmt.Sprintf("%q or %q", dialect.Bases[0], dialect.Bases[0]+":trixie")
}
