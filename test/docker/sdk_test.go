package docker_test

import (
	"context"
	"os/exec"
	"testing"

	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// The distribution's Python SDK works with FRE as with Docker.
func TestSDK(t *testing.T) {
	w := &world{Daemon: daemontest.Serve(t), client: clients(t)[0], config: t.TempDir()}
	w.app(t)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	out, err := exec.CommandContext(ctx, "/usr/bin/python3", "testdata/sdk.py", w.DockerSocket()).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
