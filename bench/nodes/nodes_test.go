package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox/cgroup"
)

// A process in a share sees the share's cgroup as its root.
func TestShare(t *testing.T) {
	fretest.RequireRoot(t)
	layout, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("fre-bench-test-%d", os.Getpid())
	s, err := newShare(name)
	if layout.Version != cgroup.V1 {
		if !errors.Is(err, errNoV1) {
			t.Errorf("on cgroup v2: %v, want %v", err, errNoV1)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.remove(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(s.groups[0].dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the group is left: %v", err)
		}
	}()
	if err := s.limit(t.Context(), 50); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(s.groups[0].dir, "cpu.cfs_quota_us")); err != nil || strings.TrimSpace(string(got)) != "10000" {
		t.Errorf("quota %q (%v), want half of %v", got, err, period)
	}
	wrapper := filepath.Join(t.TempDir(), "cat")
	if err := os.WriteFile(wrapper, []byte(s.enter("/proc/self/ns/net", "/bin/cat")), 0o755); err != nil {
		t.Fatal(err)
	}
	top := filepath.Join(layout.Mounts[cgroup.CPU], "cgroup.procs")
	cmd := exec.CommandContext(t.Context(), wrapper, top)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(out)); got != fmt.Sprint(cmd.Process.Pid) {
		t.Errorf("at the top of its hierarchy are %q, want %d alone", got, cmd.Process.Pid)
	}
	if cpu, err := s.used(); err != nil || cpu <= 0 {
		t.Errorf("used %v (%v)", cpu, err)
	}
	// The leftovers of a killed engine are removed as well.
	if err := os.MkdirAll(filepath.Join(s.groups[0].dir, "fre-1", "2"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestReport(t *testing.T) {
	turns := func(nodes int, rates ...float64) *series {
		s := &series{Name: "calls", Nodes: nodes}
		for _, r := range rates {
			s.Turns = append(s.Turns, turn{PerSecond: r, Used: []float64{1, 0.9}[:min(2, nodes)], Others: 0.5})
		}
		return s
	}
	one, three := turns(1, 100, 120, 110), turns(3, 300, 300, 330)
	if m, least, most := ratios(one, three); fmt.Sprintf("%.2f %.2f %.2f", m, least, most) != "2.73 2.50 3.00" {
		t.Errorf("ratios %v, %v, %v", m, least, most)
	}
	r := &result{Host: host.Info{CPUs: 2}, Share: 25, Series: []*series{one, three}}
	text := r.markdown(options{rounds: 3, slice: time.Second, connections: 192})
	for _, want := range []string{"| calls | 1 | 110 (100–120) | 1 |", "| calls | 3 | 300 (300–330) | **2.73** (2.50–3.00) |", "| 90 % |", "Others took up to 0.5 of the machine's 2 CPUs"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	three.Turns[0].Others, three.Turns[1].Others = 0, 0
	one.Turns[0].Others, one.Turns[1].Others = 0, 0
	if text := r.markdown(options{}); strings.Contains(text, "Others took") {
		t.Errorf("a quiet machine is said to be busy:\n%s", text)
	}
}
