package sandbox

import (
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
)

// TestProbe runs where the other tests start sandboxes, so all must be well.
func TestProbe(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	for _, c := range Probe() {
		t.Logf("%-18s %v %s", c.Name, c.OK, c.Found)
		if !c.OK && !c.Optional && c.ID != "landlock" { // which sandboxes can do without
			t.Errorf("%s is not OK: found %s", c.Name, c.Found)
		}
		if c.Name == "" || c.Found == "" {
			t.Errorf("check %+v says too little", c)
		}
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
