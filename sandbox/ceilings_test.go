package sandbox

import (
	"strings"
	"testing"
)

// TestCeilings: A ceiling reports the admitted number of sandboxes and the line that raises the
// number.
func TestCeilings(t *testing.T) {
	for i := range ceilings {
		c := &ceilings[i]
		enough := c.check(manySandboxes * c.each)
		if !enough.OK || enough.Next != "" || !strings.Contains(enough.Found, "room for 1000 sandboxes") {
			t.Errorf("%s with enough: %+v", c.setting, enough)
		}
		few := c.check(manySandboxes*c.each - 1)
		if few.OK || !strings.Contains(few.Next, c.setting+" = ") {
			t.Errorf("%s with too few: %+v, want the line to write", c.setting, few)
		}
		if value, err := c.read(); err != nil || value <= 0 {
			t.Logf("%s here: %d, %v", c.setting, value, err)
		}
	}
	tcp := &ceiling{setting: "net.ipv4.tcp_mem", field: 2, each: 128}
	if got, want := tcp.settingOf(128000), "64000 96000 128000"; got != want {
		t.Errorf("tcp_mem: %q, want %q", got, want)
	}
}

// TestProbeCeilings: Each ceiling has its own id and names its effect.
func TestProbeCeilings(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range probeCeilings() {
		if seen[c.ID] || c.ID == "" || c.Found == "" || c.Effect == "" || !c.OK && c.Next == "" && !strings.Contains(c.Found, ":") {
			t.Errorf("%+v", c)
		}
		seen[c.ID] = true
	}
	for _, id := range []string{"pid_max", "threads_max", "file_max", "tcp_mem", "tasks_max", "loop"} {
		if !seen[id] {
			t.Errorf("nothing is said of %s", id)
		}
	}
}
