// Package python builds and starts functions written in Python: a bootstrap that speaks the
// channel, and packages resolved and installed by uv.
package python

import (
	"embed"
	"fmt"
	"io/fs"
	"regexp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

//go:embed bootstrap.py _fre/*.py
var bootstrap embed.FS

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

// prefix is the directory of packages in an image.
const prefix = "opt/python"
