package python

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
)

//go:embed work.py
var work []byte

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
