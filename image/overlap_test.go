package image

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/store"
)

// TestOverlaps: Overlaps finds two packages with different content at one path. Equal files,
// bytecode, the base and the function's own code do not count.
func TestOverlaps(t *testing.T) {
	file := func(path, content string) store.Entry {
		return store.Entry{Path: path, Kind: store.KindFile, Digest: store.Digest(content)}
	}
	trees := map[store.Digest]*store.Tree{
		"base":  {Entries: []store.Entry{file("site/six.py", "base")}},
		"one":   {Entries: []store.Entry{file("tests/__init__.py", "1"), file("both.py", "same"), file("both.pyc", "1"), {Path: "dir", Kind: store.KindDir}}},
		"two":   {Entries: []store.Entry{file("tests/__init__.py", "2"), file("both.py", "same"), file("both.pyc", "2"), {Path: "dir", Kind: store.KindDir}}},
		"three": {Entries: []store.Entry{file("tests/__init__.py", "3")}},
		"code":  {Entries: []store.Entry{file("site/tests/__init__.py", "own")}},
	}
	parts := []store.Part{
		{Kind: "base", Name: "python", Tree: "base"},
		{Kind: "pip", Name: "one", Prefix: "site", Tree: "one"},
		{Kind: "pip", Name: "two", Prefix: "site", Tree: "two"},
		{Kind: "pip", Name: "three", Prefix: "elsewhere", Tree: "three"},
		{Kind: "pip", Name: "four", Prefix: "site", Tree: "three"},
		{Kind: "code", Name: "f", Tree: "code"},
	}
	tree := func(d store.Digest) (*store.Tree, error) { return trees[d], nil }
	want := []overlap{{"site/tests/__init__.py", "one", "two"}, {"site/tests/__init__.py", "two", "four"}}
	for most, want := range map[int][]overlap{10: want, 1: want[:1]} {
		got, err := overlaps(parts, tree, most)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(overlap{})); diff != "" || err != nil {
			t.Errorf("at most %d: %v\n%s", most, err, diff)
		}
	}
}
