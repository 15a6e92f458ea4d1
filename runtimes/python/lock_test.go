package python

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// TestLockedOrder: packages and hashes of a new section are sorted, build requirements included, and
// a hash occurs once.
func TestLockedOrder(t *testing.T) {
	got := newLocked(nil, nil, []image.LockedPackage{
		{Name: "b", Version: "1", Hashes: []string{"y", "x", "y"}},
		{Name: "a", Version: "2", Hashes: []string{"z"}, Requires: []image.LockedPackage{{Name: "d"}, {Name: "c"}}},
		{Name: "a", Version: "1"},
	}).Packages
	want := []image.LockedPackage{
		{Name: "a", Version: "1"},
		{Name: "a", Version: "2", Hashes: []string{"z"}, Requires: []image.LockedPackage{{Name: "c"}, {Name: "d"}}},
		{Name: "b", Version: "1", Hashes: []string{"x", "y"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestLockedAnswers: a changed index of a package makes the section invalid.
func TestLockedAnswers(t *testing.T) {
	r := &template.Requests{Index: map[string]string{"a": "one"}}
	l := newLocked(r.Key(), map[string]string{"a": "one"}, nil)
	if !l.Answers(r) {
		t.Error("the section does not answer its own request")
	}
	r.Index = map[string]string{"a": "two"}
	if l.Answers(r) {
		t.Error("the section answers a request with another index")
	}
}
