package engine

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

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
	for range 2 { // first during its end, then after it
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
