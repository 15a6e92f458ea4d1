package glob

import (
	"errors"
	"path"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"a", "a", true},
		{"a", "a/b", false},
		{"a/*", "a/b", true},
		{"a/*", "a/b/c", false},
		{"**", "a/b/c", true},
		{"**/c", "c", true},
		{"**/c", "a/b/c", true},
		{"**/b", "a/b/c", false},
		{"a/**/c", "a/c", true},
		{"a/**/c", "a/b/b/c", true},
		{"a/**", "a", true},
		{"**/a/b/**/c", "a/a/b/x/c", true},
		{"**/a/**/a", "a", false},
		{"**/[xy]?", "a/y1", true},
	} {
		p, err := Parse(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(strings.Split(c.path, "/")); got != c.want {
			t.Errorf("%s matches %s: %v, want %v", c.pattern, c.path, got, c.want)
		}
	}
	for _, bad := range []string{"", "a//b", "/a", "a/", "a/[", `\`} {
		if p, err := Parse(bad); !errors.Is(err, path.ErrBadPattern) {
			t.Errorf("Parse(%q) = %q, %v, want path.ErrBadPattern", bad, p, err)
		}
	}
}

// simple is the obvious Match, which is very slow for some patterns.
func simple(pattern, segments []string) bool {
	switch {
	case len(pattern) == 0:
		return len(segments) == 0
	case pattern[0] == "**":
		return simple(pattern[1:], segments) || len(segments) > 0 && simple(pattern, segments[1:])
	}
	return len(segments) > 0 && matches(pattern[0], segments[0]) && simple(pattern[1:], segments[1:])
}

func TestMatchAgainstSimple(t *testing.T) {
	rnd := fretest.Rand(t)
	words := func(of []string, most int) []string {
		out := make([]string, rnd.IntN(most))
		for i := range out {
			out[i] = of[rnd.IntN(len(of))]
		}
		return out
	}
	matched := 0
	for range 20_000 {
		p, segments := Pattern(words([]string{"a", "b", "*", "**", "a*"}, 7)), words([]string{"a", "b", "ab"}, 8)
		got := p.Match(segments)
		if want := simple(p, segments); got != want {
			t.Fatalf("%q matches %q: %v, want %v", p, segments, got, want)
		}
		if got {
			matched++
		}
	}
	if matched < 1000 {
		t.Errorf("only %d of 20000 matched", matched)
	}
}

// TestMatchEnds: a pattern with 10^16 possible splits is matched in short time.
func TestMatchEnds(t *testing.T) {
	p, err := Parse(strings.Repeat("**/a/", 20) + "b")
	if err != nil {
		t.Fatal(err)
	}
	if p.Match(strings.Split(strings.Repeat("a/", 60)+"a", "/")) {
		t.Error("b matches a")
	}
}

func FuzzMatch(f *testing.F) {
	f.Add("**/a/*/[b-d]?", "x/a/y/c1")
	f.Fuzz(func(_ *testing.T, pattern, path string) {
		if p, err := Parse(pattern); err == nil {
			p.Match(strings.Split(path, "/"))
		}
	})
}
