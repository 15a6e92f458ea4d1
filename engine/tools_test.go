package engine

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/image"
)

// TestParkedTool: the engine starts a parked program of build steps ahead for the next step. The
// program finds the same files as one that starts with the step, and is used once.
func TestParkedTool(t *testing.T) {
	r := open(t)
	rootfs := r.store.Rootfs(r.interpreted("tool", "1", nil).Digest)
	given := t.TempDir()
	if err := errors.Join(os.Chmod(given, 0o755), os.WriteFile(filepath.Join(given, "given"), []byte("given"), 0o666)); err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context, what string, said func()) (string, error) {
		t.Helper()
		bench, err := r.store.MkdirScratch()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(bench) }()
		out := listener{said: said}
		err = r.cfg.Builder.Run.Run(ctx, image.Command{
			Rootfs: rootfs, Args: []string{"/bin/fn", "tool", what}, Parks: true, Dir: "/work", Stdout: &out,
			Binds: []image.Bind{{Source: bench, Target: "/work", Writable: true}, {Source: given, Target: "/function"}},
		})
		if made, err := os.ReadFile(filepath.Join(bench, "made")); string(made) != what {
			t.Errorf("%s: the step left %q, %v", what, made, err)
		}
		return strings.TrimSpace(out.String()), err
	}
	ready := func() {
		t.Helper()
		eventually(t, "a parked program", func() bool {
			r.interpreters.mu.Lock()
			defer r.interpreters.mu.Unlock()
			for _, p := range r.interpreters.pools {
				if p.tool && p.stats().Ready > 0 {
					return true
				}
			}
			return false
		})
	}
	for _, how := range []string{"fresh", "parked", "parked"} {
		if got, err := run(t.Context(), "work", nil); err != nil || got != how+" work given 0 false 1000 <nil>" {
			t.Errorf("got %q, %v; want it %s", got, err, how)
		}
		ready()
	}
	eventually(t, "what is parked not to be listed", func() bool { return len(r.Sandboxes(false)) == 0 })

	got, err := run(t.Context(), "fail", nil)
	var exit *image.ExitError
	if !errors.As(err, &exit) || exit.Status != 3 || !strings.Contains(exit.Output, "went wrong") || !strings.HasPrefix(got, "parked") {
		t.Errorf("failing step: %q, %v", got, err)
	}
	ready()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no longer wanted")
	if got, err := run(ctx, "hang", func() { cancel(cause) }); !errors.Is(err, cause) || !strings.HasPrefix(got, "parked") {
		t.Errorf("cancelled step: %q, %v", got, err)
	}
	eventually(t, "the step's end", func() bool { return len(r.Sandboxes(false)) == 0 })
}

// listener keeps the written bytes, and calls said, unless nil, each time.
type listener struct {
	bytes.Buffer
	said func()
}

func (l *listener) Write(p []byte) (int, error) {
	if l.said != nil {
		l.said()
	}
	return l.Buffer.Write(p)
}
