package runtimes_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/runtimes/node"
	"github.com/fre-engine/fre/runtimes/python"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// recorder notes the programs of build steps and refuses a step that could write to files of other
// builds.
type recorder struct {
	image.Runner
	mu   sync.Mutex
	runs []string
	look func(image.Command) // unless nil, called before each step
}

func (r *recorder) Run(ctx context.Context, c image.Command) error {
	r.mu.Lock()
	r.runs = append(r.runs, filepath.Base(c.Args[0])+" "+filepath.Base(c.Args[1]))
	r.mu.Unlock()
	unpacks := slices.Contains(c.Args, "install") && !slices.Contains(c.Args, "--package-lock-only")
	if unpacks && slices.ContainsFunc(c.Binds, func(b image.Bind) bool { return b.Writable && b.Target != "/work" }) {
		return fmt.Errorf("%q unpacks packages and could write to files of other builds: %v", c.Args, c.Binds)
	}
	if r.look != nil {
		r.look(c)
	}
	return r.Runner.Run(ctx, c)
}

// TestMain is a function if it is started as one (see inGo). Otherwise it moves into its own
// mount namespace, as the daemon does.
func TestMain(m *testing.M) {
	if os.Getenv("FRE_CHANNEL") != "" {
		goFunction(os.Args[1])
	}
	if os.Geteuid() == 0 {
		if err := sandbox.Isolate(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	removeJava()
	os.Exit(code)
}

// workshop is a builder on the host's real archive and package sites. The tests share it because a
// base environment takes long.
type workshop struct {
	*image.Builder
	engine  *engine.Engine
	runner  *recorder
	metrics *prometheus.Registry
	options image.BuildOptions
	report  func(image.Progress) // nil: no report
	rule    *outward.Rule        // the tenant's rule; nil: the operator's build
}

func newWorkshop(t *testing.T) *workshop {
	t.Helper()
	fretest.RequireRoot(t)
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
	settings, err := new(runtimes.PackagesConfig).Settings(image.ThisHost())
	if err != nil {
		t.Fatal(err)
	}
	cache := os.Getenv("FRE_TEST_CACHE")
	if cache == "" {
		cache = filepath.Join(state, "debian")
	}
	b := &image.Builder{
		Store: s, Bases: runtimes.Bases(), Runtimes: runtimes.All(), Sites: runtimes.Sites(), Git: runtimes.Repository(), Settings: settings, Log: log,
		Archive: openOnce(func(release string) (image.Archive, error) {
			return debian.Open(debian.Config{Release: release, Cache: cache, Log: log})
		}),
	}
	host, err := sandbox.Open(sandbox.Config{Dir: filepath.Join(state, "run"), Log: log, PoolSize: 2})
	if err != nil {
		t.Fatal(err)
	}
	metrics := prometheus.NewRegistry()
	e, err := engine.Open(engine.Config{Store: s, Sandboxes: host, Builder: b, StateDir: state, Log: log, Metrics: metrics})
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
	return &workshop{Builder: b, engine: e, runner: r, metrics: metrics}
}

// openOnce caches the results of open: loading an archive's index takes seconds.
func openOnce(open func(string) (image.Archive, error)) func(string) (image.Archive, error) {
	opened := map[string]image.Archive{}
	return func(release string) (image.Archive, error) {
		if opened[release] == nil {
			a, err := open(release)
			if err != nil {
				return nil, err
			}
			opened[release] = a
		}
		return opened[release], nil
	}
}

// build builds a template with one file of code.
func (w *workshop) build(t *testing.T, fret, file string, lock *image.Lock) (*store.Image, *image.Lock, error) {
	t.Helper()
	return w.buildFiles(t, map[string]string{"fret.yaml": fret, file: ""}, lock)
}

// buildFiles builds a template directory that holds these files.
func (w *workshop) buildFiles(t *testing.T, files map[string]string, lock *image.Lock) (*store.Image, *image.Lock, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
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
	return w.Build(outward.With(image.WithOptions(t.Context(), w.options), w.rule), root, w.report)
}

// inside runs a program in the image and returns the output.
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

// hashesOf returns the hashes of an image's parts of one kind, by place and name.
func hashesOf(img *store.Image, kind string) map[string]string {
	out := map[string]string{}
	for _, p := range img.Parts {
		if p.Kind == kind {
			out[p.Prefix+" "+p.Name] = p.Hash
		}
	}
	return out
}

// noHosts fails if a lock contains a URL.
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

// TestBuildPython: Python packages become parts with bytecode, and a build follows the lock.
func TestBuildPython(t *testing.T) {
	w := newWorkshop(t)
	const fret = "id: f\nbase: python\nhandler: main.handle\npackages:\n  pip: [%s]\n"
	img, lock, err := w.build(t, fmt.Sprintf(fret, `"requests==2.32.3", "lxml==5.3.0"`), "main.py", nil)
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
	if len(got) != 6 { // certifi, charset-normalizer, idna and urllib3, too
		t.Errorf("parts: %q", got)
	}
	hashes := hashesOf(img, "pip")
	for _, p := range section[*python.Locked](lock, "pip").Packages {
		if h := hashes["opt/python "+p.Name]; !slices.Contains(p.Hashes, h) {
			t.Errorf("%s %s was verified by %q, which is none of the %d that are locked", p.Name, p.Version, h, len(p.Hashes))
		}
	}
	env := []string{"PYTHONPATH=/function:/opt/python", "PYTHONDONTWRITEBYTECODE=1"}
	out := w.inside(t, img, env, "/usr/bin/python3", "-S", "-v", "-c", "import requests, lxml.etree; print(lxml.etree.fromstring('<a>b</a>').text)")
	if out != "b" {
		t.Errorf("printed %q", out)
	}
	// All modules have bytecode: the interpreter compiles nothing.
	code := `import sys, os
import requests, json, asyncio, lxml
sys.path.insert(0, "/opt/fre")
import _fre.fork, _fre.park
for name in _fre.park.PRELOADED: __import__(name)
print([m.__name__ for m in sys.modules.values() if (getattr(m, "__file__", None) or "").endswith(".py") and not os.path.exists(getattr(m, "__cached__", None) or "/usr")])`
	if out := w.inside(t, img, env, "/usr/bin/python3", "-S", "-c", code); out != "[]" {
		t.Errorf("modules without bytecode: %s", out)
	}

	t.Run("broken code", func(t *testing.T) {
		for _, contract := range []string{"fre", "lambda", "wsgi"} {
			_, _, err := w.buildFiles(t, map[string]string{"fret.yaml": "id: f\nbase: python\ncontract: " + contract + "\nhandler: main.handle\n", "main.py": "def handle(:\n"}, nil)
			w.refused(t, err, "main.py")
		}
		_, _, err := w.buildFiles(t, map[string]string{"fret.yaml": "id: f\nbase: python\nruntime: native\nhandler: run\n", "run": "#!/usr/bin/env python3\n(\n"}, nil)
		w.refused(t, err, "run")
	})
	w.runner.runs = nil
	t.Run("the lock and the store answer", func(t *testing.T) {
		again, lock2, err := w.build(t, fmt.Sprintf(fret, `"requests==2.32.3", "lxml==5.3.0"`), "main.py", lock)
		if err != nil {
			t.Fatal(err)
		}
		if len(w.runner.runs) != 0 {
			t.Errorf("ran %q", w.runner.runs)
		}
		if a, b := partNames(again, "pip"), partNames(img, "pip"); !slices.Equal(a, b) {
			t.Errorf("other parts: %q", a)
		}
		if diff := cmp.Diff(hashes, hashesOf(again, "pip")); diff != "" {
			t.Errorf("other hashes: %s", diff)
		}
		noHosts(t, lock2)
	})
	t.Run("locked and offline", func(t *testing.T) {
		w.options = image.BuildOptions{Locked: true, Offline: true}
		defer func() { w.options = image.BuildOptions{} }()
		if _, _, err := w.build(t, fmt.Sprintf(fret, `"requests==2.32.3", "lxml==5.3.0"`), "main.py", lock); err != nil || len(w.runner.runs) != 0 {
			t.Errorf("ran %q: %v", w.runner.runs, err)
		}
		var drift *image.LockError
		if _, _, err := w.build(t, fmt.Sprintf(fret, `"requests==2.32.2"`), "main.py", lock); !errors.As(err, &drift) {
			t.Errorf("another request: %v", err)
		}
		w.options.Locked = false
		if _, _, err := w.build(t, fmt.Sprintf(fret, `"requests==2.32.2"`), "main.py", nil); !errors.Is(err, image.ErrOffline) {
			t.Errorf("no lock: %v", err)
		}
		lacking := lockOf("pip", &python.Locked{Request: []string{"six==1.16.0"}, Packages: []image.LockedPackage{
			{Name: "six", Version: "1.16.0", Hashes: []string{"sha256:" + strings.Repeat("1", 64)}},
		}})
		if _, _, err := w.build(t, fmt.Sprintf(fret, "six==1.16.0"), "main.py", lacking); !errors.Is(err, image.ErrOffline) || !strings.Contains(err.Error(), "six 1.16.0") {
			t.Errorf("a package that is not there: %v", err)
		}
	})
	t.Run("hash mismatch", func(t *testing.T) {
		bad := lockOf("pip", &python.Locked{Request: []string{"six==1.16.0"}, Packages: []image.LockedPackage{
			{Name: "six", Version: "1.16.0", Hashes: []string{"sha256:" + strings.Repeat("0", 64)}},
		}})
		_, _, err := w.build(t, fmt.Sprintf(fret, "six==1.16.0"), "main.py", bad)
		var e *image.PackageError
		if !errors.As(err, &e) || e.Cause != image.PackageChanged || !strings.Contains(err.Error(), "ash") || !strings.Contains(err.Error(), "six") {
			t.Errorf("got %v", err)
		}
		t.Log(err)
	})
	for name, tt := range map[string]struct{ request, want string }{
		"unknown package": {"no-such-package-of-fre", "no-such-package-of-fre"},
		"unknown version": {"six==99.1", "six==99.1"},
		"conflict":        {`"urllib3==2.0.0", "requests==2.20.0"`, "urllib3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := w.build(t, fmt.Sprintf(fret, tt.request), "main.py", nil)
			var errs template.Errors
			if !errors.As(err, &errs) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "fret.yaml:5:") {
				t.Errorf("got %v", err)
			}
			t.Log(err)
		})
	}
}

// sixSum is the hash of six 1.16.0's wheel.
const sixSum = "sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254"

// TestBuildPythonFiles builds from the files of Python's own tools.
func TestBuildPythonFiles(t *testing.T) {
	w := newWorkshop(t)
	fret := func(file string) string {
		return fmt.Sprintf("id: f\nbase: python\npackages:\n  pip: %q\n", file)
	}
	const project = `[project]
name = "x"
version = "0"
dependencies = ["six==1.16.0", "colorama; sys_platform == 'win32'"]
[project.optional-dependencies]
web = ["idna==3.4"]
all = ["x[web]"]
[build-system]
requires = ["no-such-back-end-of-fre"]
`
	const lock = `version = 1
revision = 3
requires-python = ">=3.9"

[[package]]
name = "six"
version = "1.16.0"
source = { registry = "https://pypi.org/simple" }
wheels = [
    { url = "https://files.pythonhosted.org/x/six-1.16.0-py2.py3-none-any.whl", hash = "` + sixSum + `", size = 11053 },
]

[[package]]
name = "x"
version = "0"
source = { virtual = "." }
dependencies = [
    { name = "six" },
]

[package.metadata]
requires-dist = [{ name = "six", specifier = "==1.16.0" }]
`
	const locked = "[project]\nname = \"x\"\nversion = \"0\"\nrequires-python = \">=3.9\"\ndependencies = [\"six==1.16.0\"]\n"
	for name, tt := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"requirements.txt": {map[string]string{
			"fret.yaml": fret("deps/requirements.txt"), "deps/requirements.txt": "-r more.txt\n-c limits.txt\nsix==1.16.0 --hash=" + sixSum + "\n",
			"deps/more.txt": "idna==3.4 --hash=sha256:90b77e79eaa3eba6de819a0c442c0b4ceefc341a7a2ab77d7562bf49f425c5c2\n", "deps/limits.txt": "idna<3.5\n",
		}, []string{"idna 3.4 at opt/python", "six 1.16.0 at opt/python"}},
		"requirements.txt with hashes": {map[string]string{
			"fret.yaml": fret("requirements.txt"), "requirements.txt": "# pinned\nsix==1.16.0 \\\n    --hash=" + sixSum + "\n",
		}, []string{"six 1.16.0 at opt/python"}},
		"pyproject.toml": {
			map[string]string{"fret.yaml": fret("pyproject.toml"), "pyproject.toml": project},
			[]string{"six 1.16.0 at opt/python"},
		},
		"pyproject.toml with an extra": {
			map[string]string{"fret.yaml": fret("pyproject.toml[all]"), "pyproject.toml": project},
			[]string{"idna 3.4 at opt/python", "six 1.16.0 at opt/python"},
		},
		"uv.lock": {
			map[string]string{"fret.yaml": fret("pyproject.toml"), "pyproject.toml": locked, "uv.lock": lock},
			[]string{"six 1.16.0 at opt/python"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.files["main.py"] = ""
			img, lock, err := w.buildFiles(t, tt.files, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, partNames(img, "pip")); diff != "" {
				t.Error(diff)
			}
			noHosts(t, lock)
			if _, _, err := w.buildFiles(t, tt.files, lock); err != nil || len(w.runner.runs) != 0 {
				t.Errorf("with a lock ran %q: %v", w.runner.runs, err)
			}
		})
	}
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"hash of a file":       {map[string]string{"fret.yaml": fret("r.txt"), "r.txt": "six==1.16.0 --hash=sha256:" + strings.Repeat("0", 64)}, "hash mismatch"},
		"hashes for some":      {map[string]string{"fret.yaml": fret("r.txt"), "r.txt": "idna==3.4\nsix==1.16.0 --hash=" + sixSum}, "none for the dependency idna"},
		"an index":             {map[string]string{"fret.yaml": fret("r.txt"), "r.txt": "-i https://example.com/simple\nsix"}, "r.txt:1: -i: packages come from the indexes in the engine's configuration"},
		"no file":              {map[string]string{"fret.yaml": fret("r.txt")}, "read r.txt"},
		"dynamic dependencies": {map[string]string{"fret.yaml": fret("pyproject.toml"), "pyproject.toml": "[project]\nname = \"x\"\ndynamic = [\"dependencies\"]\n"}, "are dynamic"},
		"no project":           {map[string]string{"fret.yaml": fret("pyproject.toml"), "pyproject.toml": "[tool.poetry]\n"}, "no [project] table"},
		"not TOML":             {map[string]string{"fret.yaml": fret("pyproject.toml"), "pyproject.toml": "[project"}, "pyproject.toml: "},
		"unknown extra":        {map[string]string{"fret.yaml": fret("pyproject.toml[nope]"), "pyproject.toml": project}, "no optional dependencies 'nope': known are all, web"},
		"a URL in a project":   {map[string]string{"fret.yaml": fret("pyproject.toml"), "pyproject.toml": "[project]\nname = \"x\"\ndependencies = [\"a @ https://example.com/${UV_DEFAULT_INDEX}\"]\n"}, "variables are not supported"},
		"stale uv.lock":        {map[string]string{"fret.yaml": fret("pyproject.toml"), "pyproject.toml": strings.Replace(locked, "six==1.16.0", "six==1.15.0", 1), "uv.lock": lock}, "run uv lock"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.files["main.py"] = ""
			_, _, err := w.buildFiles(t, tt.files, nil)
			var errs template.Errors
			if !errors.As(err, &errs) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "fret.yaml:4:") {
				t.Errorf("got %v", err)
			}
			t.Log(err)
		})
	}
}

// TestBuildNode: npm packages come from a list or from package.json and package-lock.json, and a
// build follows the lock.
func TestBuildNode(t *testing.T) {
	w := newWorkshop(t)
	const fret = "id: f\nbase: node\nhandler: index.handle\npackages:\n  npm: [%s]\n"
	img, lock, err := w.build(t, fmt.Sprintf(fret, `"left-pad@1.3.0", "express@4.19.2"`), "index.js", nil)
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
	var locked struct {
		Packages map[string]struct{ Integrity string }
	}
	if err := json.Unmarshal(section[*node.Locked](lock, "npm").PackageLock, &locked); err != nil {
		t.Fatal(err)
	}
	hashes := hashesOf(img, "npm")
	for at, h := range hashes {
		place, _, _ := strings.Cut(at, " ")
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(locked.Packages[place].Integrity, "sha512-"))
		if err != nil || h != "sha512:"+hex.EncodeToString(sum) {
			t.Errorf("%s was verified by %q, locked %q", at, h, locked.Packages[place].Integrity)
		}
	}
	t.Run("the lock and the store answer", func(t *testing.T) {
		again, _, err := w.build(t, fmt.Sprintf(fret, `"left-pad@1.3.0", "express@4.19.2"`), "index.js", lock)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(hashes, hashesOf(again, "npm")); diff != "" {
			t.Errorf("other hashes: %s", diff)
		}
		if len(w.runner.runs) != 0 {
			t.Errorf("ran %q", w.runner.runs)
		}
	})
	// A lock as npm 10 writes it for a project: with hosts, and with packages for development or
	// for other machines.
	project := map[string]string{
		"fret.yaml": "id: f\nbase: node\npackages:\n  npm: package.json\n", "index.js": "",
		"package.json":      `{"name":"p","version":"1.0.0","scripts":{"test":"x"},"dependencies":{"ms":"^2.0.0","pad":"npm:left-pad@1.3.0"},"devDependencies":{"is-odd":"3.0.1"},"optionalDependencies":{"fsevents":"2.3.3"}}`,
		"package-lock.json": projectLock,
	}
	t.Run("package-lock.json", func(t *testing.T) {
		img, lock, err := w.buildFiles(t, project, nil)
		if err != nil {
			t.Fatal(err)
		}
		noHosts(t, lock)
		if diff := cmp.Diff([]string{"left-pad 1.3.0 at node_modules/pad", "ms 2.1.2 at node_modules/ms"}, partNames(img, "npm")); diff != "" {
			t.Error(diff)
		}
		w.options = image.BuildOptions{Locked: true, Offline: true}
		defer func() { w.options = image.BuildOptions{} }()
		if _, _, err := w.buildFiles(t, project, lock); err != nil || len(w.runner.runs) != 0 {
			t.Errorf("locked and offline ran %q: %v", w.runner.runs, err)
		}
		w.options.Locked = false
		if _, _, err := w.build(t, fmt.Sprintf(fret, `"is-odd@3.0.1"`), "index.js", nil); !errors.Is(err, image.ErrOffline) {
			t.Errorf("offline without a lock: %v", err)
		}
	})
	t.Run("package.json", func(t *testing.T) {
		files := maps.Clone(project)
		delete(files, "package-lock.json")
		files["package.json"] = `{"dependencies":{"left-pad":"1.3.0"},"optionalDependencies":{"fsevents":"2.3.3"},"devDependencies":{"no-such-package-of-fre-engine":"1"},"overrides":{"ms":"2.1.3"}}`
		img, lock, err := w.buildFiles(t, files, nil)
		if err != nil {
			t.Fatal(err)
		}
		noHosts(t, lock)
		if diff := cmp.Diff([]string{"left-pad 1.3.0 at node_modules/left-pad"}, partNames(img, "npm")); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("stale package-lock.json", func(t *testing.T) {
		files := maps.Clone(project)
		files["package.json"] = strings.Replace(files["package.json"], "^2.0.0", "^2.1.3", 1)
		_, _, err := w.buildFiles(t, files, nil)
		var errs template.Errors
		if !errors.As(err, &errs) || !strings.Contains(err.Error(), `"ms"`) || !strings.Contains(err.Error(), "npm install --package-lock-only") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("integrity mismatch", func(t *testing.T) {
		raw := `{"lockfileVersion":3,"name":"function","version":"0.0.0","packages":{
			"":{"name":"function","version":"0.0.0","dependencies":{"is-odd":"3.0.1"}},
			"node_modules/is-odd":{"version":"3.0.1","integrity":"sha512-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="
				,"dependencies":{}}}}`
		bad := lockOf("npm", &node.Locked{Request: []string{"is-odd@3.0.1"}, PackageLock: json.RawMessage(raw)})
		_, _, err := w.build(t, fmt.Sprintf(fret, "is-odd@3.0.1"), "index.js", bad)
		var e *image.PackageError
		if !errors.As(err, &e) || e.Cause != image.PackageChanged || !strings.Contains(err.Error(), "EINTEGRITY") {
			t.Errorf("got %v", err)
		}
		t.Log(err)
	})
	for name, tt := range map[string]struct{ request, want string }{
		"unknown package": {"no-such-package-of-fre-engine", "no-such-package-of-fre-engine"},
		"unknown version": {"left-pad@99.0.0", "left-pad@99.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := w.build(t, fmt.Sprintf(fret, tt.request), "index.js", nil)
			var errs template.Errors
			if !errors.As(err, &errs) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "fret.yaml:5:") {
				t.Errorf("got %v", err)
			}
			t.Log(err)
		})
	}
}

const projectLock = `{
  "name": "p", "version": "1.0.0", "lockfileVersion": 2, "requires": true,
  "packages": {
    "": {
      "name": "p", "version": "1.0.0", "license": "MIT",
      "dependencies": {"ms": "^2.0.0", "pad": "npm:left-pad@1.3.0"},
      "devDependencies": {"is-odd": "3.0.1"},
      "optionalDependencies": {"fsevents": "2.3.3"}
    },
    "node_modules/fsevents": {
      "version": "2.3.3", "resolved": "https://registry.npmjs.org/fsevents/-/fsevents-2.3.3.tgz",
      "integrity": "sha512-5xoDfX+fL7faATnagmWPpbFtwh/R77WmMMqqHGS65C3vvB0YHrgF+B1YmZ3441tMj5n63k0212XNoJwzlhffQw==",
      "hasInstallScript": true, "optional": true, "os": ["darwin"]
    },
    "node_modules/is-odd": {
      "version": "3.0.1", "resolved": "https://registry.npmjs.org/is-odd/-/is-odd-3.0.1.tgz", "dev": true,
      "integrity": "sha512-CQpnWPrDwmP1+SMHXZhtLtJv90yiyVfluGsX5iNCVkrhQtU3TQHsUWPG9wkdk9Lgd5yNpAg9jQEo90CBaXgWMA=="
    },
    "node_modules/ms": {
      "version": "2.1.2", "resolved": "https://registry.npmjs.org/ms/-/ms-2.1.2.tgz",
      "integrity": "sha512-sGkPx+VjMtmA6MX27oA4FBFELFCZZ4S4XqeGOXCv68tT+jb3vk/RyaKWP0PTKyWtmLSM0b+adUTEvbs1PEaH2w=="
    },
    "node_modules/pad": {
      "name": "left-pad", "version": "1.3.0", "resolved": "https://registry.npmjs.org/left-pad/-/left-pad-1.3.0.tgz",
      "integrity": "sha512-XI5MPzVNApjAyhQzphX8BkmKsKUxD4LdyK24iZeQGinBN9yTQT3bFlCBy/aVx2HrNcqQGsdot8ghrjyrvMCoEA=="
    }
  },
  "dependencies": {"ms": {"version": "2.1.2", "resolved": "https://registry.npmjs.org/ms/-/ms-2.1.2.tgz"}}
}`

// TestBuildDebian: Debian packages and shared libraries, with the dependencies that the base lacks,
// become parts of their own, pinned by hash.
func TestBuildDebian(t *testing.T) {
	w := newWorkshop(t)
	const fret = "id: f\nbase: python\nhandler: main.handle\npackages:\n  deb: [%s]\nlibs: [%s]\n"
	good := fmt.Sprintf(fret, `jq, netcat-openbsd`, `libyaml-0.so.2, libblas.so.3, libz.so.1`)
	img, lock, err := w.build(t, good, "main.py", nil)
	if err != nil {
		t.Fatal(err)
	}
	noHosts(t, lock)
	got := partNames(img, "deb")
	names := map[string]bool{}
	for _, p := range got {
		name, _, _ := strings.Cut(p, " ")
		names[name] = true
	}
	for _, want := range []string{"jq", "libjq1", "netcat-openbsd", "libyaml-0-2", "libblas3"} {
		if !names[want] {
			t.Errorf("no %s among %q", want, got)
		}
	}
	if names["libc6"] || names["zlib1g"] {
		t.Errorf("parts for packages of the base: %q", got)
	}
	if out := w.inside(t, img, nil, "/bin/sh", "-c", `echo '{"a": [1, 2]}' | jq -c .a && test -x /usr/bin/nc && test ! -e /usr/share/doc/jq && echo nc`); out != "[1,2]\nnc" {
		t.Errorf("printed %q", out)
	}
	if out := w.inside(t, img, nil, "/usr/bin/python3", "-c", "import ctypes; print(ctypes.CDLL('libyaml-0.so.2').yaml_get_version_string is None, bool(ctypes.CDLL('libblas.so.3').ddot_))"); out != "False True" {
		t.Errorf("printed %q", out)
	}
	config, err := image.ConfigOf(img)
	if err != nil {
		t.Fatal(err)
	}
	if config.Parked == nil {
		t.Error("no parked interpreter for a function with Debian packages")
	}
	t.Run("the lock and the store answer", func(t *testing.T) {
		archive := w.Archive
		defer func() { w.Archive = archive }()
		w.Archive = func(string) (image.Archive, error) { return nil, errors.New("the archive was opened") }
		again, _, err := w.build(t, good, "main.py", lock)
		if err != nil {
			t.Fatal(err)
		}
		if a := partNames(again, "deb"); !slices.Equal(a, got) {
			t.Errorf("other parts: %q", a)
		}
		for _, img := range []*store.Image{img, again} {
			hashes := hashesOf(img, "deb")
			for _, p := range lock.Deb.Packages {
				if h := hashes[" "+p.Name]; h != p.Hash {
					t.Errorf("%s was verified by %q, locked %s", p.Name, h, p.Hash)
				}
			}
		}
	})
	t.Run("hash mismatch", func(t *testing.T) {
		bad := *lock
		bad.Deb = &image.LockedDeb{Request: lock.Deb.Request, Libs: lock.Deb.Libs, Packages: slices.Clone(lock.Deb.Packages)}
		bad.Deb.Packages[0].Hash = "sha256:" + strings.Repeat("0", 64)
		var e *image.PackageError
		if _, _, err := w.build(t, good, "main.py", &bad); !errors.Is(err, debian.ErrHash) || !errors.As(err, &e) || e.Cause != image.PackageChanged || !strings.Contains(err.Error(), "fret.lock") {
			t.Errorf("got %v", err)
		}
	})
	for name, tt := range map[string]struct{ deb, lib, want string }{
		"unknown package": {deb: "jqq", want: "near: jq"},
		"unknown version": {deb: `"jq=99.*"`, want: "jq=99.*: the archive has"},
		"unknown library": {lib: "libyamll-0.so.2", want: "libyaml"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := w.build(t, fmt.Sprintf(fret, tt.deb, tt.lib), "main.py", nil)
			var errs template.Errors
			if !errors.As(err, &errs) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v", err)
			}
			t.Log(err)
		})
	}
}

// TestBuildForeign: A function builds on foreign images: here FRE's own base in the forms of docker
// and of a registry.
func TestBuildForeign(t *testing.T) {
	w := newWorkshop(t)
	ctx := t.Context()
	dir := t.TempDir()
	write := func(fret string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "fret.yaml"), []byte(fret), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"run.sh", "main.py"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ".freignore"), []byte("*.tar\nlayout\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	build := func(t *testing.T) (*store.Image, *image.Lock, image.Config) {
		t.Helper()
		img, lock, err := w.Build(ctx, root, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := image.ConfigOf(img)
		if err != nil {
			t.Fatal(err)
		}
		return img, lock, c
	}
	base, err := w.Base(ctx, "native", nil)
	if err != nil {
		t.Fatal(err)
	}
	native := w.archived(t, base, filepath.Join(dir, "native.tar"))

	t.Run("archive", func(t *testing.T) {
		python, err := w.Base(ctx, "python", nil)
		if err != nil {
			t.Fatal(err)
		}
		w.archived(t, python, filepath.Join(dir, "python.tar"))
		write("id: f\nbase: archive:python.tar\nruntime: python\npackages: {pip: [six==1.16.0]}\n")
		img, _, c := build(t)
		if want := []string{"/usr/bin/python3", "/opt/fre/bootstrap.py", "main.handle"}; !slices.Equal(c.Args, want) {
			t.Errorf("args %q, want %q", c.Args, want)
		}
		if c.Parked != nil {
			t.Error("an interpreter that FRE did not put there is started ahead: the engine visits those")
		}
		for _, other := range w.Store.Images() { // except the pulled images of an earlier run with a kept state
			if c, err := image.ConfigOf(other); err != nil || c.Container != nil && len(other.Names) == 0 {
				t.Errorf("the archive's own image stays: %v %v", other.Names, err)
			}
		}
		if out := w.inside(t, img, c.Env, c.Args[0], "-c", "import six; print(six.__version__)"); out != "1.16.0" {
			t.Errorf("printed %q", out)
		}
		again, _, _ := build(t)
		if again.Digest != img.Digest {
			t.Error("the same build gave another image")
		}
		write("id: f\nbase: archive:none.tar\nruntime: python\n")
		if _, _, err := w.Build(ctx, root, nil); err == nil || !strings.Contains(err.Error(), "no such file below the template") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("layout", func(t *testing.T) {
		if err := os.Mkdir(filepath.Join(dir, "layout"), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(ctx, "tar", "-xf", native, "-C", filepath.Join(dir, "layout")).CombinedOutput(); err != nil {
			t.Fatalf("tar: %v %s", err, out)
		}
		write("id: g\nbase: layout:layout\nruntime: native\nhandler: run.sh\n")
		img, _, c := build(t)
		if out := w.inside(t, img, c.Env, "/bin/sh", "-c", "echo $0 | sed s/^/ok/"); out != "ok/bin/sh" {
			t.Errorf("printed %q", out)
		}
	})
	t.Run("registry", func(t *testing.T) {
		ref := fretest.Registry(t) + "/team/native:1"
		f, err := os.Open(native)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		images, err := oci.Load(ctx, w.Store, f, oci.Options{Nameless: true})
		if err != nil {
			t.Fatal(err)
		}
		pushed, err := oci.Push(ctx, w.Store, images[0], ref, oci.PushOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Store.RemoveImage(ctx, images[0].Digest); err != nil {
			t.Fatal(err)
		}
		write("id: h\nbase: oci:" + ref + "\nruntime: native\nhandler: run.sh\n")
		_, lock, _ := build(t)
		if lock.Base.Digest != pushed.Digest || lock.Base.Name != "oci:"+ref {
			t.Errorf("lock: %+v, want digest %s", lock.Base, pushed.Digest)
		}
		write("id: h\nbase: oci:" + ref + "\nruntime: python\n")
		if _, _, err := w.Build(ctx, root, nil); err == nil || !strings.Contains(err.Error(), "no program python3 along") {
			t.Errorf("got %v", err)
		}
		write("id: h\nbase: oci:" + ref + "0\nruntime: native\nhandler: run.sh\n")
		if _, _, err := w.Build(ctx, root, nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
}

// TestBuildForeignRuntimes: Functions of each language run with the interpreter of a foreign image.
// If the image lacks a requirement, the build names it.
func TestBuildForeignRuntimes(t *testing.T) {
	w := newWorkshop(t)
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	write := func(t *testing.T, name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"native", "ruby", "php", "java"} {
		base, err := w.Base(t.Context(), name, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.archived(t, base, filepath.Join(dir, name+".tar"))
	}
	const server = `require "socket"
server = TCPServer.new("127.0.0.1", ENV["PORT"])
loop do
  c = server.accept
  size = 0
  while (line = c.gets) && line != "\r\n"
    size = $1.to_i if line =~ /content-length: (.*)/i
  end
  body = "hello #{c.read(size)}"
  c.write "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: #{body.bytesize}\r\n\r\n#{body}"
  c.close
end
`
	for runtime, tt := range map[string]struct {
		base, handler, file, code string
		args                      []string // the first arguments
		env                       string   // a variable
	}{
		"ruby": {
			base: "ruby", handler: "main.handle", file: "main.rb", code: "def handle(event, context) = \"hello #{event.text}\"\n",
			args: []string{"/usr/bin/ruby", "--disable=gems"},
		},
		"php": {
			base: "php", handler: "index.handle", file: "index.php", code: "<?php\nfunction handle($event, $context) { return \"hello $event->text\"; }\n",
			args: []string{"/usr/bin/php", "-c"},
		},
		"java": {
			base: "java", handler: "Handler.handle", file: "Handler.java",
			code: "public class Handler { public String handle(fre.Event e, fre.Context c) { return \"hello \" + e.text(); } }\n",
			args: []string{"/usr/bin/java", "-XX:SharedArchiveFile=/opt/fre/fre.jsa"},
		},
		"go": {
			base: "native", handler: "Handle", file: "hello.go", code: goMath,
			args: []string{"/function/.bin/f-go"},
		},
		"http": {
			base: "ruby", handler: "ruby server.rb", file: "server.rb", code: server,
			args: []string{"/opt/fre/http", "ruby"},
			env:  "PATH=/function/node_modules/.bin:/node_modules/.bin:/opt/python/bin:/usr/local/bin:/usr/bin:/bin",
		},
	} {
		t.Run(runtime, func(t *testing.T) {
			write(t, runtime+"/"+tt.file, tt.code)
			write(t, "fret.yaml", fmt.Sprintf("id: f-%s\nbase: archive:%s.tar\nruntime: %s\nhandler: %s\ncode: {path: %s}\n",
				runtime, tt.base, runtime, tt.handler, runtime))
			img, _, err := w.Build(t.Context(), root, nil)
			if err != nil {
				t.Fatal(err)
			}
			c, err := image.ConfigOf(img)
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Args) < len(tt.args) || !slices.Equal(c.Args[:len(tt.args)], tt.args) || c.Parked != nil {
				t.Errorf("args %q, parked interpreter %+v, want first %q, and none", c.Args, c.Parked, tt.args)
			}
			if tt.env != "" && !slices.Contains(c.Env, tt.env) || slices.ContainsFunc(c.Env, func(v string) bool { return strings.HasPrefix(v, "JAVA_HOME=") }) {
				t.Errorf("environment %q", c.Env)
			}
			if _, err := w.engine.Deploy(t.Context(), img.Name, img, engine.DeployOptions{}); err != nil {
				t.Fatal(err)
			}
			answer, err := w.engine.Invoke(t.Context(), img.Name, &engine.Request{Method: "POST", Path: "/", Body: strings.NewReader("world"), Length: 5})
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			if err := errors.Join(err, answer.Body.Close(), w.engine.RemoveFunction(t.Context(), img.Name)); err != nil {
				t.Fatal(err)
			}
			if string(body) != "hello world" {
				t.Errorf("answered %q", body)
			}
			write(t, runtime+"/"+tt.file, tt.code+"(((\n")
			_, _, err = w.Build(t.Context(), root, nil)
			w.refused(t, err, tt.file)
		})
	}
	for runtime, handler := range map[string]string{"python": "main.handle", "node": "index.handle", "java": "A.handle", "php": "index.handle", "ruby": "main.handle"} {
		t.Run("no "+runtime, func(t *testing.T) {
			write(t, "none/x", "")
			write(t, "fret.yaml", fmt.Sprintf("id: f\nbase: archive:native.tar\nruntime: %s\nhandler: %s\ncode: {path: none}\n", runtime, handler))
			w.runner.runs = nil
			_, _, err := w.Build(t.Context(), root, nil)
			var errs template.Errors
			if !errors.As(err, &errs) || !strings.Contains(err.Error(), "no program "+runtime) || !strings.Contains(err.Error(), "or a base of FRE's: "+runtime+"\n") {
				t.Errorf("got %v", err)
			}
			if len(w.runner.runs) > 0 {
				t.Errorf("ran %q", w.runner.runs)
			}
		})
	}
}

// refused expects a build to refuse code with a syntax error, with the file's name.
func (w *workshop) refused(t *testing.T, err error, file string) {
	t.Helper()
	var errs template.Errors
	if !errors.As(err, &errs) || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "/work/") {
		t.Errorf("broken %s: %v", file, err)
	}
}

// archived writes an image as docker save does.
func (w *workshop) archived(t *testing.T, img *store.Image, name string) string {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	err = oci.Save(t.Context(), w.Store, f, []string{string(img.Digest)}, oci.Options{})
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return name
}

// Build builds the template in dir.
func (w *workshop) Build(ctx context.Context, dir *os.Root, report func(image.Progress)) (*store.Image, *image.Lock, error) {
	t, err := w.Template(dir)
	if err != nil {
		return nil, nil, err
	}
	return w.Builder.Build(ctx, dir, t, report)
}
