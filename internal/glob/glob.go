// Package glob matches slash-separated paths, segment by segment.
package glob

import (
	"cmp"
	"fmt"
	"path"
	"strings"
)

// Pattern is a path whose segments are patterns of [path.Match], or "**" for any number of
// segments, including zero.
type Pattern []string

// Parse reads a pattern: "a/*/c", "**/x". It returns path.ErrBadPattern if a segment is empty or
// not a pattern of [path.Match].
func Parse(s string) (Pattern, error) {
	p := Pattern(strings.Split(s, "/"))
	for _, segment := range p {
		if _, err := path.Match(segment, ""); err != nil || segment == "" {
			return nil, fmt.Errorf("%q: %w", s, cmp.Or(err, path.ErrBadPattern))
		}
	}
	return p, nil
}

// Match reports whether the pattern matches all segments of a path. Patterns may come from a
// hostile author: the time is at most proportional to the product of both lengths. On a mismatch
// only the last "**" takes one more segment. An earlier "**" needs no retry, because the last "**"
// can take every segment that an earlier "**" could.
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
	return ok && err == nil // Parse has checked the pattern
}
