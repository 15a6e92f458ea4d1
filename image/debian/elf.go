package debian

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// ELFCheck is a Writer that passes all files on to another Writer and notes the dependencies of ELF
// files, for Err to report missing libraries. It searches like ld.so(8) without a cache file:
// DT_RPATH or DT_RUNPATH of the file itself, then the default directories. One ELF file at a time
// is in memory.
type ELFCheck struct {
	w     Writer
	links map[string]string // symlink → target
	files map[string]bool
	needs []need
}

// need is one ELF file's interpreter or library.
type need struct {
	by, name string
	dirs     []string // directories of the run path
	plugin   bool     // by is a plugin: the program may have loaded the library before
}

// places returns the absolute paths that ld.so tries, in order.
func (n need) places() []string {
	if strings.Contains(n.name, "/") {
		return []string{n.name}
	}
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	var out []string
	for _, d := range slices.Concat(n.dirs, []string{"/lib/" + triplet, "/usr/lib/" + triplet, "/lib", "/usr/lib", "/lib64", "/usr/lib64"}) {
		out = append(out, d+"/"+n.name)
	}
	return out
}

const maxELF = 512 << 20

// CheckELF wraps w.
func CheckELF(w Writer) *ELFCheck {
	return &ELFCheck{w: w, links: map[string]string{}, files: map[string]bool{}}
}

// Directory implements [Writer].
func (c *ELFCheck) Directory(p string, mode fs.FileMode, mtime time.Time) error {
	return c.w.Directory(p, mode, mtime)
}

// Symlink implements [Writer].
func (c *ELFCheck) Symlink(p, target string, mtime time.Time) error {
	c.links[p] = target
	return c.w.Symlink(p, target, mtime)
}

// File implements [Writer].
func (c *ELFCheck) File(p string, mode fs.FileMode, mtime time.Time, r io.Reader) error {
	c.files[p] = true
	magic := make([]byte, len(elf.ELFMAG))
	n, err := io.ReadFull(r, magic)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if string(magic) != elf.ELFMAG {
		return c.w.File(p, mode, mtime, io.MultiReader(bytes.NewReader(magic[:n]), r))
	}
	b, err := io.ReadAll(io.MultiReader(bytes.NewReader(magic), io.LimitReader(r, maxELF)))
	if err != nil {
		return err
	}
	if len(b) >= maxELF {
		return fmt.Errorf("%s: ELF file larger than %d bytes", p, maxELF)
	}
	needs, err := needsOf(p, bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	c.needs = append(c.needs, needs...)
	return c.w.File(p, mode, mtime, bytes.NewReader(b))
}

// Needs returns the dependencies of the ELF file at path p of a root: for the interpreter and each
// library the absolute paths that ld.so tries, in order. It returns an error if f is no ELF file,
// and no dependencies for another machine's file.
func Needs(p string, f io.ReaderAt) ([][]string, error) {
	needs, err := needsOf(p, f)
	var out [][]string
	for _, n := range needs {
		out = append(out, n.places())
	}
	return out, err
}

func needsOf(p string, r io.ReaderAt) (needs []need, err error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return nil, err
	}
	if !runnable(f) {
		return nil, nil // object files, and other machines' test data
	}
	for _, s := range f.Progs {
		if s.Type == elf.PT_INTERP {
			b, err := io.ReadAll(io.LimitReader(s.Open(), 4096))
			if err != nil {
				return nil, err
			}
			needs = append(needs, need{by: p, name: strings.TrimRight(string(b), "\x00")})
		}
	}
	plugin := len(needs) == 0
	dirs, err := runPath(f, "/"+path.Dir(p))
	if err != nil {
		return nil, err
	}
	libs, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for _, l := range libs {
		needs = append(needs, need{by: p, name: l, dirs: dirs, plugin: plugin})
	}
	return needs, nil
}

// runnable reports whether the file is a program or library of this machine.
func runnable(f *elf.File) bool {
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	return f.Machine == machine && (f.Type == elf.ET_EXEC || f.Type == elf.ET_DYN)
}

// runPath returns the directories that the file adds to ld.so's; origin is the file's directory.
func runPath(f *elf.File, origin string) (dirs []string, err error) {
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		l, err := f.DynString(tag)
		if err != nil {
			return nil, err
		}
		for _, s := range l {
			for d := range strings.SplitSeq(s, ":") {
				dirs = append(dirs, strings.NewReplacer("$ORIGIN", origin, "${ORIGIN}", origin).Replace(d))
			}
		}
	}
	return dirs, nil
}

// Err returns nil if all noted dependencies resolve, else an error that names each file and the
// missing library. A plugin may also find a library below the plugin's own directory, because ld.so
// takes a library that is loaded already: a JVM loads server/libjvm.so before its dependents beside
// server/. Files that match a pattern in except (globs as for [Keep]) may miss libraries: optional
// modules.
func (c *ELFCheck) Err(except ...string) error {
	counts, err := Keep(except)
	if err != nil {
		return err
	}
	var missing []error
	for _, n := range c.needs {
		if !counts(n.by) || n.plugin && c.below(path.Dir(n.by), n.name) {
			continue
		}
		if !slices.ContainsFunc(n.places(), c.exists) {
			missing = append(missing, fmt.Errorf("%s needs %s: missing in the tree", n.by, n.name))
		}
	}
	return errors.Join(missing...)
}

// below reports whether a directory below dir has a file with the name.
func (c *ELFCheck) below(dir, name string) bool {
	for p := range c.files {
		if path.Base(p) == name && strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}

// exists follows symlinks, in parents too, inside the tree.
func (c *ELFCheck) exists(p string) bool {
	rest := strings.Split(strings.Trim(path.Clean("/"+p), "/"), "/")
	at := ""
	for hops := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		target, ok := c.links[next]
		if !ok {
			at = next
			continue
		}
		if hops++; hops > 40 {
			return false
		}
		if !path.IsAbs(target) {
			target = "/" + path.Join(at, target)
		}
		rest = append(strings.Split(strings.Trim(path.Clean(target), "/"), "/"), rest...)
		at = ""
	}
	return c.files[at]
}
