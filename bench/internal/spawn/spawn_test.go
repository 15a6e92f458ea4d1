package spawn_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/bench/internal/spawn"
	"github.com/fre-engine/fre/internal/fretest"
)

// script writes an executable shell script and returns its path.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func start(t *testing.T, argv ...string) *spawn.Spawner {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	bin, err := spawn.Compile(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := spawn.Start(bin, argv...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// uptime prints the monotonic clock, rounded up to the next second so that the value is later than
// the start. On Linux the clock is the uptime unless the machine was suspended.
const uptime = `read up rest < /proc/uptime; echo "$(( ${up%.*} + 1 ))000000000 0"`

func TestStarts(t *testing.T) {
	s := start(t, script(t, uptime))
	for name, run := range map[string]func(int) ([]time.Duration, error){"sequential": s.Sequential, "burst": s.Burst} {
		t.Run(name, func(t *testing.T) {
			got, err := run(5)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 5 {
				t.Fatalf("got %d durations, want 5", len(got))
			}
			for _, d := range got {
				if d <= 0 {
					t.Errorf("got %v, want more than 0", d)
				}
			}
		})
	}
}

func TestNumbers(t *testing.T) {
	seen := filepath.Join(t.TempDir(), "seen")
	s := start(t, script(t, `echo "$2" >> "$1"; `+uptime), seen, "{}")
	if _, err := s.Sequential(3); err != nil {
		t.Fatal(err)
	}
	lines, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for line := range strings.Lines(string(lines)) {
		ids[line] = true
	}
	if len(ids) != 3 {
		t.Errorf("got the arguments %q, want three that differ", lines)
	}
}

func TestRoot(t *testing.T) {
	fretest.RequireRoot(t)
	root := t.TempDir()
	program, err := spawn.Compile(t.Context(), root) // any static program
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := spawn.StartIn(program, root, "/proc/self/root/spawn")
	if err != nil {
		t.Fatal(err)
	}
	// The spawner finds the program below the root, through /proc, and the program prints a usage.
	if _, err := s.Sequential(1); err == nil || !strings.Contains(err.Error(), "status 0x200") {
		t.Errorf("got error %v, want the usage's status", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestFailures(t *testing.T) {
	for _, c := range []struct{ name, program, want string }{
		{"exit status", script(t, "exit 3"), "status 0x300"},
		{"complaints meanwhile", script(t, "echo oops >&2; exit 3"), "status 0x300"}, // for the race detector
		{"no clock", script(t, "echo hello"), "no clock"},
		{"a clock before the start", script(t, "echo 1 1"), "no clock later"},
		{"no such program", "/no/such/program", "No such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, c.program)
			_, err := s.Burst(2)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
		})
	}
}
