package runtimes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// recorder notes the programs that build steps run and refuses a step that
// could write to what other builds read.
type recorder struct {
	image.Runner
	runs []string
}

func (r *recorder) Run(ctx context.Context, c image.Command) error {
	r.runs = append(r.runs, filepath.Base(c.Args[0])+" "+filepath.Base(c.Args[1]))
	unpacks := slices.Contains(c.Args, "ci") || slices.Contains(c.Args, "install") && !slices.Contains(c.Args, "--package-lock-only")
	if unpacks && slices.ContainsFunc(c.Binds, func(b image.Bind) bool { return b.Writable && b.Target != "/work" }) {
		return fmt.Errorf("%q unpacks packages and could write to what other builds read: %v", c.Args, c.Binds)
	}
	return r.Runner.Run(ctx, c)
}

// TestMain moves into a mount namespace of its own, as the daemon does.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 {
		if err := sandbox.Isolate(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// workshop is a builder over the host's real archive and package sites, shared
// by the tests because a base environment takes its time.
type workshop struct {
	*image.Builder
	runner *recorder
}

func newWorkshop(t *testing.T) *workshop {
	t.Helper()
	fretest.RequireRoot(t)
	if testing.Short() {
		t.Skip("builds base environments from the network")
	}
	state := os.Getenv("FRE_TEST_STATE") // keeps base environments between runs
	if state == "" {
		state = t.TempDir()
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := store.Open(filepath.Join(state, "store"), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	settings, err := image.HostSettings(image.ThisHost(), image.SettingsOverride{})
	if err != nil {
		t.Fatal(err)
	}
	cache := os.Getenv("FRE_TEST_CACHE")
	if cache == "" {
		cache = filepath.Join(state, "debian")
	}
	b := &image.Builder{
		Store: s, Runtimes: runtimes.All(), Settings: settings, Log: log,
		Archive: func() (image.Archive, error) { return debian.Open(debian.Config{Cache: cache, Log: log}) },
	}
	host, err := sandbox.Open(sandbox.Config{Dir: filepath.Join(state, "run"), Log: log, PoolSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.Open(engine.Config{Store: s, Sandboxes: host, Builder: b, StateDir: state, Log: log})
	if err != nil {
		t.Fatal(errors.Join(err, host.Close()))
	}
	t.Cleanup(func() {
		if err := errors.Join(e.Close(context.WithoutCancel(t.Context())), host.Close()); err != nil {
			t.Error(err)
		}
	})
	r := &recorder{Runner: b.Run}
	b.Run = r
	return &workshop{b, r}
}

// build builds a template with one file of code.
func (w *workshop) build(t *testing.T, template, file string, lock *image.Lock) (*store.Image, *image.Lock, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "fret.yaml"), []byte(template), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	if lock != nil {
		if err := image.WriteLock(root, lock); err != nil {
			t.Fatal(err)
		}
	}
	w.runner.runs = nil
	return w.Build(t.Context(), root, nil)
}

// inside runs a program in the image and returns what it printed.
func (w *workshop) inside(t *testing.T, img *store.Image, env []string, args ...string) string {
	t.Helper()
	var out, stderr bytes.Buffer
	err := w.runner.Run(t.Context(), image.Command{
		Rootfs: w.Store.Rootfs(img.Digest), Args: args, Env: env, Dir: "/function", Stdout: &out, Stderr: &stderr,
	})
	if err != nil {
		t.Errorf("%q: %v\n%s", args, err, &stderr)
	}
	return strings.TrimSpace(out.String())
}

func partNames(img *store.Image, kind string) []string {
	var out []string
	for _, p := range img.Parts {
		if p.Kind == kind {
			out = append(out, p.Name+" "+p.Version+" at "+p.Prefix)
		}
	}
	slices.Sort(out)
	return out
}

// noHosts fails where a lock says where it was made.
func noHosts(t *testing.T, l *image.Lock) {
	t.Helper()
	data, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "://") {
		t.Errorf("the lock holds an address: %s", data)
	}
}

func TestBuildPython(t *testing.T) {
	w := newWorkshop(t)
	const template = "id: f\nbase: python\nhandler: main.handle\npackages:\n  pip: [%s]\n"
	img, lock, err := w.build(t, fmt.Sprintf(template, `"requests==2.32.3", "lxml==5.3.0"`), "main.py", nil)
	if err != nil {
		t.Fatal(err)
	}
	noHosts(t, lock)
	got := partNames(img, "pip")
	for _, want := range []string{"requests 2.32.3 at opt/python", "lxml 5.3.0 at opt/python"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s among %q", want, got)
		}
	}
	if len(got) != 6 { // certifi, charset-normalizer, idna, urllib3
		t.Errorf("parts: %q", got)
	}
	env := []string{"PYTHONPATH=/function:/opt/python", "PYTHONDONTWRITEBYTECODE=1"}
	out := w.inside(t, img, env, "/usr/bin/python3", "-S", "-v", "-c", "import requests, lxml.etree; print(lxml.etree.fromstring('<a>b</a>').text)")
	if out != "b" {
		t.Errorf("printed %q", out)
	}
	// Everything has its bytecode: the interpreter compiles nothing.
	code := `import sys, os
import requests, json, asyncio, lxml
sys.path.insert(0, "/opt/fre")
import _fre.fork, _fre.park
for name in _fre.park.PRELOADED: __import__(name)
print([m.__name__ for m in sys.modules.values() if (getattr(m, "__file__", None) or "").endswith(".py") and not os.path.exists(getattr(m, "__cached__", None) or "/usr")])`
	if out := w.inside(t, img, env, "/usr/bin/python3", "-S", "-c", code); out != "[]" {
		t.Errorf("modules without bytecode: %s", out)
	}

	t.Run("the lock and the store answer", func(t *testing.T) {
		again, lock2, err := w.build(t, fmt.Sprintf(template, `"requests==2.32.3", "lxml==5.3.0"`), "main.py", lock)
		if err != nil {
			t.Fatal(err)
		}
		if len(w.runner.runs) != 0 {
			t.Errorf("ran %q", w.runner.runs)
		}
		if a, b := partNames(again, "pip"), partNames(img, "pip"); !slices.Equal(a, b) {
			t.Errorf("other parts: %q", a)
		}
		noHosts(t, lock2)
	})
	t.Run("hash mismatch", func(t *testing.T) {
		bad := &image.Lock{Pip: &image.LockedPip{Request: []string{"six==1.16.0"}, Packages: []image.LockedPackage{
			{Name: "six", Version: "1.16.0", Hashes: []string{"sha256:" + strings.Repeat("0", 64)}},
		}}}
		_, _, err := w.build(t, fmt.Sprintf(template, "six==1.16.0"), "main.py", bad)
		if err == nil || !strings.Contains(err.Error(), "ash") || !strings.Contains(err.Error(), "six") {
			t.Errorf("got %v", err)
		}
		t.Log(err)
	})
	for name, tt := range map[string]struct{ request, want string }{
		"unknown package": {"no-such-package-of-fre", "no-such-package-of-fre"},
		"unknown version": {"six==99.1", "six==99.1"},
		"conflict":        {`"urllib3==2.0.0", "requests==2.20.0"`, "urllib3"},
		"no wheel":        {"docopt==0.6.2", "building from source is not supported yet"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := w.build(t, fmt.Sprintf(template, tt.request), "main.py", nil)
			var errs image.TemplateErrors
			if !errors.As(err, &errs) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "fret.yaml:5:") {
				t.Errorf("got %v", err)
			}
			t.Log(err)
		})
	}
}

func TestBuildNode(t *testing.T) {
	w := newWorkshop(t)
	const template = "id: f\nbase: node\nhandler: index.handle\npackages:\n  npm: [%s]\n"
	img, lock, err := w.build(t, fmt.Sprintf(template, `"left-pad@1.3.0", "express@4.19.2"`), "index.js", nil)
	if err != nil {
		t.Fatal(err)
	}
	noHosts(t, lock)
	got := partNames(img, "npm")
	for _, want := range []string{
		"left-pad 1.3.0 at node_modules/left-pad", "express 4.19.2 at node_modules/express",
		"ms 2.1.3 at node_modules/send/node_modules/ms", "ms 2.0.0 at node_modules/ms",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s among %q", want, got)
		}
	}
	if out := w.inside(t, img, nil, "/usr/bin/node", "-e", "require('express')(); console.log(require('left-pad')('x', 3))"); out != "x" {
		t.Errorf("printed %q", out)
	}
	t.Run("the lock and the store answer", func(t *testing.T) {
		if _, _, err := w.build(t, fmt.Sprintf(template, `"left-pad@1.3.0", "express@4.19.2"`), "index.js", lock); err != nil {
			t.Fatal(err)
		}
		if len(w.runner.runs) != 0 {
			t.Errorf("ran %q", w.runner.runs)
		}
	})
	t.Run("integrity mismatch", func(t *testing.T) {
		raw := `{"lockfileVersion":3,"name":"function","version":"0.0.0","packages":{
			"":{"name":"function","version":"0.0.0","dependencies":{"is-odd":"3.0.1"}},
			"node_modules/is-odd":{"version":"3.0.1","integrity":"sha512-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="
				,"dependencies":{}}}}`
		bad := &image.Lock{NPM: &image.LockedNPM{Request: []string{"is-odd@3.0.1"}, PackageLock: json.RawMessage(raw)}}
		_, _, err := w.build(t, fmt.Sprintf(template, "is-odd@3.0.1"), "index.js", bad)
		if err == nil || !strings.Contains(err.Error(), "EINTEGRITY") {
			t.Errorf("got %v", err)
		}
		t.Log(err)
	})
	for name, tt := range map[string]struct{ request, want string }{
		"unknown package": {"no-such-package-of-fre-engine", "no-such-package-of-fre-engine"},
		"unknown version": {"left-pad@99.0.0", "left-pad@99.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := w.build(t, fmt.Sprintf(template, tt.request), "index.js", nil)
			var errs image.TemplateErrors
			if !errors.As(err, &errs) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "fret.yaml:5:") {
				t.Errorf("got %v", err)
			}
			t.Log(err)
		})
	}
}
