package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// tinyCompiled is a runtime with compiled code and a compiled bootstrap.
type tinyCompiled struct {
	named
	builds, compiles int
}

func (*tinyCompiled) Bases() []string { return []string{"native"} }

func (*tinyCompiled) Bootstrap() map[string][]byte {
	return map[string][]byte{"Bootstrap.source": []byte("boot")}
}

func (r *tinyCompiled) CompileBootstrap(ctx context.Context, s *Step) (store.Part, error) {
	r.compiles++
	w, err := s.Store.Create()
	if err != nil {
		return store.Part{}, err
	}
	defer w.Abort()
	if err := w.File("bootstrap.compiled", 0o755, systemTime, strings.NewReader("BOOT")); err != nil {
		return store.Part{}, err
	}
	tree, err := w.Commit(ctx)
	return store.Part{Tree: tree}, err
}

func (*tinyCompiled) Builds(_ *template.Template, files []string) (toolchain string, ok bool) {
	return "1.0", slices.Contains(files, "main.source")
}

func (r *tinyCompiled) BuildCode(_ context.Context, s *Step, _ *template.Template, _ *Lock, source string) (string, error) {
	r.builds++
	text, err := os.ReadFile(filepath.Join(source, "main.source"))
	if err != nil {
		return "", err
	}
	if string(text) == "wrong" {
		return "", &template.FieldError{Field: "code.path", Message: "main.source:1: wrong"}
	}
	built := filepath.Join(s.Scratch, "built")
	return built, errors.Join(os.Mkdir(built, 0o755), os.WriteFile(filepath.Join(built, "main"), []byte(strings.ToUpper(string(text))), 0o755))
}

// The same source is built once, a ready directory is taken as it is, and the bootstrap is compiled
// once.
func TestBuildCode(t *testing.T) {
	ctx := t.Context()
	r := newRig(t, map[string]string{"fret.yaml": "id: f\nruntime: tiny\nhandler: main\ncode: {path: src}\n", "src/main.source": "one", "src/.freignore": "*.log\n", "src/a.log": "x", "src/sub/b": "2"})
	tiny := &tinyCompiled{named: "tiny"}
	r.Runtimes = append(r.Runtimes, tiny)
	files := func() []string {
		img, lock, err := r.Build(ctx, r.root, nil)
		if err != nil {
			t.Fatal(err)
		}
		if lock.Base.Name != "native" {
			t.Errorf("base %q", lock.Base.Name)
		}
		return slices.DeleteFunc(list(t, r.Store.Rootfs(img.Digest)), func(s string) bool { return !strings.HasPrefix(s, "function/") && !strings.HasPrefix(s, "opt/") })
	}
	for _, step := range []struct {
		source           string
		builds, compiles int
		want             string
		write            map[string]string
	}{
		{"first", 1, 1, "ONE", nil},
		{"again", 1, 1, "ONE", map[string]string{"src/a.log": "y"}},
		{"changed", 2, 1, "TWO", map[string]string{"src/main.source": "two"}},
		{"another file", 3, 1, "TWO", map[string]string{"src/sub/b": "3"}},
		{"back", 3, 1, "ONE", map[string]string{"src/main.source": "one", "src/sub/b": "2"}},
	} {
		r.write(t, step.write)
		if diff := gocmp.Diff([]string{"function/main 755 " + step.want, "opt/fre/bootstrap.compiled 755 BOOT"}, files()); diff != "" {
			t.Errorf("%s: -want +got:\n%s", step.source, diff)
		}
		if tiny.builds != step.builds || tiny.compiles != step.compiles {
			t.Errorf("%s: %d builds, %d compiles, want %d, %d", step.source, tiny.builds, tiny.compiles, step.builds, step.compiles)
		}
	}
	r.write(t, map[string]string{"src/main.source": "wrong"})
	_, _, err := r.Build(ctx, r.root, nil)
	var faults template.Errors
	if !errors.As(err, &faults) || faults[0].Line != 4 || !strings.Contains(faults[0].Message, "main.source:1: wrong") {
		t.Errorf("got %v, want a fault at code.path", err)
	}
	if err := os.Rename(filepath.Join(r.dir, "src/main.source"), filepath.Join(r.dir, "src/main")); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(files()); got != "[function/main 644 wrong function/sub/b 644 2 opt/fre/bootstrap.compiled 755 BOOT]" {
		t.Errorf("nothing to build: %s", got)
	}
}

// scriptsSite records at each call the packages with permitted install scripts.
type scriptsSite struct {
	emptySite
	allowed *[][]string
}

func (s scriptsSite) Packages(_ context.Context, _ *Step, t *template.Template, _ *Lock) ([]store.Part, error) {
	*s.allowed = append(*s.allowed, t.Packages.Of("npm").Scripts)
	return nil, nil
}

// The packages of a build step are installed with the scripts of both lists.
func TestBuildStepScripts(t *testing.T) {
	r := newRig(t, map[string]string{
		"fret.yaml": "id: f\nbase: python\npackages: {npm: [a], npm_scripts: [a]}\ncode: {build: {run: make, packages: {npm: [b], npm_scripts: [b]}}}\n",
		"main.py":   "",
	})
	var allowed [][]string
	r.Sites = []Site{scriptsSite{emptySite{"npm", "python"}, &allowed}}
	r.Run = runnerFunc(func(context.Context, Command) error { return nil })
	if _, _, err := r.Build(t.Context(), r.root, nil); err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff([][]string{{"a"}, {"a", "b"}}, allowed); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A build step sees the code, its own packages and the function's. Its output becomes the
// function's files, and equal input reuses the output.
func TestBuildStep(t *testing.T) {
	ctx := t.Context()
	r := newRig(t, map[string]string{
		"fret.yaml":       "id: f\nbase: python\npackages: {pip: [lib==1.0]}\ncode:\n  path: src\n  build: {run: make it, packages: {pip: [tool==2], deb: [make]}, output: out}\n",
		"src/main.source": "one",
	})
	steps := 0
	var root []string
	r.Run = runnerFunc(func(ctx context.Context, c Command) error {
		if c.Args[0] != "/bin/sh" {
			return r.runner.Run(ctx, c)
		}
		steps++
		root = list(t, c.Rootfs)
		if c.Network || c.Dir != "/work" || c.Args[2] != "make it" {
			t.Errorf("bad step %+v", c)
		}
		source := c.Binds[0].Source
		text, err := os.ReadFile(filepath.Join(source, "main.source"))
		if err != nil || string(text) == "wrong" {
			return cmp.Or(err, error(&ExitError{Args: c.Args, Status: 3, Output: "main.source:1: wrong\n"}))
		}
		if string(text) == "escape" {
			return os.Symlink("/etc", filepath.Join(source, "out"))
		}
		return errors.Join(os.Mkdir(filepath.Join(source, "out"), 0o755), os.WriteFile(filepath.Join(source, "out/main.py"), text, 0o644))
	})
	build := func() (files []string, lock *Lock, err error) {
		img, lock, err := r.Build(ctx, r.root, nil)
		if err != nil {
			return nil, nil, err
		}
		return slices.DeleteFunc(list(t, r.Store.Rootfs(img.Digest)), func(s string) bool {
			return !strings.HasPrefix(s, "function/") && !strings.HasPrefix(s, "opt/python")
		}), lock, nil
	}
	for n, want := range []string{"one", "one", "two"} {
		r.write(t, map[string]string{"src/main.source": want})
		files, lock, err := build()
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff([]string{"function/main.py 644 " + want, "opt/python/lib.py 644 version = 1.0"}, files); diff != "" {
			t.Errorf("%d: -want +got:\n%s", n, diff)
		}
		if own, all := packagesOf(lock, "pip"), packagesOf(lock.Build, "pip"); len(own.Packages) != 1 || len(all.Packages) != 2 {
			t.Errorf("%d: lock %+v, of the build %+v", n, own, all)
		}
		if steps != 1+n/2 {
			t.Errorf("%d: %d steps", n, steps)
		}
		if err := WriteLock(r.root, lock); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"opt/python/lib.py 644 version = 1.0", "opt/python/tool.py 644 version = 2", "usr/lib/make 644 make"} {
		if !slices.Contains(root, want) {
			t.Errorf("the step's root lacks %s: %q", want, root)
		}
	}
	for content, want := range map[string]string{
		"wrong":  "fret.yaml:6:16: the build step ended with status 3:\nmain.source:1: wrong",
		"escape": `code.build.output "out"`,
	} {
		r.write(t, map[string]string{"src/main.source": content})
		if _, _, err := build(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", content, err, want)
		}
	}
}

type runnerFunc func(ctx context.Context, c Command) error

func (f runnerFunc) Run(ctx context.Context, c Command) error { return f(ctx, c) }

// tinyGit answers with a directory made by make.
type tinyGit struct {
	make    func(dir string) error
	fetches int
}

const tinyCommit = "0123456789012345678901234567890123456789"

func (g *tinyGit) Fetch(_ context.Context, s *Step, _ *template.GitCode, _ string) (dir, id string, err error) {
	g.fetches++
	dir = filepath.Join(s.Scratch, "tree")
	return dir, tinyCommit, g.make(dir)
}

// A commit in the store is open only to builds with the same address and credential. Its id is no
// secret and gives no access.
func TestCommitOfAddress(t *testing.T) {
	fret := func(url, auth string) string {
		return "id: f\nbase: native\nhandler: run\ncode: {git: {url: '" + url + "', auth: " + auth + "}}\n"
	}
	r := newRig(t, map[string]string{"fret.yaml": fret("https://example.org/private", "team")})
	g := &tinyGit{make: func(dir string) error {
		return errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "run"), []byte("#!/bin/sh\n"), 0o755))
	}}
	r.Git = g
	build := func(url, auth string) error {
		tmpl := &template.Template{Code: template.Code{Git: &template.GitCode{URL: url}}}
		r.write(t, map[string]string{"fret.yaml": fret(url, auth)})
		lock := &Lock{Base: LockedBase{Name: "native"}, Git: &LockedGit{Request: tmpl.Code.Git.Key(), Commit: tinyCommit}}
		if err := WriteLock(r.root, lock); err != nil {
			t.Fatal(err)
		}
		_, _, err := r.Build(t.Context(), r.root, nil)
		return err
	}
	for n, c := range []struct {
		url, auth string
		fetches   int
	}{
		{"https://example.org/private", "team", 1},
		{"https://example.org/private", "team", 1},
		{"https://example.org/other", "team", 2},
		{"https://example.org/private", "other", 3},
	} {
		if err := build(c.url, c.auth); err != nil {
			t.Fatal(err)
		}
		if g.fetches != c.fetches {
			t.Errorf("%d: %d fetches, want %d", n, g.fetches, c.fetches)
		}
	}
}

// The build does not read a directory that a step has replaced by a link to the host.
func TestStepLeavesLink(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "main"), []byte("#!/bin/sh\necho of the host\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, map[string]string{"fret.yaml": "id: f\nbase: native\nhandler: main\ncode: {git: {url: 'https://example.org/x'}}\n"})
	r.Git = &tinyGit{make: func(dir string) error { return os.Symlink(outside, dir) }}
	if _, _, err := r.Build(t.Context(), r.root, nil); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("code from git: got %v, want a refusal", err)
	}
	r = newRig(t, map[string]string{"fret.yaml": "id: f\nruntime: tiny\nhandler: main\n", "main.source": "x"})
	r.Runtimes = append(r.Runtimes, dirBuilder{tinyCompiled{named: "tiny"}, func(dir string) error { return os.Symlink(outside, dir) }})
	if _, _, err := r.Build(t.Context(), r.root, nil); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("built code: got %v, want a refusal", err)
	}
}

// The size of a step's output is limited: a sparse file costs the step nothing.
func TestStepLeavesHoles(t *testing.T) {
	holes := func(dir string) error {
		return errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "main"), nil, 0o755), os.Truncate(filepath.Join(dir, "main"), 1<<42))
	}
	for fret, field := range map[string]string{
		"id: f\nbase: native\nhandler: main\ncode: {git: {url: 'https://example.org/x'}}\n": "code.git",
		"id: f\nruntime: tiny\nhandler: main\n":                                             "code.path",
	} {
		r := newRig(t, map[string]string{"fret.yaml": fret, "main.source": "x"})
		r.Git = &tinyGit{make: holes}
		r.Runtimes = append(r.Runtimes, dirBuilder{tinyCompiled{named: "tiny"}, holes})
		_, _, err := r.Build(t.Context(), r.root, nil)
		if want := field + ": the code has more than 250000 files or 4GiB"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", field, err, want)
		}
	}
}

// dirBuilder builds the directory made by make.
type dirBuilder struct {
	tinyCompiled
	make func(dir string) error
}

func (dirBuilder) Bases() []string              { return []string{"native"} }
func (dirBuilder) Bootstrap() map[string][]byte { return nil }

func (dirBuilder) Builds(*template.Template, []string) (toolchain string, ok bool) { return "1", true }

func (d dirBuilder) BuildCode(_ context.Context, s *Step, _ *template.Template, _ *Lock, _ string) (string, error) {
	built := filepath.Join(s.Scratch, "built")
	return built, d.make(built)
}
