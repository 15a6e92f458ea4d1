package python

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
)

// Site is the source of packages.pip: the package indexes of the host's own configuration, by way
// of uv. It implements image.Site.
type Site struct {
	Tools     []string // Debian packages to add to the base "python" for pip
	Compilers []string // and for packages with native code and no wheel
}

// Name is "pip".
func (Site) Name() string { return "pip" }

// Bases is FRE's base with Python.
func (Site) Bases() []string { return []string{"python"} }

// Env names the directories of modules.
func (Site) Env() []string { return []string{pythonPath} }

// ProgramDirs is the directory of the packages' programs.
func (Site) ProgramDirs() []string { return []string{"/" + prefix + "/bin"} }

// skip leaves out files of the installation alone: uv's lock file and cache notes.
func skip(p string) bool { return p == ".lock" || path.Base(p) == "uv_cache.json" }

// site is a package index seen from one base environment.
type site struct {
	step    *image.Step
	python  string   // path of the interpreter
	version string   // of the interpreter, "3.11"
	tools   []string // Debian packages of pip

	compilers []string // and of a compiler for native code

	index map[string]string // package → name of its index: packages.pip_index
}

// key names the part of a package version in the store.
func (s *site) key(p image.LockedPackage) string {
	h := sha256.New()
	for _, hash := range slices.Sorted(slices.Values(p.Hashes)) {
		_, _ = fmt.Fprintln(h, hash)
	}
	_, _ = io.WriteString(h, p.Source)
	for _, r := range p.Requires {
		_, _ = fmt.Fprintf(h, "\n%s %s %q", r.Name, r.Version, slices.Sorted(slices.Values(r.Hashes)))
	}
	platform := runtime.GOARCH
	if s.step.Platform != "" { // a wheel for one libc may not run with another
		platform += "-" + s.step.Platform
	}
	return fmt.Sprintf("pip:%s==%s:cp%s:%s:%s", p.Name, p.Version, strings.ReplaceAll(s.version, ".", ""), platform, hex.EncodeToString(h.Sum(nil)[:16]))
}
