package dockerd_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/fre-engine/fre/bench/internal/dockerd"
	"github.com/fre-engine/fre/internal/fretest"
)

// A started Docker engine lists its processes and ends without leftovers. The test returns at once
// on machines without a Docker engine.
func TestEngine(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	e, err := dockerd.Start(t.Context(), filepath.Join(t.TempDir(), "docker"))
	if errors.Is(err, dockerd.ErrMissing) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := e.Import(t.Context(), fretest.Rootfs(t), "fre-test"); err != nil {
		t.Fatal(err)
	}
	out, err := e.Run(t.Context(), "run", "--rm", "--network", "none", "fre-test", "/bin/prog", "args", "hello")
	if err != nil {
		t.Fatal(err)
	}
	if out != "hello\n" {
		t.Errorf("got %q", out)
	}
	pids, err := e.PIDs()
	if err != nil || len(pids) < 2 { // dockerd, containerd
		t.Errorf("got processes %v, error %v", pids, err)
	}
}
