// Package fre embeds the sources of the library for functions written in Go. The fre binary
// contains the library, so a build of a function downloads no module of FRE.
package fre

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

//go:embed function/*.go function/web/*.go function/internal/failure/*.go function/channel/*.go function/channel/*/*.go
var sources embed.FS

//go:embed go.mod
var goMod []byte

//go:embed go.sum
var goSum []byte

// ModulePath is the module path of the library. Functions import ModulePath + "/function".
const ModulePath = "github.com/fre-engine/fre"

// library lists the modules that the library itself needs.
var library = []string{"golang.org/x/sys"}

// FunctionModule returns the files of a module with package function and the packages below: path relative to the module's root →
// content.
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
		panic(err) // impossible: the files are part of the program
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
