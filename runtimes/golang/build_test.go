package golang

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/template"
)

const hello = `package hello

import (
	"context"

	"github.com/fre-engine/fre/function"
)

func Handle(_ context.Context, e function.Event) (any, error) { return e.Bytes() }
`

// TestLibrary: Code is compiled with the present program's library, for every version and module of
// the library in go.mod.
func TestLibrary(t *testing.T) {
	const module = "module example.org/hello\n\ngo 1.24\n\n"
	for name, files := range map[string]map[string]string{
		"no go.mod":       {},
		"require":         {"go.mod": module + "require github.com/fre-engine/fre/function v0.1.0\n"},
		"former":          {"go.mod": module + "require github.com/fre-engine/fre v0.1.0\n"},
		"former, replace": {"go.mod": module + "require (\n\tgithub.com/fre-engine/fre v0.0.0 // indirect\n)\n\nreplace github.com/fre-engine/fre => /src/fre\n"},
		"dependency": {
			"go.mod":     module + "require example.org/lib v0.0.0\n\nreplace example.org/lib => ./lib\n",
			"lib/go.mod": "module example.org/lib\n\ngo 1.24\n\nrequire github.com/fre-engine/fre v0.1.0\n",
			"lib/lib.go": strings.Replace(hello, "package hello", "package lib", 1),
			"use.go":     "package hello\n\nimport _ \"example.org/lib\"\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if words, err := compileHere(t, files); err != nil {
				t.Errorf("%v\n%s", err, words)
			}
		})
	}
}

// TestLibraryVendored: Code with a vendored library is compiled with the vendored copy, of the
// former or the present module.
func TestLibraryVendored(t *testing.T) {
	for _, module := range []string{libraryModule, formerModule} {
		t.Run(module, func(t *testing.T) {
			files := map[string]string{
				"go.mod":             "module example.org/hello\n\ngo 1.24\n\nrequire " + module + " v0.1.0\n",
				"vendor/modules.txt": "# " + module + " v0.1.0\n## explicit; go 1.24\n" + libraryModule + "\n",
				"vendor/" + libraryModule + "/function.go": "package function\n\nimport \"context\"\n\ntype Event struct{}\n\n" +
					"func (Event) Bytes() ([]byte, error) { return nil, nil }\n\ntype Handler func(context.Context, Event) (any, error)\n\nfunc Load(func() Handler) {}\n",
			}
			if words, err := compileHere(t, files); err != nil {
				t.Errorf("%v\n%s", err, words)
			}
		})
	}
}

// TestFormerChannel: The error for an import of a moved package names the new path.
func TestFormerChannel(t *testing.T) {
	words, err := compileHere(t, map[string]string{"raw.go": "package hello\n\nimport _ \"github.com/fre-engine/fre/channel\"\n"})
	if err == nil {
		t.Fatal("compiled")
	}
	err = buildFault(&image.ExitError{}, &template.Template{ID: "f"}, words)
	if want := "import github.com/fre-engine/fre/function/channel"; !strings.Contains(err.Error(), want) {
		t.Errorf("no %s in: %v", want, err)
	}
}

// compileHere prepares files and hello.go like BuildCode, compiles them with the machine's go
// command, and returns the output.
func compileHere(t *testing.T, files map[string]string) (words string, err error) {
	t.Helper()
	b, err := install.NewBench(&image.Step{Scratch: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(b.Dir, "src")
	for name, text := range files {
		name = filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(src, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(src, "hello.go"), []byte(hello), 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(src)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	workspace, dir, err := prepare(b, root, &template.Template{ID: "f", Handler: "Handle", Contract: template.ContractFRE})
	if err != nil {
		t.Fatal(err)
	}
	if workspace != "off" {
		workspace = filepath.Join(b.Dir, path.Base(workspace))
		for _, name := range []string{workspace, filepath.Join(src, "go.mod")} { // this machine's Go may be older
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(strings.ReplaceAll(string(text), "go "+toolchain.Version, "go 1.26.0")), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-C", src, "-buildvcs=false", "-o", filepath.Join(b.Dir, "program"), "./"+dir)
	cmd.Env = append(os.Environ(), "GOWORK="+workspace, "GOPROXY=off", "GOFLAGS=", "GOTOOLCHAIN=local", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
