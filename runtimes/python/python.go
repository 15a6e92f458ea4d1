// Package python builds and starts functions written in Python: a bootstrap
// that speaks the channel, and packages resolved and installed by uv.
package python

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
)

var (
	//go:embed bootstrap.py _fre/*.py
	bootstrap embed.FS
	//go:embed work.py
	work []byte
)

// launcher is the script among the bootstrap's files; the others are modules.
const launcher = "bootstrap.py"

// Runtime is the base "python". It implements image.Runtime.
type Runtime struct {
	Environment image.BaseSpec // the interpreter and its standard library
	Tools       []string       // Debian packages to add for pip
}

// Name is "python".
func (Runtime) Name() string { return "python" }

// Base returns Environment.
func (r Runtime) Base() image.BaseSpec { return r.Environment }

// Bootstrap returns the launcher and the package it imports, _fre.
func (Runtime) Bootstrap() map[string][]byte {
	files := map[string][]byte{}
	for _, pattern := range []string{launcher, "_fre/*.py"} {
		names, _ := fs.Glob(bootstrap, pattern)
		for _, name := range names {
			files[name], _ = bootstrap.ReadFile(name) // embedded: it is there
		}
	}
	return files
}

// ForkServer makes it an image.ForkServer: _fre/fork.py.
func (Runtime) ForkServer() {}

// handlerPattern is module.function, the module with any number of packages.
var handlerPattern = regexp.MustCompile(`^[\pL_][\pL\pN_]*(\.[\pL_][\pL\pN_]*)+$`)

// Command runs the bootstrap without the site module, which costs a quarter of
// the interpreter's start: PYTHONPATH names what a function has.
func (Runtime) Command(t *image.Template) (args, env []string, err error) {
	if !handlerPattern.MatchString(t.Handler) {
		return nil, nil, &image.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not module.function: write main.handle for the function handle in main.py", t.Handler)}
	}
	return append(command(), t.Handler), append(environment(),
		"PYTHONPATH=/function:/opt/python", fmt.Sprintf("FRE_CONCURRENCY=%d", max(1, t.Instances.Concurrency))), nil
}

func command() []string { return []string{"/usr/bin/python3", "-S", "/opt/fre/bootstrap.py"} }

func environment() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8",
		"PYTHONDONTWRITEBYTECODE=1", // the root is read-only
		"FRE_CHANNEL=3",
	}
}

// Shell is the bootstrap without a handler. Of what the interpreter reads at its
// start the bootstrap does PYTHONPATH again.
func (Runtime) Shell(_ *image.Template, env []string) *image.Shell {
	s := &image.Shell{Args: command(), Env: environment(), Mounts: []string{"/function", "/" + prefix}}
	if !s.Fits(env, []string{"PYTHON"}, []string{"PYTHONPATH"}) {
		return nil
	}
	return s
}

// version finds the interpreter of a base environment: "3.11".
func version(rootfs string) (string, error) {
	names, err := filepath.Glob(filepath.Join(rootfs, "usr/bin/python3.*"))
	if err != nil {
		return "", err
	}
	for _, name := range names {
		v := strings.TrimPrefix(filepath.Base(name), "python")
		if regexp.MustCompile(`^3\.[0-9]+$`).MatchString(v) {
			return v, nil
		}
	}
	return "", fmt.Errorf("the base environment has no usr/bin/python3.*: %w", fs.ErrNotExist)
}

// compileJob is one of work.py's.
type compileJob struct {
	Root  string `json:"root"`
	Place string `json:"place"`
	Out   string `json:"out"`
	Check bool   `json:"check"`
}

// compile runs work.py's compile.
func compile(ctx context.Context, b *install.Bench, rootfs string, jobs []compileJob) error {
	words, err := run(ctx, b, install.Tool{Rootfs: rootfs}, "compile", jobs)
	if err != nil {
		return fmt.Errorf("compile bytecode: %w", install.Failed(err, "", words))
	}
	return nil
}

func run(ctx context.Context, b *install.Bench, t install.Tool, verb string, jobs any) (words string, err error) {
	data, err := json.Marshal(jobs)
	if err != nil {
		return "", err
	}
	if err := errors.Join(b.Write("work.py", work), b.Write("jobs.json", data)); err != nil {
		return "", err
	}
	t.Args = []string{"/usr/bin/python3", "-I", "/work/work.py", verb, "/work/jobs.json"}
	return b.Run(ctx, t)
}

// FinishBase compiles the standard library and the bootstrap once. The
// interpreter trusts the bytecode without a look at the source (unchecked-hash:
// time stamps in an image mean nothing); the bootstrap's, which may be of
// another FRE than the base environment, it compares.
func (Runtime) FinishBase(ctx context.Context, step *image.Step) ([]store.Part, error) {
	v, err := version(step.Rootfs)
	if err != nil {
		return nil, err
	}
	b, err := install.NewBench(step)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{"out", "fre", "fre/_fre"} {
		if err := mkdir(b, dir); err != nil {
			return nil, err
		}
	}
	for name, source := range (Runtime{}).Bootstrap() {
		if name == launcher {
			continue
		}
		if err := b.Write("fre/"+name, source); err != nil {
			return nil, err
		}
	}
	lib := "usr/lib/python" + v
	err = compile(ctx, b, step.Rootfs, []compileJob{
		{Root: "/" + lib, Place: "/" + lib, Out: "/work/out/" + lib},
		{Root: "/work/fre", Place: "/opt/fre", Out: "/work/out/opt/fre", Check: true},
	})
	if err != nil {
		return nil, err
	}
	tree, err := b.Import(ctx, "out", func(string) bool { return false })
	if err != nil {
		return nil, err
	}
	return []store.Part{{Kind: "base", Name: "python bytecode", Version: v, Tree: tree}}, nil
}

func mkdir(b *install.Bench, name string) error {
	dir := filepath.Join(b.Dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o777) // the sandbox's user writes there
}

// Packages makes one part per package version at opt/python, its bytecode
// compiled. Nothing is fetched when the lock answers the request and the store
// has its parts.
func (r Runtime) Packages(ctx context.Context, step *image.Step, t *image.Template, lock *image.Lock) ([]store.Part, error) {
	if len(t.Packages.Pip) == 0 {
		return nil, nil
	}
	v, err := version(step.Rootfs)
	if err != nil {
		return nil, err
	}
	site := &site{step: step, version: v, tools: r.Tools}
	if lock.Pip == nil {
		step.Report(image.Event{Step: "packages", Message: "resolve"})
		packages, err := site.resolve(ctx, t.Packages.Pip)
		if err != nil {
			return nil, err
		}
		lock.Pip = &image.LockedPip{Request: slices.Clone(t.Packages.Pip), Packages: packages}
	}
	parts := make([]store.Part, len(lock.Pip.Packages))
	var missing []int
	for i, p := range lock.Pip.Packages {
		part, ok := step.Store.Part(site.key(p))
		if parts[i] = part; !ok {
			missing = append(missing, i)
		}
	}
	if len(missing) > 0 {
		if err := site.install(ctx, lock.Pip.Packages, parts, missing); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// prefix is where packages are in an image.
const prefix = "opt/python"

// skip leaves out what concerns the installation alone: uv's lock file.
func skip(p string) bool { return p == ".lock" || path.Base(p) == "uv_cache.json" }
