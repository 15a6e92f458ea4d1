package java

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
)

//go:embed javac/Compile.java
var compileSource []byte

// Files of the compiler's directory, /function in a build step:
//
//	javac.jar   fre.bootstrap.Compile, which runs the JDK's compiler, and its part of the bootstrap
//	javac.jsa   the JVM's image of these and of the JDK's classes that a compiler loads
//	fre.jar     the types of package fre, for the class path
//	src         the bootstrap's sources, with which a parked compiler warms up
const (
	compilerJar     = "javac.jar"
	compilerArchive = "javac.jsa"
)

// compilerCommand runs the compiler; one argument follows. The process is short-lived, so the JVM's
// second compiler would not pay. A small initial heap halves the memory of a parked compiler.
var compilerCommand = []string{
	jdkHome + "/bin/java", "-XX:SharedArchiveFile=/function/" + compilerArchive, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms32m",
	"-jar", "/function/" + compilerJar,
}

// compilerManifest opens the packages that Channel needs, as the bootstrap's manifest does.
const compilerManifest = "Manifest-Version: 1.0\nMain-Class: fre.bootstrap.Compile\nAdd-Opens: java.base/java.io\n"

// compiler returns the compiler's directory for a JDK, a tool image's root. It is made once for
// each JDK, among the programs that build steps see read-only.
func compiler(ctx context.Context, s *image.Step, jdk string) (dir string, err error) {
	programs, err := install.Cache(s.Store, "programs")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	// An archive of classes is valid only for the JDK that made it.
	_, _ = fmt.Fprintf(sum, "%q %q %q %q\n", filepath.Dir(jdk), compilerCommand, compilerManifest, compileSource)
	sources := map[string][]byte{"fre/bootstrap/Compile.java": compileSource}
	err = fs.WalkDir(Source(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".java" {
			return err
		}
		text, err := fs.ReadFile(Source(), name)
		_, _ = fmt.Fprintf(sum, "%q %q\n", name, text)
		if strings.HasPrefix(name, "fre/") {
			sources[name] = text
		}
		return err
	})
	if err != nil {
		return "", err
	}
	dir = filepath.Join(programs, fmt.Sprintf("javac-%x", sum.Sum(nil)[:16]))
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) { // the directory appears whole
		return dir, err
	}
	s.Report(image.Progress{Step: "code", Name: "javac", Message: "prepare"})
	aside, err := os.MkdirTemp(programs, ".javac-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(aside) }()
	if err := errors.Join(os.Chmod(aside, 0o755), makeCompiler(ctx, s, jdk, sources, aside)); err != nil {
		return "", err
	}
	return dir, install.Publish(aside, dir)
}

// makeCompiler fills the directory out. sources are the sources of the jars, by path.
func makeCompiler(ctx context.Context, s *image.Step, jdk string, sources map[string][]byte, out string) error {
	b, err := install.NewBench(s)
	if err != nil {
		return err
	}
	if err := compileSources(ctx, b, jdk, sources); err != nil {
		return err
	}
	if err := packCompiler(b, out); err != nil {
		return err
	}
	err = dumpClasses(b, jdk, "/function/"+compilerJar, compilerArchive, func(args ...string) (string, error) {
		return b.Run(ctx, install.Tool{Rootfs: jdk, Program: out, Args: append([]string{jdkHome + "/bin/java"}, args...)})
	})
	if err != nil {
		return fmt.Errorf("archive of classes: %w", err)
	}
	// A step's files belong to the sandbox's user, so the archive is copied.
	made, err := b.Open("out")
	if err != nil {
		return err
	}
	defer func() { _ = made.Close() }()
	to, err := os.OpenRoot(out)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	_, err = copyJar(made, compilerArchive, to)
	return err
}

// compileSources compiles the sources of the jars to the bench's directory classes.
func compileSources(ctx context.Context, b *install.Bench, jdk string, sources map[string][]byte) error {
	args := []string{"-proc:none", "-d", "/work/classes"}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if err := errors.Join(b.Mkdir("classes", "out", path.Join("sources", path.Dir(name))), b.Write("sources/"+name, sources[name])); err != nil {
			return err
		}
		args = append(args, "/work/sources/"+name)
	}
	if err := b.Write("arguments", argumentFile(args)); err != nil {
		return err
	}
	words, err := b.Run(ctx, install.Tool{Rootfs: jdk, Args: []string{jdkHome + "/bin/javac", "-J-XX:TieredStopAtLevel=1", "@/work/arguments"}})
	if err != nil {
		return install.Failed(err, "", words)
	}
	return nil
}

// packCompiler writes the jars and the sources to the directory out.
func packCompiler(b *install.Bench, out string) error {
	classes, err := b.Open("classes")
	if err != nil {
		return err
	}
	defer func() { _ = classes.Close() }()
	types, err := fs.Glob(classes.FS(), "fre/*.class")
	if err != nil {
		return err
	}
	fre, javac := newJar(), newJar()
	for _, name := range types {
		fre.addFile(classes.FS(), name)
	}
	javac.add("META-INF/MANIFEST.MF", []byte(compilerManifest))
	javac.addAll(classes.FS(), "fre")
	if err := errors.Join(fre.close(), javac.close(), os.CopyFS(filepath.Join(out, "src"), Source())); err != nil {
		return err
	}
	return write(out, map[string][]byte{"fre.jar": fre.b.Bytes(), compilerJar: javac.b.Bytes()})
}

// argumentFile encodes arguments for javac
// (docs.oracle.com/en/java/javase/17/docs/specs/man/javac.html, command-line argument files).
func argumentFile(args []string) []byte {
	var out []byte
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`)
	for _, a := range args {
		out = fmt.Appendf(out, "\"%s\"\n", escape.Replace(a))
	}
	return out
}
