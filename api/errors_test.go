package api_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// uncoded has the exported errors without a code, by the reason why no client gets them bare.
var uncoded = map[string][]string{
	"has the code of the wrapped error":                              {"admission.RefusedError", "engine.InvocationError"},
	"has the code in a field, which ErrorOf reads":                   {"api.Error"},
	"arises in a client":                                             {"api.ErrDetached", "client.ErrUnreachable", "image/signature.ErrPassword", "internal/command.UsageError"},
	"arises in programs of tests":                                    {"internal/testdaemon.CommandError", "internal/testdaemon.ErrExited"},
	"ends the start of the engine or of the registry":                {"registry.ErrExposed", "registry.ErrInUse", "sandbox.ErrNotBuilt", "sandbox/cgroup.ErrMissing", "server.ErrRunning", "store.ErrLocked", "store.LockedError"},
	"the engine takes another way: a file, a fresh start":            {"buffer.ErrExhausted", "buffer.ErrTooLarge", "sandbox.ErrForks", "sandbox/pool.ErrFull"},
	"the engine answers by CrashError, ErrEventTooLarge or a retry":  {"channel.ErrClosed", "channel.ErrMetaTooLarge", "channel.ErrProtocol", "channel.ErrUnserved"},
	"the gateway lends the socket, or sends without a lent socket":   {"channel.ErrSocketWanted", "engine.ErrSocketWanted", "httpserver.ErrNoSwitch"},
	"the client has gone: context.Canceled, which ErrorOf knows":     {"channel.ErrClientGone", "httpserver.ErrClientGone"},
	"the answer has begun or is complete":                            {"httpserver.ErrBodyClosed", "httpserver.ErrBodyTooLong"},
	"a build answers by PackageError or FieldError":                  {"image/debian.ErrExpired", "image/debian.ErrHash", "image/debian.ErrInstalled", "image/debian.ErrSignature", "image/debian.ErrUnresolved", "image/debian.ErrUnsafe", "image/debian.FetchError", "runtimes/install.ErrTooLarge"},
	"the engine answers by FieldError, or by sandbox.NoEgressError":  {"sandbox/egress.BlockedError", "sandbox/egress.ErrForwarding", "volume.ErrNoLimits"},
	"image/oci and builds refuse the source; in the store it is rot": {"store.ErrFileType", "store.ErrNotLayer", "store.ErrOwner", "store.ErrPath", "store.ErrTree"},
}

// TestErrorsCarryCodes: every exported error of the root module carries a code of the catalogue, or
// stands in a list with the reason why no client gets the error.
func TestErrorsCarryCodes(t *testing.T) {
	found := exportedErrors(t, os.DirFS(".."))
	reasons := map[string]string{}
	for reason, names := range uncoded {
		for _, name := range names {
			reasons[name] = reason
			if coded, ok := found[name]; !ok || coded {
				t.Errorf("%s is listed as an error without a code: exists %t, has a code %t", name, ok, coded)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !found[name] && reasons[name] == "" {
			t.Errorf("%s has no code: make the error by failure.New, give the type a method Code, or list the error in uncoded with the reason why no client gets it", name)
		}
	}
}

// TestExportedErrors: a code comes from package failure, from a wrapped or renamed variable, or from
// a method.
func TestExportedErrors(t *testing.T) {
	tree := fstest.MapFS{
		"go.mod": {},
		"store/a.go": {Data: []byte(`package store
			var (
				ErrNew, ErrWrapped = failure.New(failure.Gone, "gone", ""), failure.Wrap(failure.Gone, ErrPlain, "")
				ErrPlain           = errors.New("plain")
				ErrOuter           = fmt.Errorf("outer: %w", ErrNew)
				ErrHinted          = failure.Hint(ErrPlain, "try")
				errOwn             = errors.New("own")
				Errors             []error
			)
			type CodedError struct{}
			func (*CodedError) Error() string { return "" }
			func (*CodedError) Code() failure.Code { return failure.Gone }
			type PlainError []int
			func (e PlainError) Error() string { return "" }
			type EmbeddedError struct{ error }
			type Other struct{}
			func (Other) Code() failure.Code { return failure.Gone }`)},
		"store/a_test.go":     {Data: []byte("package store\nvar ErrTest = errors.New(\"\")\n")},
		"image/b.go":          {Data: []byte("package image\nvar ErrAlias, ErrPlainAlias, ErrUnknown = store.ErrOuter, store.ErrPlain, other.ErrOuter\n")},
		"cmd/x/main.go":       {Data: []byte("package main\nvar ErrMain = errors.New(\"\")\n")},
		"module/go.mod":       {},
		"module/c.go":         {Data: []byte("package module\nvar ErrModule = errors.New(\"\")\n")},
		"store/testdata/d.go": {Data: []byte("package testdata\nvar ErrData = errors.New(\"\")\n")},
	}
	want := map[string]bool{
		"store.ErrNew": true, "store.ErrWrapped": true, "store.ErrPlain": false, "store.ErrOuter": true, "store.ErrHinted": false,
		"store.CodedError": true, "store.PlainError": false, "store.EmbeddedError": false,
		"image.ErrAlias": true, "image.ErrPlainAlias": false, "image.ErrUnknown": false,
	}
	if diff := cmp.Diff(want, exportedErrors(t, tree)); diff != "" {
		t.Errorf("exported errors (-want +got):\n%s", diff)
	}
}

// exportedErrors returns the exported errors of a module, each with whether the error carries a
// code. The name of an error is its directory and identifier: "image/oci.ErrLayer". A variable
// is an error by its name Err…, a type by its method Error. Programs, tests and other modules are
// left out.
func exportedErrors(t *testing.T, tree fs.FS) map[string]bool {
	t.Helper()
	d := declarations{values: map[string]ast.Expr{}, errors: map[string]bool{}, coded: map[string]bool{}}
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case entry.IsDir():
			_, err := fs.Stat(tree, path.Join(name, "go.mod"))
			if base := entry.Name(); err == nil || base[0] == '.' || base == "testdata" {
				return fs.SkipDir
			}
			return nil
		case path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err == nil && file.Name.Name != "main" {
			d.add(path.Dir(name), file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for name, value := range d.values {
		dir, _, _ := strings.Cut(name, ".")
		found[name] = d.carries(dir, value)
	}
	for name := range d.errors {
		found[name] = d.coded[name]
	}
	return found
}

// declarations are those of a module that concern errors, by directory and identifier.
type declarations struct {
	values map[string]ast.Expr // of the variables Err…
	errors map[string]bool     // exported types with a method Error
	coded  map[string]bool     // types with a method Code
}

func (d *declarations) add(dir string, file *ast.File) {
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv != nil && len(decl.Type.Params.List) == 0 {
				d.addMethod(dir, decl)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				d.addSpec(dir, spec)
			}
		}
	}
}

func (d *declarations) addMethod(dir string, method *ast.FuncDecl) {
	receiver := method.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	switch of, ok := receiver.(*ast.Ident); {
	case !ok || !of.IsExported():
	case method.Name.Name == "Error":
		d.errors[dir+"."+of.Name] = true
	case method.Name.Name == "Code":
		d.coded[dir+"."+of.Name] = true
	}
}

func (d *declarations) addSpec(dir string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for i, name := range spec.Names {
			if rest, ok := strings.CutPrefix(name.Name, "Err"); ok && i < len(spec.Values) && ast.IsExported(rest) {
				d.values[dir+"."+name.Name] = spec.Values[i]
			}
		}
	case *ast.TypeSpec:
		fields, ok := spec.Type.(*ast.StructType)
		if !ok || !spec.Name.IsExported() {
			return
		}
		for _, f := range fields.Fields.List {
			if of, ok := f.Type.(*ast.Ident); ok && len(f.Names) == 0 && of.Name == "error" {
				d.errors[dir+"."+spec.Name.Name] = true
			}
		}
	}
}

// carries reports whether the value of a variable in dir has a code.
func (d *declarations) carries(dir string, value ast.Expr) (coded bool) {
	ast.Inspect(value, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			of, ok := n.X.(*ast.Ident)
			if !ok {
				return true
			}
			if of.Name == "failure" {
				coded = coded || n.Sel.Name == "New" || n.Sel.Name == "Wrap"
				return false
			}
			for name, value := range d.values { // a package by the last element of its path
				if dir, own, _ := strings.Cut(name, "."); own == n.Sel.Name && path.Base(dir) == of.Name {
					coded = coded || d.carries(dir, value)
				}
			}
			return false
		case *ast.Ident:
			if value, ok := d.values[dir+"."+n.Name]; ok {
				coded = coded || d.carries(dir, value)
			}
		}
		return true
	})
	return coded
}
