package python

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/template"
)

// indexOf returns the URL of the index that packages.pip_index names for a package, and "" for a
// package from the host's indexes. Errors: [template.FieldError] for an index that is not in the
// engine's configuration.
func (s *site) indexOf(name string) (string, error) {
	name = normalName(name)
	index, ok := s.index[name]
	if !ok {
		return "", nil
	}
	indexes := image.SettingsOf[install.PipSettings](s.step.Settings).Indexes
	if address, ok := indexes[index]; ok {
		return address, nil
	}
	known := strings.Join(slices.Sorted(maps.Keys(indexes)), ", ")
	if known == "" {
		known = "none"
	}
	return "", &template.FieldError{Field: "packages.pip_index." + name, Message: fmt.Sprintf(
		"the engine's configuration has no package index %q (known: %s): ask the operator to add the index to packages.pip.indexes, or remove the line", index, known)}
}

// indexProject returns a pyproject.toml that makes uv take each package of packages.pip_index from
// its index, and no other package from there ("explicit", docs.astral.sh/uv/concepts/indexes). The
// package becomes a requirement, because uv uses the index of direct dependencies only. For a
// package in built (by [image.NormalName]) uv gets only the version: its wheel is at hand.
func (s *site) indexProject(built map[string]image.LockedPackage) ([]byte, error) {
	var sources, indexes, names strings.Builder
	written := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(s.index)) {
		address, err := s.indexOf(name)
		if err != nil {
			return nil, err
		}
		if p, ok := built[name]; ok {
			_, _ = fmt.Fprintf(&names, "%q, ", p.Name+"=="+p.Version)
			continue
		}
		index := s.index[name]
		_, _ = fmt.Fprintf(&names, "%q, ", name)
		_, _ = fmt.Fprintf(&sources, "%q = { index = %q }\n", name, index)
		if !written[index] {
			written[index] = true
			_, _ = fmt.Fprintf(&indexes, "[[tool.uv.index]]\nname = %q\nurl = %q\nexplicit = true\n", index, address)
		}
	}
	return fmt.Appendf(nil, "[project]\nname = \"pip-index\"\nversion = \"0\"\ndependencies = [%s]\n[tool.uv.sources]\n%s%s", &names, &sources, &indexes), nil
}

// notFound matches uv's message that an index does not have a package, or that an explicit index
// requires other credentials.
var notFound = regexp.MustCompile(`([a-z0-9-]+) was not found in the package registry`)

// nameIndex adds to uv's output the name of the index that does not have a package of
// packages.pip_index.
func (s *site) nameIndex(words string) string {
	return notFound.ReplaceAllStringFunc(words, func(said string) string {
		if index, ok := s.index[notFound.FindStringSubmatch(said)[1]]; ok {
			return said + fmt.Sprintf(" (asked index: %q; the index may need other credentials)", index)
		}
		return said
	})
}
