package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
		{[]string{"a", "b"}, "the host lacks requirements of the configuration:\n  b (B: missing): it rains; close the roof"},
		{[]string{"b", "c"}, `require: unknown check "c"; known checks: a, b`},
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

// TestMeasure: each measured cost stands beside its check, and the state directory stays clean.
// Without root, most measurements say why they failed.
func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	checks := Checks(dir)
	if err := Measure(checks, dir); err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		if (c.ID == "database" || c.ID == "hard_links") && (c.Cost.Err != nil || c.Cost.Time <= 0) {
			t.Errorf("cost of %s: %v, error %v", c.ID, c.Cost.Time, c.Cost.Err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the state directory: %v, error %v", left, err)
	}
	if err := Measure(checks, filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a state directory: error %v, want %v", err, fs.ErrNotExist)
	}
}

// TestRemoveChecks: removeChecks removes only files that checks have left.
func TestRemoveChecks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b") // the name must not act as a pattern
	for _, name := range []string{checkPrefix + "1/work/work", checkPrefix + "2", "store"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeChecks(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "store" {
		t.Errorf("left %v, error %v, want store alone", left, err)
	}
}

// TestCheckVolumes: the check reports the best available kind of volume, and why no better kind is
// available.
func TestCheckVolumes(t *testing.T) {
	quota, image := errors.New("no quota here"), errors.New("no mkfs here")
	for _, test := range []struct {
		quota, image error
		ok           bool
		found        string
	}{
		{nil, nil, true, "project quotas"},
		{nil, image, true, "project quotas"},
		{quota, nil, true, "images on loop devices; no project quotas: no quota here"},
		{quota, image, false, "project quotas: no quota here; images on loop devices: no mkfs here"},
	} {
		if c := checkVolumes(test.quota, test.image); c.OK != test.ok || c.Found != test.found {
			t.Errorf("%v, %v: OK %v, found %q, want %v, %q", test.quota, test.image, c.OK, c.Found, test.ok, test.found)
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
