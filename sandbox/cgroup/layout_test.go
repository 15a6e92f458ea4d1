package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestAbove: The limits of the groups above the engine are read, on v1 and on v2. A directory takes
// the place of the hierarchies.
func TestAbove(t *testing.T) {
	for _, test := range []struct {
		name  string
		v     Version
		files map[string]string
		want  map[Controller]int64
	}{
		{"v1, none", V1, map[string]string{
			"memory.limit_in_bytes": "9223372036854771712\n", "cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n",
		}, map[Controller]int64{Memory: 9223372036854771712}},
		{"v1, all", V1, map[string]string{
			"memory.limit_in_bytes": "1073741824\n", "cpu.cfs_quota_us": "75000\n", "cpu.cfs_period_us": "50000\n", "pids.max": "500\n",
		}, map[Controller]int64{Memory: 1 << 30, CPU: 1500, Pids: 500}},
		{"v2, the root", V2, nil, map[Controller]int64{}},
		{"v2, none", V2, map[string]string{"memory.max": "max\n", "cpu.max": "max 100000\n", "pids.max": "max\n"}, map[Controller]int64{}},
		{"v2, all", V2, map[string]string{
			"memory.max": "1073741824\n", "cpu.max": "50000 100000\n", "pids.max": "500\n",
		}, map[Controller]int64{Memory: 1 << 30, Pids: 500}},
	} {
		dir := t.TempDir()
		for name, text := range test.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l := Layout{Version: test.v, Own: "/", Mounts: map[Controller]string{CPU: dir, CPUAcct: dir, Memory: dir, Pids: dir}}
		above, err := l.Above()
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		got := map[Controller]int64{}
		for c, b := range above {
			got[c] = b.Most
			if filepath.Dir(b.File) != dir {
				t.Errorf("%s: %s is bounded by %s", test.name, c, b.File)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestAboveDelegated: The limits of the delegated service's group count, for each place of the
// engine in the service: before and after evacuate, and below the group of DelegateSubgroup=
// (systemd.exec).
func TestAboveDelegated(t *testing.T) {
	top := t.TempDir()
	service := filepath.Join(top, "system.slice", "fre.service")
	if err := os.MkdirAll(filepath.Join(service, "engine"), 0o700); err != nil {
		t.Fatal(err)
	}
	for group, text := range map[string]string{"system.slice": "900\n", "system.slice/fre.service": "500\n", "system.slice/fre.service/engine": "100\n"} {
		if err := os.WriteFile(filepath.Join(top, group, "pids.max"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	above := func(own string) map[Controller]Bound {
		t.Helper()
		l := Layout{Version: V2, Own: own, Mounts: map[Controller]string{CPU: top, CPUAcct: top, Memory: top, Pids: top}}
		above, err := l.Above()
		if err != nil {
			t.Fatal(err)
		}
		return above
	}
	for _, own := range []string{"/", "/system.slice/fre.service", "/system.slice/fre.service/engine"} {
		if got := above(own); len(got) != 0 { // the pool makes its parent group at the top
			t.Errorf("%s, not delegated: bounded by %v", own, got)
		}
	}
	err := unix.Setxattr(service, "trusted.delegate", []byte("1"), 0)
	if errors.Is(err, unix.EPERM) {
		err = unix.Setxattr(service, "user.delegate", []byte("1"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	want := map[Controller]Bound{Pids: {500, filepath.Join(service, "pids.max")}}
	for _, own := range []string{"/system.slice/fre.service", "/system.slice/fre.service/engine"} {
		if diff := cmp.Diff(want, above(own)); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", own, diff)
		}
	}
	if got := above("/system.slice"); len(got) != 0 {
		t.Errorf("the slice of the service: bounded by %v", got)
	}
}

// TestLeast: The least limit among the nested groups counts.
func TestLeast(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "a", "b", "c")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		group, text string
		want        Bound
	}{
		{".", "", Bound{}},
		{".", "900\n", Bound{900, filepath.Join(top, "pids.max")}},
		{"a", "100\n", Bound{100, filepath.Join(top, "a", "pids.max")}},
		{"a/b", "max\n", Bound{100, filepath.Join(top, "a", "pids.max")}},
		{"a/b/c", "200\n", Bound{100, filepath.Join(top, "a", "pids.max")}},
		{"a/b/c", "50\n", Bound{50, filepath.Join(dir, "pids.max")}},
	} {
		if step.text != "" {
			if err := os.WriteFile(filepath.Join(top, step.group, "pids.max"), []byte(step.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := least(dir, top, "pids.max")
		if err != nil || got != step.want {
			t.Errorf("%s says %q: got %+v, %v, want %+v", step.group, step.text, got, err, step.want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte("some\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := least(dir, top, "pids.max"); err == nil {
		t.Errorf("a limit of some: got %+v, want an error", got)
	}
}
