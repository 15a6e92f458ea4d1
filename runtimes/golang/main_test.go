package golang

import (
	"errors"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/template"
)

// FuzzWrap: For all code the generated file is valid Go, or the error is a fault of the template or
// the code.
func FuzzWrap(f *testing.F) {
	for _, s := range [][2]string{
		{"package a\nfunc Handle(a, b int) (int, error)", "Handle"},
		{"package main\nvar Handle, B = 1, 2", "Handle"},
		{"package a\nfunc New() any", "New"},
		{"package a\nfunc Serve(a, b int)", "Serve"},
		{"//go:build windows\npackage a", "Handle"},
		{"package a\nimport \"C\"", "Handle"},
		{"package a\nfunc (T) Handle()\nfunc Handle[T any]()", "Handle"},
		{"package a", "x.Handle"},
		{"package main\nfunc main()", "main"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, code, handler string) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte(code), 0o644); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		at, err := wrap(root, "function/x", handler, template.ContractFRE)
		var field *template.FieldError
		if err != nil && !errors.As(err, &field) {
			t.Fatalf("%q, %q: %v", code, handler, err)
		}
		if text, rerr := root.ReadFile(filepath.Join(at, generated)); err == nil && rerr == nil {
			if _, err := parser.ParseFile(token.NewFileSet(), "", text, 0); err != nil {
				t.Errorf("%v in\n%s", err, text)
			}
		}
	})
}

// Links in the code lead only into the code.
func TestWrapLinks(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "a.go"), []byte("package secret\nfunc Handle() any\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, target := range map[string]string{"d": outside, "a.go": filepath.Join(outside, "a.go")} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, handler := range []string{"Handle", "d.Handle"} {
		if at, err := wrap(root, "function/x", handler, template.ContractFRE); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: built at %q, %v", handler, at, err)
		}
	}
}
