package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
)

// TestProbe: All checks of Probe pass on a host that starts sandboxes.
func TestProbe(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	for _, c := range Probe() {
		t.Logf("%-18s %v %s", c.Name, c.OK, c.Found)
		if !c.OK && !c.Optional && c.ID != "landlock" { // optional for sandboxes
			t.Errorf("%s is not OK: found %s", c.Name, c.Found)
		}
		if c.Name == "" || c.Found == "" {
			t.Errorf("check %+v says too little", c)
		}
	}
}

// TestCosts: Costs measures each cost on a host that starts sandboxes. Each cost belongs to a
// check, and nothing remains.
func TestCosts(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	known := map[string]bool{"idmap": true, "hard_links": true, "state_fs": true} // of package engine
	dir := t.TempDir()
	lacking := map[string]bool{"idmap": CanMap(dir) != nil}
	for _, c := range Probe() {
		known[c.ID], lacking[c.ID] = true, c.Optional && !c.OK
	}
	for id, c := range Costs(dir) {
		t.Logf("%-12s %10v  %s", id, c.Time, c.Of)
		if lacking[id] {
			if c.Err == nil {
				t.Errorf("%s cannot be had, but costs %v", id, c.Time)
			}
			continue
		}
		if c.Err != nil || c.Time <= 0 || c.Of == "" {
			t.Errorf("cost of %s: %v for %q, error %v", id, c.Time, c.Of, c.Err)
		}
		if !known[id] {
			t.Errorf("no check is called %q", id)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, error %v", left, err)
	}
}

// TestCostsWithoutADirectory: A failed measurement says why; the other costs are present.
func TestCostsWithoutADirectory(t *testing.T) {
	fretest.RequireRoot(t)
	costs := Costs(filepath.Join(t.TempDir(), "none"))
	for _, id := range []string{"open_tree", "overlay", "hard_links", "state_fs"} {
		if c := costs[id]; !errors.Is(c.Err, fs.ErrNotExist) || c.Time != 0 {
			t.Errorf("cost of %s: %v, error %v, want %v", id, c.Time, c.Err, fs.ErrNotExist)
		}
	}
	if c := costs["kernel"]; c.Err != nil || c.Time <= 0 {
		t.Errorf("cost of a system call: %v, error %v", c.Time, c.Err)
	}
}

func TestKernelAtLeast(t *testing.T) {
	for _, test := range []struct {
		release string
		want    bool
	}{
		{"5.12.0", true},
		{"5.11.22-generic", false},
		{"6.1.0-13-cloud-amd64", true},
		{"10.0", true},
		{"4.19.0", false},
		{"what", false},
	} {
		if got := kernelAtLeast(test.release, "5.12"); got != test.want {
			t.Errorf("kernelAtLeast(%q, 5.12) = %v, want %v", test.release, got, test.want)
		}
	}
}
