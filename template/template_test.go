package template_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fre-engine/fre/runtimes"
	. "github.com/fre-engine/fre/template"
)

// The key of requests changes with the file, its extras and the files beside it, so a stale lock
// never matches.
func TestRequestsKey(t *testing.T) {
	tmpl, err := runtimes.Dialect().Parse("f", []byte("id: f\nbase: python\npackages: {pip: 'a/pyproject.toml[x, Y_z,x]'}\n"))
	if err != nil {
		t.Fatal(err)
	}
	r := *tmpl.Packages.Of("pip")
	r.Text = []byte("1")
	if r.File != "a/pyproject.toml" || !slices.Equal(r.Extras, []string{"x", "y-z"}) {
		t.Errorf("split into %q and %q", r.File, r.Extras)
	}
	keys := map[string]bool{}
	for _, r := range []Requests{
		r,
		{File: r.File, Text: []byte("1")},
		{File: r.File, Text: []byte("2"), Extras: r.Extras},
		{File: r.File, Text: []byte("1"), Extras: r.Extras, Beside: map[string][]byte{"a/uv.lock": []byte("1")}},
		{File: r.File, Text: []byte("1"), Extras: r.Extras, Beside: map[string][]byte{"a/uv.lock": []byte("2")}},
	} {
		key := strings.Join(r.Key(), "\n")
		if keys[key] {
			t.Errorf("%+v has the key of another: %s", r, key)
		}
		keys[key] = true
	}
}
