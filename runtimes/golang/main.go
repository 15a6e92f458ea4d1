package golang

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	texttemplate "text/template"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// generated is the file that makes a program of the handler's package.
const generated = "fre_generated_main.go"

// generatedDir is the directory of generated, below the module, for a package that is not main.
const generatedDir = "fre_generated_main"

// wrap generates a main package for the handler in the code below root, and returns the directory
// of the package to build. It leaves a package main with a func main as it is. module is the
// module's path.
//
// wrap only looks at the number of parameters and results, to learn how to call the handler. The
// compiler checks the types.
func wrap(root *os.Root, module, handler string, contract template.Contract) (dir string, err error) {
	dir, name, err := parseHandler(handler)
	if err != nil {
		return "", err
	}
	fail := func(format string, args ...any) (string, error) {
		return "", &template.FieldError{Field: "handler", Message: fmt.Sprintf("handler %q: %s", handler, fmt.Sprintf(format, args...))}
	}
	if info, err := root.Stat(dir); err != nil || !info.IsDir() {
		return fail("no directory %s in the code", dir)
	}
	pkg, err := scan(root, dir)
	if err != nil {
		if reason := unsuitable(err, dir); reason != "" {
			return fail("%s", reason)
		}
		return "", &template.FieldError{Field: "code.path", Message: err.Error()}
	}
	if pkg.isProgram() {
		return dir, nil
	}
	if contract == template.ContractLambda {
		return fail("the contract lambda needs a program: package %s has no func main with a call of lambda.Start", pkg.name)
	}
	name, call := pkg.handler(name, contract)
	if reason := pkg.unfit(name, call); reason != "" {
		return fail("%s", reason)
	}
	if pkg.name == "main" {
		return dir, writeMain(root, dir, mainFile{call, "", name})
	}
	if err := root.Mkdir(generatedDir, 0o755); err != nil {
		return "", err
	}
	return generatedDir, writeMain(root, generatedDir, mainFile{call, path.Join(module, dir), "handler." + name})
}

// unsuitable returns the reason why dir holds no package to build, from an error of scan; "" for
// another error.
func unsuitable(err error, dir string) string {
	var none *build.NoGoError
	var several *build.MultiplePackageError
	switch {
	case errors.As(err, &none) && none.Dir == ignored:
		return fmt.Sprintf("all Go files in the code's directory %s are left out: tests, files with cgo (import \"C\", not supported), or files for another system", dir)
	case errors.As(err, &none):
		return fmt.Sprintf("no Go package in the code's directory %s: add the package, or name another package as in api.Handle", dir)
	case errors.As(err, &several):
		return fmt.Sprintf("the directory %s holds files of two packages, %s and %s", dir, several.Packages[0], several.Packages[1])
	}
	return ""
}

// handler returns the declaration that handles events under a contract, and its shape; "" if the
// package has no such declaration. Knative's handler may be made by New.
func (p *goPackage) handler(name string, contract template.Contract) (handler, shape string) {
	shape = p.decls[name]
	if contract != template.ContractKnative {
		if shape == shapeContext {
			return name, shapeUnknown
		}
		return name, shape
	}
	if shape == "" && name == "Handle" && p.decls["New"] == shapeMake {
		name, shape = "New", shapeMake
	}
	if shape == shapeMake {
		shape = shapeInstance
	}
	return name, shape
}

// unfit returns the reason why the declaration name of this shape cannot be the handler; "" if it
// can.
func (p *goPackage) unfit(name, shape string) string {
	switch {
	case shape == "":
		return fmt.Sprintf("package %s has no function or variable %s (found: %s)", p.name, name, strings.Join(p.exported(), ", "))
	case shape == shapeUnknown:
		return fmt.Sprintf("func %s must be func(context.Context, function.Event) (any, error), func(http.ResponseWriter, *http.Request), or func() http.Handler", name)
	case p.name != "main" && !ast.IsExported(name):
		return fmt.Sprintf("%s of package %s is not exported: begin the name with a capital", name, p.name)
	}
	return ""
}

// isProgram reports whether the package has a func main of its own.
func (p *goPackage) isProgram() bool { return p.name == "main" && p.decls["main"] != "" }

// mainFile holds the values of mainTemplate.
type mainFile struct{ Call, Import, Handler string }

// writeMain writes the generated file to dir.
func writeMain(root *os.Root, dir string, f mainFile) error {
	var text bytes.Buffer
	if err := mainTemplate.Execute(&text, f); err != nil {
		return err
	}
	return root.WriteFile(path.Join(dir, generated), text.Bytes(), 0o644)
}

// Shapes of declarations: how to call the handler.
const (
	shapeHandle   = "handle"   // func(_, _) (_, _)
	shapeServe    = "serve"    // func(_, _)
	shapeMake     = "make"     // func() _
	shapeValue    = "value"    // a variable: an http.Handler
	shapeContext  = "context"  // func(_, _, _), Knative's
	shapeInstance = "instance" // func() _, which makes a Knative instance
	shapeUnknown  = "unknown"  // no handler
)

// mainTemplate has no //line directives: the compiler reports type errors under the file's own
// name, and buildFault recognises the name.
var mainTemplate = texttemplate.Must(texttemplate.New("main").Parse(`package main

import (
{{- if eq .Call "serve"}}
	"net/http"
{{end}}
	"github.com/fre-engine/fre/function"
{{- if ne .Call "handle"}}
	"github.com/fre-engine/fre/function/web"
{{- end}}
{{- if .Import}}

	handler {{printf "%q" .Import}}
{{- end}}
)

func main() {
	function.Load(func() function.Handler {
{{- if eq .Call "handle"}}
		return {{.Handler}}
{{- else if eq .Call "serve"}}
		return web.Handler(http.HandlerFunc({{.Handler}}))
{{- else if eq .Call "instance"}}
		return web.Knative({{.Handler}}())
{{- else if eq .Call "context"}}
		return web.KnativeContext({{.Handler}})
{{- else if eq .Call "make"}}
		return web.Handler({{.Handler}}())
{{- else}}
		return web.Handler({{.Handler}})
{{- end}}
	})
}
`))

// goPackage describes the declarations of a package.
type goPackage struct {
	name  string
	decls map[string]string // shapes of functions and variables, by name
}

func (p *goPackage) exported() []string {
	var names []string
	for name := range p.decls {
		if ast.IsExported(name) {
			names = append(names, name)
		}
	}
	if slices.Sort(names); len(names) == 0 {
		return []string{"no exported names"}
	}
	return names[:min(len(names), 12)]
}

// ignored marks a NoGoError for a directory whose files are all for another system, for tests or
// for cgo.
const ignored = "ignored"

// maxSource bounds the bytes of a source file that scan reads.
const maxSource = 4 << 20

// scan parses the package in dir, as built for Linux without cgo. It opens no file outside of root,
// wherever links in the code lead.
func scan(root *os.Root, dir string) (*goPackage, error) {
	found, err := buildContext(root).ImportDir(dir, 0)
	if err != nil {
		if len(found.IgnoredGoFiles)+len(found.TestGoFiles)+len(found.XTestGoFiles)+len(found.CgoFiles) > 0 {
			return nil, errors.Join(&build.NoGoError{Dir: ignored}, err)
		}
		return nil, err
	}
	p := &goPackage{name: found.Name, decls: map[string]string{}}
	set := token.NewFileSet()
	for _, name := range found.GoFiles {
		name = path.Join(dir, name)
		f, err := root.Open(name)
		if err != nil {
			return nil, image.FileFault(name, err)
		}
		text, err := io.ReadAll(io.LimitReader(f, maxSource))
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err // with file:line:column
		}
		for _, d := range file.Decls {
			p.add(d)
		}
	}
	return p, nil
}

// buildContext returns the context that reads packages below root for Linux without cgo.
func buildContext(root *os.Root) *build.Context {
	c := build.Default
	c.GOOS, c.CgoEnabled, c.GOROOT, c.GOPATH, c.BuildTags = "linux", false, "", "", nil
	c.JoinPath = path.Join
	c.IsAbsPath = path.IsAbs
	c.IsDir = func(p string) bool {
		info, err := root.Stat(p)
		return err == nil && info.IsDir()
	}
	c.HasSubdir = func(string, string) (string, bool) { return "", false }
	c.ReadDir = func(p string) ([]fs.FileInfo, error) {
		entries, err := fs.ReadDir(root.FS(), p)
		var out []fs.FileInfo
		for _, e := range entries {
			if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
				out = append(out, info)
			}
		}
		return out, err
	}
	c.OpenFile = func(p string) (io.ReadCloser, error) { return root.Open(p) }
	return &c
}

func (p *goPackage) add(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			p.decls[d.Name.Name] = shapeOf(d.Type)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok && d.Tok == token.VAR {
				for _, n := range v.Names {
					p.decls[n.Name] = shapeValue
				}
			}
		}
	}
}

// shapeOf returns the shape of a function.
func shapeOf(t *ast.FuncType) string {
	if t.TypeParams != nil {
		return shapeUnknown
	}
	switch [2]int{t.Params.NumFields(), t.Results.NumFields()} {
	case [2]int{2, 2}:
		return shapeHandle
	case [2]int{2, 0}:
		return shapeServe
	case [2]int{3, 0}:
		return shapeContext
	case [2]int{0, 1}:
		return shapeMake
	}
	return shapeUnknown
}
