package java

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/template"
)

// Builds reports whether the code has to be compiled: Java source without classes and jars, or a
// Maven project. toolchain need not name the JDK: the base, which is linked from the JDK,
// determines it.
func (Runtime) Builds(_ *template.Template, files []string) (toolchain string, ok bool) {
	has := func(extension string) bool {
		return slices.ContainsFunc(files, func(f string) bool {
			return path.Ext(f) == extension && !strings.HasPrefix(f, "src/test/")
		})
	}
	if slices.Contains(files, pomFile) && has(".java") {
		return "maven", true
	}
	return "javac", has(".java") && !has(".class") && !has(".jar")
}

// BuildCode compiles all source files against the template's packages and the types of package fre.
// It copies the remaining files of the code, or a Maven project's resources.
func (r Runtime) BuildCode(ctx context.Context, s *image.Step, _ *template.Template, lock *image.Lock, source string) (built string, err error) {
	jdk, err := s.Tools(ctx, "java", r.Tools...)
	if err != nil {
		return "", err
	}
	javac, err := compiler(ctx, s, jdk)
	if err != nil {
		return "", fmt.Errorf("compiler: %w", err)
	}
	b, err := install.NewBench(s)
	if err != nil {
		return "", err
	}
	if err := errors.Join(b.Mkdir("function", "lib", "generated"), os.Rename(source, filepath.Join(b.Dir, "source"))); err != nil {
		return "", err
	}
	jars, err := copyJars(s, lock, filepath.Join(b.Dir, "lib"))
	if err != nil {
		return "", err
	}
	code, err := b.Open("source")
	if err != nil {
		return "", err
	}
	defer func() { _ = code.Close() }()
	u, err := sources(s, b, code, release(jdk))
	if err != nil {
		return "", err
	}
	classes := []string{"/function/fre.jar"}
	for _, name := range jars {
		classes = append(classes, "/work/lib/"+name)
	}
	args := slices.Concat([]string{"-implicit:none", "-s", "/work/generated", "-cp", strings.Join(classes, ":"), "-d", "/work/function"}, u.args, u.files)
	if err := b.Write("arguments", argumentFile(args)); err != nil {
		return "", err
	}
	words, err := b.Run(ctx, install.Tool{Rootfs: jdk, Program: javac, Args: append(slices.Clone(compilerCommand), "@/work/arguments"), Parks: true})
	if err != nil {
		return "", install.Failed(err, "code.path", strings.ReplaceAll(words, sourceDir, ""))
	}
	return filepath.Join(b.Dir, "function"), nil
}

// sourceDir is the path of the code in a build step.
const sourceDir = "/work/source/"

// unit is the input of javac.
type unit struct {
	files []string // of source
	args  []string
}

func (u *unit) add(name string) { u.files = append(u.files, sourceDir+name) }

// sources finds the source files of code, and copies the remaining files to javac's output
// directory on the bench. jdk is the compiler's version.
func sources(s *image.Step, b *install.Bench, code *os.Root, jdk string) (u unit, err error) {
	text, err := code.ReadFile(pomFile)
	if err == nil {
		return projectSources(s, b, code, text, jdk)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return unit{}, err
	}
	u.args = []string{"-encoding", "UTF-8", "-proc:none", "-sourcepath", sourceDir}
	return u, copyFiles(b, code, ".", func(name string) bool {
		if path.Ext(name) != ".java" {
			return false
		}
		u.add(name)
		return true
	})
}

// projectSources is sources for a Maven project, whose pom is text. Annotation processors of its
// packages run in javac, as with Maven. They see only what a build step sees.
func projectSources(s *image.Step, b *install.Bench, code *os.Root, text []byte, jdk string) (u unit, err error) {
	p, err := parsePom(text)
	if err != nil {
		return unit{}, err
	}
	m, err := p.maven()
	if err != nil {
		return unit{}, err
	}
	if err := m.fits(jdk); err != nil {
		return unit{}, err
	}
	if m.parent {
		s.Report(image.Progress{Step: "warning", Name: pomFile, Message: "FRE ignores plugins of the parent project"})
	}
	// Maven's default keeps no parameter names; with the names more frameworks work. There is
	// nothing at /work/none, so javac ignores source in jars.
	u.args = []string{"-encoding", m.encoding, "-parameters", "-sourcepath", "/work/none"}
	if !m.processed {
		u.args = append(u.args, "-proc:none")
	}
	for _, dir := range m.resources {
		if err := copyFiles(b, code, dir, func(string) bool { return false }); err != nil {
			return unit{}, err
		}
	}
	err = u.addBelow(code, m.source)
	return u, err
}

// addBelow adds the source files below dir, the source directory of a Maven project.
func (u *unit) addBelow(code *os.Root, dir string) error {
	err := fs.WalkDir(code.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		// Functions run from the class path: there are no modules.
		if err == nil && !d.IsDir() && path.Ext(name) == ".java" && path.Base(name) != "module-info.java" {
			u.add(name)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(u.files) == 0 {
		return &template.FieldError{Field: "code.path", Message: fmt.Sprintf("%s: no Java source in %s", pomFile, dir)}
	}
	return err
}

// copyFiles copies the files below the directory dir of code to the output directory for classes,
// except the files that taken accepts. A missing dir is no error. If dir is the whole code,
// symbolic links stay links. Otherwise a link would lead elsewhere, and its target is copied.
func copyFiles(b *install.Bench, code *os.Root, dir string, taken func(name string) bool) error {
	out, err := b.Open("function")
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	if _, err := code.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fs.WalkDir(code.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		to := strings.TrimPrefix(strings.TrimPrefix(name, dir), "/")
		if dir == "." {
			to = name
		}
		switch {
		case err != nil || name == dir:
			return err
		case d.IsDir():
			// The user of the sandbox writes there.
			return errors.Join(out.MkdirAll(to, 0o755), out.Chmod(to, 0o777))
		case taken(name):
			return nil
		case d.Type() == fs.ModeSymlink && dir == ".":
			target, err := code.Readlink(name)
			if err != nil {
				return err
			}
			return out.Symlink(target, to)
		}
		return copyFile(code, name, out, to)
	})
}

func copyFile(code *os.Root, name string, out *os.Root, to string) error {
	src, err := code.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &template.FieldError{Field: "code.path", Message: fmt.Sprintf("%s in the code leads to a directory: copy the directory instead", name)}
	}
	dst, err := out.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close(), out.Chtimes(to, info.ModTime(), info.ModTime()))
}
