// Package daemontest runs the built program for the suites below test/. A test fails unless each
// engine ends cleanly.
package daemontest

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// within bounds a start or a stop; no measurement depends on the bound.
const within = 2 * time.Minute

// Bin returns the absolute path of the program under test: FRE_BIN, or ../../bin/fre relative to
// the directory of a suite.
func Bin(t testing.TB) string {
	t.Helper()
	bin := os.Getenv("FRE_BIN")
	if bin == "" {
		bin = "../../bin/fre"
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: run make build, or set FRE_BIN", err)
	}
	return bin
}

// Dir creates a directory and removes it when the test ends. Unlike the directory of t.TempDir, it
// lies on a disk rather than in memory, has a path short enough for sockets, and every parent
// directory is open to other users.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "fre-test-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Start runs an engine. The caller ends the engine with [Stop] or kills it. cfg.Bin defaults to
// [Bin].
func Start(t testing.TB, cfg testdaemon.Config) *testdaemon.Daemon {
	t.Helper()
	if cfg.Bin == "" {
		cfg.Bin = Bin(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	d, err := testdaemon.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Stop ends an engine. The test fails unless the engine exits by itself with status 0 and leaves no
// process behind.
func Stop(t testing.TB, d *testdaemon.Daemon) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections()
	family := testdaemon.Descendants(d.PID())
	ctx, cancel := context.WithTimeout(context.Background(), within) // t's context has ended when a cleanup runs
	defer cancel()
	if err := d.Stop(ctx); err != nil {
		t.Error(err)
	}
	for _, p := range family {
		if p.Alive() {
			t.Errorf("after a graceful stop: process %v survived", p)
		}
	}
}

// Serve runs an engine with the given functions, whose program is fretest's, and stops the engine
// when t ends. The test fails if a resource leaks.
func Serve(t testing.TB, functions ...testdaemon.Function) *testdaemon.Daemon {
	t.Helper()
	return ServeWith(t, testdaemon.Config{Log: t.Output()}, functions...)
}

// ServeWith is Serve with a configuration; cfg.State is ignored and replaced by a new directory.
func ServeWith(t testing.TB, cfg testdaemon.Config, functions ...testdaemon.Function) *testdaemon.Daemon {
	t.Helper()
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	state := filepath.Join(Dir(t), "state")
	program := filepath.Join(fretest.Rootfs(t), "bin/prog")
	for i := range functions {
		functions[i].Program, functions[i].Config.Args = program, []string{"/function/program", "function"}
	}
	if err := testdaemon.PutImages(t.Context(), state, functions...); err != nil {
		t.Fatal(err)
	}
	cfg.State = state
	d := Start(t, cfg)
	t.Cleanup(func() { Stop(t, d) })
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for _, f := range functions {
		if _, err := d.CLI(ctx, "deploy", "--image", f.Name+":1", "--name", f.Name); err != nil {
			t.Fatal(err)
		}
	}
	return d
}
