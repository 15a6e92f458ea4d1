package debian

import (
	"fmt"
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
			d, err := parseDependency(one)
			if err != nil {
				return nil, err
			}
			alternatives = append(alternatives, d)
		}
		all = append(all, alternatives)
	}
	return all, nil
}

// parseDependency reads "a (>= 1)" or "c:any".
func parseDependency(s string) (dependency, error) {
	name, rest, constrained := strings.Cut(s, "(")
	name, _, _ = strings.Cut(strings.TrimSpace(name), ":")
	d := dependency{name: name}
	if !validName(name) {
		return d, fmt.Errorf("bad dependency %.80q", s)
	}
	if !constrained {
		return d, nil
	}
	inner, ok := strings.CutSuffix(strings.TrimSpace(rest), ")")
	if !ok {
		return d, fmt.Errorf("bad dependency %.80q", s)
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
		return d, fmt.Errorf("bad dependency %.80q", s)
	}
	var err error
	if d.version, err = parseVersion(number); err != nil {
		return d, fmt.Errorf("bad dependency %.80q: %w", s, err)
	}
	return d, nil
}
