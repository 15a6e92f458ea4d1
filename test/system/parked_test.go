package system_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/testdaemon"
)

// testParkedInterpreters: a parked interpreter holds no data of a tenant or function, and a cold
// function starts from one.
func (w *world) testParkedInterpreters(t *testing.T) {
	for function, test := range map[string]struct{ bootstrap, path string }{
		"unforked":   {"/opt/fre/bootstrap.py", "/echo"}, // Python functions start by fork unless the template forbids forks
		"node-hello": {"/opt/fre/bootstrap.js", ""},
	} {
		t.Run(function, func(t *testing.T) {
			until(t, w.parked(t, function))
			var waiting []testdaemon.Process
			until(t, func() error {
				used := w.ps(t, "*")
				waiting = slices.DeleteFunc(testdaemon.Descendants(w.d.PID()), func(p testdaemon.Process) bool {
					if slices.ContainsFunc(used, func(s sandbox) bool { return s.PID == p.PID }) {
						return true
					}
					line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)) // empty if it has ended
					return !strings.HasSuffix(string(line), "\x00"+test.bootstrap+"\x00")
				})
				if len(waiting) == 0 {
					return fmt.Errorf("no process runs %s without a handler", test.bootstrap)
				}
				return nil
			})
			for _, p := range waiting {
				checkWaiting(t, p)
			}
			for _, s := range w.ps(t, function) {
				w.cli(t, "kill", s.ID)
			}
			until(t, w.parked(t, function))
			if kind := w.ok(t, function, test.path, "").Header.Get("X-Fre-Start"); kind != "interpreter" {
				t.Errorf("X-Fre-Start is %q, want interpreter", kind)
			}
			w.untilIdle(t, function)
			if kind := w.ok(t, function, test.path, "").Header.Get("X-Fre-Start"); kind != "warm" {
				t.Errorf("X-Fre-Start of the second event is %q, want warm", kind)
			}
		})
	}
}

// parked reports whether an interpreter is parked for a function.
func (w *world) parked(t testing.TB, function string) func() error {
	t.Helper()
	return func() error {
		var f struct {
			Parked *struct{ Ready int } `json:"parked_interpreters"`
		}
		out := w.cli(t, "function", "inspect", function, "--format", "{{json .}}")
		if err := json.Unmarshal([]byte(out), &f); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if f.Parked == nil || f.Parked.Ready == 0 {
			return fmt.Errorf("no interpreter is parked for %s: %+v", function, f.Parked)
		}
		return nil
	}
}

// openOnly returns an error if a parked interpreter has a file open besides its channel and its
// event loop.
func openOnly(p testdaemon.Process) error {
	dir := fmt.Sprintf("/proc/%d/fd", p.PID)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range fds {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		kind, _, _ := strings.Cut(target, ":")
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		own := kind == "anon_inode" || kind == "pipe" || target == "/dev/null" // the event loop of node
		if fd > 3 && !own {
			return fmt.Errorf("%s has file descriptor %d on %s", p, fd, target)
		}
	}
	return nil
}

func checkWaiting(t *testing.T, p testdaemon.Process) {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d/", p.PID)
	read := func(name string) string {
		text, err := os.ReadFile(proc + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	until(t, func() error { return openOnly(p) }) // the newest interpreter may still be starting
	var points []string
	for line := range strings.Lines(read("mountinfo")) {
		fields := strings.Fields(line)
		points = append(points, fields[4])
		if strings.Contains(fields[3], "tenants") {
			t.Errorf("%s has a tenant's directory mounted: %s", p, line)
		}
	}
	slices.Sort(points)
	if want := []string{"/", "/dev", "/proc", "/tmp"}; !slices.Equal(points, want) {
		t.Errorf("%s has mounts on %v, want %v", p, points, want)
	}
	if ids := strings.Fields(read("uid_map")); len(ids) != 3 || ids[0] != "0" || len(ids[1]) != len("2147483648") {
		t.Errorf("%s has the ids %v, want a range above the tenants'", p, ids)
	}
	for v := range strings.SplitSeq(strings.Trim(read("environ"), "\x00"), "\x00") {
		if name, _, _ := strings.Cut(v, "="); !slices.Contains([]string{
			"PATH", "HOME", "TMPDIR", "LANG", "NODE_ENV", "PYTHONDONTWRITEBYTECODE", "FRE_CHANNEL",
		}, name) {
			t.Errorf("%s has %s in its environment", p, v)
		}
	}
}
