package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// reuse holds the cost of a further image of a function.
type reuse struct {
	Name       string  `json:"name"`
	Second     *series `json:"second"`
	Redeploy   *series `json:"redeploy"`
	ImageBytes int64   `json:"image_bytes"` // on disk, of one image alone
	NewBytes   int64   `json:"new_bytes"`   // on disk, added by the second image
}

// edited lists small and large templates, with the source file to edit.
var edited = []struct{ template, file, comment string }{
	{"python-lxml", "src/main.py", "#"},
	{"python-thumbnail", "src/main.py", "#"},
	{"node-package", "src/index.js", "//"},
	{"php-hello", "src/index.php", "//"},
	{"java-hello", "src/Handler.java", "//"},
}

func (r *result) measureReuse(ctx context.Context, e *engine.Engine, o options) error {
	todo := edited
	if o.quick {
		todo = todo[:1]
	}
	for _, t := range todo {
		u, err := measureEdits(ctx, e, o, t.template, t.file, t.comment)
		if err != nil {
			return fmt.Errorf("%s: %w", t.template, err)
		}
		r.Reuse = append(r.Reuse, u)
	}
	return nil
}

func measureEdits(ctx context.Context, e *engine.Engine, o options, template, file, comment string) (*reuse, error) {
	dir, err := e.Deploy(ctx, filepath.Join("templates", template), template)
	if err != nil {
		return nil, err
	}
	c, err := testdaemon.LoadCase(dir, template)
	if err != nil {
		return nil, err
	}
	source, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil, err
	}
	n := 0
	edit := func(context.Context) error {
		n++
		return os.WriteFile(filepath.Join(dir, file), fmt.Appendf(nil, "%s\n%s edit %d\n", source, comment, n), 0o644)
	}
	httpClient := &http.Client{}
	defer httpClient.CloseIdleConnections()
	digest := ""
	u := &reuse{
		Name: template,
		Second: &series{Name: "second image", prepare: edit, do: func(ctx context.Context) error {
			out, err := e.CLI(ctx, "build", "--quiet", dir)
			digest = strings.TrimSpace(out)
			return err
		}},
		Redeploy: &series{Name: "redeploy", prepare: edit, do: func(ctx context.Context) error {
			if _, err := e.CLI(ctx, "deploy", "--quiet", "--name", template, dir); err != nil {
				return err
			}
			a, err := c.Event.Call(ctx, httpClient, e.Addr(), template)
			if err != nil {
				return err
			}
			return c.Check(a)
		}},
	}
	// Build a first image; all later images count as second images.
	if err := errors.Join(edit(ctx), u.Second.do(ctx)); err != nil {
		return nil, err
	}
	before, err := diskUse(e.Images())
	if err != nil {
		return nil, err
	}
	if err := turns(ctx, []*series{u.Second}, 1); err != nil {
		return nil, err
	}
	after, err := diskUse(e.Images())
	if err != nil {
		return nil, err
	}
	u.NewBytes = after - before
	if u.ImageBytes, err = diskUse(e.Rootfs(digest)); err != nil {
		return nil, err
	}
	return u, turns(ctx, []*series{u.Second, u.Redeploy}, o.warm)
}

// diskUse returns the disk usage of the directories and files below dir in bytes, each inode once.
func diskUse(dir string) (bytes int64, err error) {
	seen := map[uint64]bool{}
	err = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && !seen[st.Ino] {
			seen[st.Ino] = true
			bytes += st.Blocks * 512
		}
		return nil
	})
	return bytes, err
}

// imports holds the times in which a Python process imports numpy and requests.
type imports struct {
	FRE, Pip *series
}

func (i *imports) markdown(p func(format string, args ...any)) {
	p("## Imports\n\nA Python process in the function's tree imports numpy and requests and ends. The packages come from FRE's tree, or from a directory with the same wheels, installed and compiled by pip. Milliseconds.\n")
	p("| | starts | p50 | fre ÷ this |\n|---|---:|---:|---:|")
	for _, s := range []*series{i.FRE, i.Pip} {
		p("| %s | %d | %.1f | %.2f |", s.Name, len(s.Times), ms(s.p50()), float64(i.FRE.p50())/float64(s.p50()))
	}
}

// measureImports runs Python in the image's tree as root directory: once in the tree alone, and
// once with pip's directory mounted over /opt/python in a private mount namespace.
func measureImports(ctx context.Context, e *engine.Engine, o options) (*imports, error) {
	dir := filepath.Join(e.Dir(), "imports")
	template := filepath.Join(dir, "function")
	installed := filepath.Join(dir, "pip")
	if err := errors.Join(os.MkdirAll(filepath.Join(template, "src"), 0o755),
		os.WriteFile(filepath.Join(template, "src/main.py"), []byte("def handle(event, context):\n    return 1\n"), 0o644),
		os.WriteFile(filepath.Join(template, "fret.yaml"),
			[]byte("id: bench-imports\nbase: python\npackages: {pip: [numpy==2.4.6, requests==2.32.3]}\ncode: {path: src}\nhandler: main.handle\n"), 0o644),
	); err != nil {
		return nil, err
	}
	digest, err := e.CLI(ctx, "build", "--quiet", template)
	if err != nil {
		return nil, err
	}
	root := e.Rootfs(strings.TrimSpace(digest))
	version, err := pythonIn(root)
	if err != nil {
		return nil, err
	}
	if err := command(ctx, dir, nil, "python3", "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:",
		"--python-version", version, "--target", installed, "numpy==2.4.6", "requests==2.32.3"); err != nil {
		return nil, err
	}
	in := func(mount string, args ...string) func(context.Context) error {
		script := mount + `exec chroot "$@"`
		return func(ctx context.Context) error {
			return command(ctx, dir, nil, "unshare", append([]string{"--mount", "sh", "-euc", script, "sh", root, "/usr/bin/python3", "-I", "-S"}, args...)...)
		}
	}
	over := fmt.Sprintf("mount --bind %q %q\n", installed, filepath.Join(root, "opt/python"))
	alike := fmt.Sprintf("mount --bind %q %[1]q\n", filepath.Join(root, "opt/python"))
	if err := in(over, "-m", "compileall", "-q", "/opt/python")(ctx); err != nil {
		return nil, err
	}
	const program = "import sys; sys.path.insert(0, '/opt/python'); sys.dont_write_bytecode = True; import numpy, requests"
	i := &imports{
		FRE: &series{Name: "FRE's tree", do: in(alike, "-c", program)},
		Pip: &series{Name: "pip's", do: in(over, "-c", program)},
	}
	all := []*series{i.FRE, i.Pip}
	if err := turns(ctx, all, 1); err != nil { // reads the files from the disk; not counted
		return nil, err
	}
	i.FRE.Times, i.Pip.Times = nil, nil
	return i, turns(ctx, all, 3*o.warm)
}

// pythonIn returns the version of Python in a tree, such as "3.11".
func pythonIn(root string) (string, error) {
	name, err := os.Readlink(filepath.Join(root, "usr/bin/python3"))
	if err != nil {
		return "", err
	}
	return strings.TrimPrefix(filepath.Base(name), "python"), nil
}
