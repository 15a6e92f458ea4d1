// Package daemontest runs the built program for the suites below test/, which
// fail unless each engine ends as it should.
package daemontest

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/daemon"
	"github.com/fre-engine/fre/internal/fretest"
)

// within bounds a start and a stop; nothing measured depends on it.
const within = 2 * time.Minute

// Bin is the absolute path of the program to test: FRE_BIN, or ../../bin/fre as
// seen from the directory of a suite.
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

// Dir makes a directory that is removed with the test. Unlike t.TempDir's it is
// on a disk rather than in memory, has a short path, for sockets, and no parent
// that is its owner's alone.
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

// Start runs an engine; the caller ends it by [Stop], or kills it. cfg.Bin
// defaults to [Bin].
func Start(t testing.TB, cfg daemon.Config) *daemon.Daemon {
	t.Helper()
	if cfg.Bin == "" {
		cfg.Bin = Bin(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	d, err := daemon.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Stop ends an engine, which must do so by itself, with status 0, and leave no
// process behind.
func Stop(t testing.TB, d *daemon.Daemon) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections()
	family := daemon.Descendants(d.PID())
	ctx, cancel := context.WithTimeout(context.Background(), within) // t's has ended in a cleanup
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

// Serve runs an engine with the functions given, whose program is fretest's, and
// stops it when t ends; then nothing may be left.
func Serve(t testing.TB, functions ...daemon.Function) *daemon.Daemon {
	t.Helper()
	return ServeWith(t, daemon.Config{Log: t.Output()}, functions...)
}

// ServeWith is Serve with a configuration but for its State, which is a new one.
func ServeWith(t testing.TB, cfg daemon.Config, functions ...daemon.Function) *daemon.Daemon {
	t.Helper()
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	state := filepath.Join(Dir(t), "state")
	program := filepath.Join(fretest.Rootfs(t), "bin/prog")
	for i := range functions {
		functions[i].Program, functions[i].Config.Args = program, []string{"/function/program", "function"}
	}
	if err := daemon.PutImages(t.Context(), state, functions...); err != nil {
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
