package system_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// One engine deploys functions, answers calls, contains abuse and survives kills. At the end the
// host has no leftovers.
func TestSystem(t *testing.T) {
	fretest.RequireRoot(t)
	w := newWorld(t)
	w.checkHost(t)

	t.Run("engine", func(t *testing.T) {
		w.start(t)
		t.Run("deploy", w.testDeploy)
		if t.Failed() {
			t.Fatal("the rest needs the functions")
		}
		t.Run("templates", w.testTemplates)
		t.Run("contract", w.testContract)
		t.Run("sockets", w.testSockets)
		t.Run("parked interpreters", w.testParkedInterpreters)
		t.Run("instances", w.testInstances)
		t.Run("calls", w.testCalls)
		t.Run("tenants", w.testTenants)
		t.Run("logs", w.testLogs)
		t.Run("bad", w.testBad)
		t.Run("bad build", w.testBadBuild)
		t.Run("cli", w.testCLI)
		t.Run("scaffolds", w.testScaffolds)
		t.Run("slim", w.testSlim)
		t.Run("readme", w.testReadme)
		t.Run("leaks", w.testLeaks)
		t.Run("drain", w.testDrain)
	})
	t.Run("crash", w.testCrash)
	t.Run("egress", w.testEgress)
}

// TestPrepare builds all images of the tests into FRE_SYSTEM_PREPARE.
func TestPrepare(t *testing.T) {
	dir := os.Getenv("FRE_SYSTEM_PREPARE")
	if dir == "" {
		t.Skip("FRE_SYSTEM_PREPARE names no directory to prepare")
	}
	fretest.RequireRoot(t)
	w := newWorld(t)
	w.state = dir
	w.start(t)
	for _, template := range w.allTemplates(t) {
		w.cli(t, "build", template)
	}
	for _, f := range reaching {
		w.cli(t, "build", f.write(t, filepath.Join(w.dir, "functions")))
	}
}

// allTemplates returns the directories of all templates that the tests deploy.
func (w *world) allTemplates(t *testing.T) []string {
	t.Helper()
	dirs := templates(t, filepath.Join(w.dir, "templates"))
	for _, f := range functions {
		dirs = append(dirs, f.write(t, filepath.Join(w.dir, "functions")))
	}
	return dirs
}

func (w *world) testDeploy(t *testing.T) {
	for _, dir := range w.allTemplates(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { w.deploy(t, dir) })
	}
}

func (w *world) testTemplates(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(w.dir, "templates", "*"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) { w.testTemplate(t, dir) })
	}
}

// testTemplate calls the function of a template, deployed under the name of the directory.
func (w *world) testTemplate(t *testing.T, dir string) {
	t.Helper()
	name := filepath.Base(dir)
	c, err := testdaemon.LoadCase(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.Event.Call(t.Context(), w.client, w.d.Addr(), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(a); err != nil {
		t.Error(err)
	}
	w.cli(t, "test", dir, "--function", name) // the second way: over the socket, to the deployed function
}

// testDrain: the engine answers an event in flight before a graceful stop.
func (w *world) testDrain(t *testing.T) {
	w.ok(t, "probe", "/echo", "") // start an instance
	type result struct {
		a   *testdaemon.Answer
		err error
	}
	done := make(chan result, 1)
	go func() {
		a, err := w.call(context.Background(), "probe", "/held", "drained")
		done <- result{a, err}
	}()
	until(t, w.busy("probe"))
	stopping := func() int {
		text, err := os.ReadFile(w.log.Name())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), " msg=stopping ")
	}
	before := stopping()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.stop(t)
	}()
	until(t, func() error {
		if stopping() == before {
			return errors.New("the engine does not say that it stops")
		}
		return nil
	})
	writeFile(t, filepath.Join(w.state, "tenants", "default", "work", "drained"), "")
	<-stopped
	r := <-done
	if r.err != nil {
		t.Fatalf("an event in flight when the engine was stopped: %v", r.err)
	}
	if r.a.Status != 200 || string(r.a.Body) != "done" {
		t.Errorf("an event in flight when the engine was stopped: got status %d: %s", r.a.Status, r.a.Body)
	}
}
