package engine

import (
	"strings"
	"testing"
)

func TestRequire(t *testing.T) {
	checks := []Check{
		{ID: "a", Name: "A", OK: true, Found: "there"},
		{ID: "b", Name: "B", Found: "missing", Effect: "it rains", Next: "close the roof"},
	}
	for _, test := range []struct {
		ids  []string
		want string // the error; "" for none
	}{
		{nil, ""},
		{[]string{"a"}, ""},
		{[]string{"a", "b"}, "this host lacks what the configuration requires:\n  b (B: missing): it rains; close the roof"},
		{[]string{"b", "c"}, `require: no check is called "c"; there are a, b`},
	} {
		got := ""
		if err := Require(checks, test.ids); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%q: got %q, want %q", test.ids, got, test.want)
		}
	}
}

// TestCheckIDs: the configuration can name each check.
func TestCheckIDs(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks(t.TempDir()) {
		if c.ID == "" || seen[c.ID] || strings.ToLower(c.ID) != c.ID || strings.ContainsAny(c.ID, " -") {
			t.Errorf("check %q has the id %q", c.Name, c.ID)
		}
		seen[c.ID] = true
	}
}
