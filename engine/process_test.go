package engine

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
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

// TestReadProcess: a process's arguments can neither take the engine's memory nor
// drive the terminal of who reads them.
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
	_, readErr := out.Read(make([]byte, 1)) // it has been executed
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

func TestProcessesSignalWait(t *testing.T) {
	r := open(t)
	r.deploy("app", nil)
	r.mustCall("app", "/", "x", "x")
	id := r.Sandboxes(false)[0].ID
	ps, err := r.Processes(id[:6])
	if err != nil || len(ps) != 1 || !strings.HasPrefix(ps[0].Command, "/function/fn") || ps[0].UID == 0 || ps[0].PID == 0 {
		t.Fatalf("Processes: %+v, %v, want the function as no root", ps, err)
	}
	if age := time.Since(ps[0].Started); age < 0 || age > time.Hour {
		t.Errorf("started %v ago", age)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Wait(ctx, id); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait that is given up: %v", err)
	}
	if err := r.Signal(id, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 2 { // as it ends, and of one that has ended
		b, err := r.Wait(t.Context(), id)
		if err != nil || b.Exit == nil || b.Exit.Signal != 9 {
			t.Errorf("Wait: %+v, %v, want signal 9", b, err)
		}
	}
	if _, err := r.Wait(t.Context(), "nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Wait for nothing: %v", err)
	}
	if err := r.Signal(id, unix.SIGHUP); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Signal to what has ended: %v", err)
	}
}
