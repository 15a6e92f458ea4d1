// Package fre holds the sources that functions written in Go are linked with, so
// that whoever builds one needs no module but their own: fre builds them in.
package fre

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

//go:embed function/*.go function/web/*.go function/internal/failure/*.go channel/*.go internal/linux/*.go
var sources embed.FS

//go:embed go.mod
var goMod []byte

//go:embed go.sum
var goSum []byte

// ModulePath is the path that functions import the library by, without /function.
const ModulePath = "github.com/fre-engine/fre"

// library lists the modules that the library itself needs.
var library = []string{"golang.org/x/sys"}

// FunctionModule returns the files of the module that packages function,
// function/web and channel make by themselves, with internal/linux: path relative to
// it → content.
func FunctionModule() map[string][]byte {
	files := map[string][]byte{}
	err := fs.WalkDir(sources, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(p, "_test.go") {
			return err
		}
		files[p], err = sources.ReadFile(p)
		return err
	})
	if err != nil {
		panic(err) // they are part of the program
	}
	var mod, sum bytes.Buffer
	_, _ = fmt.Fprintf(&mod, "module %s\n", ModulePath)
	for line := range strings.Lines(string(goMod)) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), " "); name == "go" {
			mod.WriteString(line)
		} else if wanted(name) {
			_, _ = fmt.Fprintf(&mod, "require %s", strings.TrimLeft(line, "\t"))
		}
	}
	for line := range strings.Lines(string(goSum)) {
		if name, _, _ := strings.Cut(line, " "); wanted(name) {
			sum.WriteString(line)
		}
	}
	files["go.mod"], files["go.sum"] = mod.Bytes(), sum.Bytes()
	return files
}

func wanted(module string) bool { return slices.Contains(library, module) }
