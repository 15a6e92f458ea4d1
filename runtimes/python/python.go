// Package python builds and starts functions written in Python: a bootstrap that speaks the
// channel, and packages resolved and installed by uv.
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
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/awslambda"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

var (
	//go:embed bootstrap.py _fre/*.py
	bootstrap embed.FS
	//go:embed work.py
	work []byte
)

// launcher is the script among the bootstrap's files; the rest are modules.
const launcher = "bootstrap.py"

// Runtime is the runtime "python". It implements image.Runtime.
type Runtime struct{}

// Name is "python".
func (Runtime) Name() string { return "python" }

// Bases is FRE's base with the interpreter.
func (Runtime) Bases() []string { return []string{"python"} }

// Bootstrap returns the launcher and the package _fre that it imports.
func (Runtime) Bootstrap() map[string][]byte {
	files := map[string][]byte{}
	for _, pattern := range []string{launcher, "_fre/*.py"} {
		names, _ := fs.Glob(bootstrap, pattern)
		for _, name := range names {
			files[name], _ = bootstrap.ReadFile(name) // the file is embedded
		}
	}
	return files
}

// ForkServer marks the runtime as an image.ForkServer: _fre/fork.py.
func (Runtime) ForkServer() {}

// handlerPattern is module.function, the module with any number of packages.
var handlerPattern = regexp.MustCompile(`^[\pL_][\pL\pN_]*(\.[\pL_][\pL\pN_]*)+$`)

// Command runs the bootstrap without the site module, which takes a quarter of the interpreter's
// start: PYTHONPATH names the directories of a function's modules.
func (Runtime) Command(t *template.Template) (args, env []string, err error) {
	if !handlerPattern.MatchString(t.Handler) {
		return nil, nil, &template.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not module.function: write main.handle for the function handle in main.py", t.Handler)}
	}
	return append(command(t), t.Handler), append(environment(),
		pythonPath, fmt.Sprintf("FRE_CONCURRENCY=%d", max(1, t.Instances.Concurrency))), nil
}

// pythonPath names the directories of modules.
const pythonPath = "PYTHONPATH=/function:/" + prefix

// command keeps the site module for images that FRE did not make: they have packages in the
// module's directories.
func command(t *template.Template) []string {
	if t.ForeignBase() {
		return []string{"/usr/bin/python3", "/opt/fre/bootstrap.py"}
	}
	return []string{"/usr/bin/python3", "-S", "/opt/fre/bootstrap.py"}
}

// Interpreter is the requirement on a base.
func (Runtime) Interpreter() image.Interpreter {
	return image.Interpreter{
		Name: "python3", Least: "3.9",
		Version: []string{"-c", "import json, select, sys, threading, traceback; print('Python', sys.version.split()[0])"}, Before: "Python ",
	}
}

// Contract has the bootstrap call handlers of other contracts.
func (r Runtime) Contract(c template.Contract) image.Runtime {
	switch c {
	case template.ContractFRE:
		return r
	case template.ContractLambda, template.ContractASGI, template.ContractWSGI, template.ContractFramework, template.ContractKnative:
		return contracted{r, c}
	}
	return nil
}

// contracted is the runtime for functions of another contract (_fre/contracts.py).
type contracted struct {
	Runtime
	contract template.Contract
}

// Command adds the contract to the environment.
func (c contracted) Command(t *template.Template) (args, env []string, err error) {
	args, env, err = c.Runtime.Command(t)
	if err != nil {
		return nil, nil, err
	}
	if c.contract == template.ContractLambda {
		return args, append(env, awslambda.Environment(t)...), nil
	}
	if c.contract == template.ContractFramework && t.Packages.Of("pip").None() {
		return nil, nil, &template.FieldError{Field: "packages.pip", Message: "the contract functions-framework needs the framework: add functions-framework to packages.pip"}
	}
	return args, append(env, "FRE_CONTRACT="+string(c.contract)), nil
}

func environment() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8",
		"PYTHONDONTWRITEBYTECODE=1", // the root is read-only
		"FRE_CHANNEL=3",
	}
}

// Untraced implements [image.Traced]: the modules that report an exception (traceback, and its
// imports in Python 3.9 to 3.13), the imports of _fre in a fork server, and the codecs, which
// programs open by names in their data.
func (Runtime) Untraced() []string {
	var out []string
	for _, name := range []string{
		"__future__.py", "_colorize.py", "_weakrefset.py", "ast.py", "codeop.py", "collections", "contextlib.py", "copyreg.py", "encodings", "enum.py",
		"functools.py", "heapq.py", "json", "keyword.py", "linecache.py", "operator.py", "re", "reprlib.py", "stat.py", "textwrap.py", "threading.py",
		"token.py", "tokenize.py", "traceback.py", "types.py", "warnings.py", "weakref.py",
		"os.py", "_collections_abc.py", "abc.py", "codecs.py", "genericpath.py", "io.py", "posixpath.py", // frozen: only looked at, os.py to find the rest
		"ctypes/__init__.py", "ctypes/_endian.py", "struct.py", // of a fork server
		"lib-dynload/_ctypes.*", "lib-dynload/_json.*", "lib-dynload/_socket.*", "lib-dynload/_struct.*", "lib-dynload/select.*",
	} {
		out = append(out, "usr/**/python3*/"+name)
	}
	return out
}

// Parked is the bootstrap without a handler. The interpreter reads its PYTHON variables at its
// start; the bootstrap applies PYTHONPATH again, and no other.
func (Runtime) Parked(t *template.Template, env []string) *image.ParkedInterpreter {
	s := &image.ParkedInterpreter{Args: command(t), Env: environment(), Mounts: []string{"/function", "/" + prefix}}
	if !s.Fits(env, []string{"PYTHON"}, []string{"PYTHONPATH"}) {
		return nil
	}
	return s
}

var numbered = regexp.MustCompile(`^python(3\.[0-9]+)$`)

// interpreter returns the path of a base environment's interpreter, and its version: "3.11".
func interpreter(step *image.Step) (program, version string, err error) {
	if program, err = step.Program("python3"); err != nil {
		return "", "", err
	}
	root, err := os.OpenRoot(step.Rootfs)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = root.Close() }()
	name := strings.TrimPrefix(program, "/")
	if target, err := root.Readlink(name); err == nil { // usually python3 → python3.11
		if m := numbered.FindStringSubmatch(path.Base(target)); m != nil {
			return program, m[1], nil
		}
	}
	names, err := fs.Glob(root.FS(), path.Join(path.Dir(name), "python3.*"))
	if err != nil {
		return "", "", err
	}
	for _, name := range names {
		if m := numbered.FindStringSubmatch(path.Base(name)); m != nil {
			return program, m[1], nil
		}
	}
	return "", "", fmt.Errorf("beside %s of the base environment stands no python3.N: %w", program, fs.ErrNotExist)
}

// compileJob is a job of work.py.
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
	program, err := b.Program("python3")
	if err != nil {
		return "", err
	}
	t.Args = []string{program, "-I", "/work/work.py", verb, "/work/jobs.json"}
	return b.Run(ctx, t)
}

// FinishBase is the Finish of the base "python": it compiles the standard library and the bootstrap
// once. The interpreter trusts the library's bytecode without reading the source (unchecked-hash),
// because time stamps in an image mean nothing. It compares the bootstrap's bytecode with the
// source: the bootstrap may come from another version of FRE.
func FinishBase(ctx context.Context, step *image.Step) ([]store.Part, error) {
	_, v, err := interpreter(step)
	if err != nil {
		return nil, err
	}
	b, err := install.NewBench(step)
	if err != nil {
		return nil, err
	}
	if err := b.Mkdir("out", "fre", "fre/_fre"); err != nil {
		return nil, err
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
	// Interpreters that import site (servers, programs, children) read the packages' .pth files
	// through fre.pth; the bootstrap reads them itself.
	if err := b.Mkdir("out/usr/lib/python3/dist-packages"); err != nil {
		return nil, err
	}
	if err := b.Write("out/usr/lib/python3/dist-packages/fre.pth", []byte("import os, site; os.path.isdir('/"+prefix+"') and site.addsitedir('/"+prefix+"')\n")); err != nil {
		return nil, err
	}
	tree, err := b.Import(ctx, "out", func(string) bool { return false })
	if err != nil {
		return nil, err
	}
	return []store.Part{{Kind: "base", Name: "python bytecode", Version: v, Tree: tree}}, nil
}

// Site is the source of packages.pip: the package indexes of the host's own configuration, by way
// of uv. It implements image.Site.
type Site struct {
	Tools     []string // Debian packages to add to the base "python" for pip
	Compilers []string // and for packages with native code and no wheel
}

// Name is "pip".
func (Site) Name() string { return "pip" }

// Bases is FRE's base with Python.
func (Site) Bases() []string { return []string{"python"} }

// Env names the directories of modules.
func (Site) Env() []string { return []string{pythonPath} }

// ProgramDirs is the directory of the packages' programs.
func (Site) ProgramDirs() []string { return []string{"/" + prefix + "/bin"} }

// Packages makes one part for each package version at opt/python, with compiled bytecode. It
// fetches no package if the lock answers the request and the store has its parts.
func (r Site) Packages(ctx context.Context, step *image.Step, t *template.Template, lock *image.Lock) ([]store.Part, error) {
	program, v, err := interpreter(step)
	if err != nil {
		return nil, err
	}
	site := &site{step: step, python: program, version: v, tools: r.Tools, compilers: r.Compilers, index: t.Packages.Of("pip").Index}
	locked, ok := lock.Sites[r.Name()].(*Locked)
	if !ok {
		if err := image.Offline(ctx, "an answer to packages.pip"); err != nil {
			return nil, err
		}
		step.Report(image.Progress{Step: "packages", Message: "resolve"})
		packages, err := site.resolve(ctx, t.Packages.Of("pip"))
		if err != nil {
			return nil, err
		}
		locked = newLocked(t.Packages.Of("pip").Key(), site.index, packages)
		lock.Sites[r.Name()] = locked
	}
	parts, missing := site.inStore(locked.Packages)
	if len(missing) == 0 {
		return parts, nil
	}
	names := make([]string, len(missing))
	for i, m := range missing {
		names[i] = locked.Packages[m].Name + " " + locked.Packages[m].Version
	}
	if err := image.Offline(ctx, "packages.pip: "+strings.Join(names, ", ")); err != nil {
		return nil, err
	}
	pinned, wheels, err := site.buildMissing(ctx, locked.Packages, parts, missing)
	if err != nil {
		return nil, err
	}
	if pinned != nil {
		lock.Sites[r.Name()] = newLocked(locked.Request, site.index, pinned)
	}
	if len(wheels) > 0 {
		err = site.install(ctx, locked.Packages, parts, wheels)
	}
	return parts, err
}

// inStore returns the parts of packages, and the indexes of those that the store lacks.
func (s *site) inStore(packages []image.LockedPackage) (parts []store.Part, missing []int) {
	parts = make([]store.Part, len(packages))
	for i, p := range packages {
		part, ok := s.step.Store.Part(s.key(p))
		if len(p.Hashes) == 1 {
			part.Hash = p.Hashes[0]
		}
		if parts[i] = part; !ok {
			missing = append(missing, i)
		}
	}
	return parts, missing
}

// buildMissing builds the missing packages that come as source, sets their parts, and returns the
// indexes of the others, which are wheels. An old lock does not pin the packages for a build: then
// buildMissing also returns all packages, with these pinned; else nil.
func (s *site) buildMissing(ctx context.Context, packages []image.LockedPackage, parts []store.Part, missing []int) (pinned []image.LockedPackage, wheels []int, err error) {
	for _, m := range missing {
		p := packages[m]
		if p.Source == "" {
			wheels = append(wheels, m)
			continue
		}
		made, part, err := s.fromSource(ctx, p, nil)
		if err != nil {
			return nil, nil, err
		}
		if parts[m] = part; len(p.Requires) == len(made.Requires) {
			continue
		}
		if image.OptionsOf(ctx).Locked {
			if err := s.step.Store.PutPart(ctx, s.key(p), part); err != nil {
				return nil, nil, err
			}
			continue
		}
		if pinned == nil {
			pinned = slices.Clone(packages)
		}
		pinned[m] = made
	}
	return pinned, wheels, nil
}

// prefix is the directory of packages in an image.
const prefix = "opt/python"

// skip leaves out files of the installation alone: uv's lock file and cache notes.
func skip(p string) bool { return p == ".lock" || path.Base(p) == "uv_cache.json" }
