// Package glob matches slash-separated paths, segment by segment.
package glob

import (
	"cmp"
	"fmt"
	"path"
	"strings"
)

// Pattern is a path whose segments are patterns of [path.Match], or "**" for any
// number of segments, none too.
type Pattern []string

// Parse reads "a/*/c", "**/x". path.ErrBadPattern if a segment is none, or empty.
func Parse(s string) (Pattern, error) {
	p := Pattern(strings.Split(s, "/"))
	for _, segment := range p {
		if _, err := path.Match(segment, ""); err != nil || segment == "" {
			return nil, fmt.Errorf("%q: %w", s, cmp.Or(err, path.ErrBadPattern))
		}
	}
	return p, nil
}

// Match says whether the pattern matches all of a path's segments. It takes time
// proportional to the product of both at most: who wrote the pattern may be
// hostile. Where a segment does not match, the last "**" takes one more; what an
// earlier one could take as well, that one can.
func (p Pattern) Match(segments []string) bool {
	i, last, taken := 0, -1, 0
	for j := 0; j < len(segments); {
		switch {
		case i < len(p) && p[i] == "**":
			last, taken = i, j
			i++
		case i < len(p) && matches(p[i], segments[j]):
			i, j = i+1, j+1
		case last >= 0:
			taken++
			i, j = last+1, taken
		default:
			return false
		}
	}
	for i < len(p) && p[i] == "**" {
		i++
	}
	return i == len(p)
}

func matches(pattern, segment string) bool {
	ok, err := path.Match(pattern, segment)
	return ok && err == nil // Parse has looked at the pattern
}
