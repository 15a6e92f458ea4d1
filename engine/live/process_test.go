package live

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	booted := time.Unix(1000, 0)
	p, name, err := parseStat("42 (a) b) S 7 42 42 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 1 0 300 1 1", booted)
	if err != nil || name != "a) b" {
		t.Fatalf("name %q, %v", name, err)
	}
	want := Process{Parent: 7, CPU: 2 * time.Second, Started: time.Unix(1003, 0)}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("process (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "42 a S 7", "42 (a) S 7", "42 (a) S x 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", ")("} {
		if _, _, err := parseStat(bad, booted); err == nil {
			t.Errorf("parseStat(%q): want an error", bad)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("42 (a) b) S 7 42 42 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 1 0 300 1 1")
	f.Add(")(")
	f.Fuzz(func(_ *testing.T, text string) {
		_, _, _ = parseStat(text, time.Unix(0, 0))
	})
}

// TestReadProcess: a process's arguments can neither fill the engine's memory nor control the
// reader's terminal.
func TestReadProcess(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "echo; read line", "a\x1b[2J\u009b2J\nb", strings.Repeat("x", 100<<10), strings.Repeat("y", 100<<10))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, readErr := out.Read(make([]byte, 1)) // the program has been executed
	p, err := readProcess(cmd.Process.Pid, time.Unix(0, 0))
	_ = in.Close()
	_ = cmd.Wait() // its read ended with an error
	if readErr != nil || err != nil {
		t.Fatal(readErr, err)
	}
	if want := "/bin/sh -c echo; read line a [2J 2J b xxx"; !strings.HasPrefix(p.Command, want) || len(p.Command) > maxCommand {
		t.Errorf("%d bytes, %.100q, want %q and %d at most", len(p.Command), p.Command, want, maxCommand)
	}
}
