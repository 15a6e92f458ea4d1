package java

import (
	"archive/zip"
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
)

//go:embed src
var source embed.FS

// programs holds libfre.so, which `make embedded` compiles from native/native.c. Before that the
// directory has only a .gitignore.
//
//go:embed all:native/bin
var programs embed.FS

// Source returns the bootstrap's source files below their packages' directories: fre, which
// functions may use, fre/bootstrap, and warm, the function that a parked bootstrap runs; and the
// manifest of the jar. The manifest opens the JDK's packages to the bootstrap: unlike --add-opens,
// a manifest lets the JVM keep the archived module graph.
func Source() fs.FS {
	sub, err := fs.Sub(source, "src")
	if err != nil {
		panic(err) // the files are embedded
	}
	return sub
}

// library is the only file of the bootstrap that is not Java.
const library = "libfre.so"

// Library returns libfre.so, for the bootstrap's directory. No JVM can park without the library.
func Library() ([]byte, error) {
	lib, err := programs.ReadFile("native/bin/" + library)
	if err != nil {
		return nil, fmt.Errorf("fre was built without the Java bootstrap's library (run make build): %w", err)
	}
	return lib, nil
}

// Bootstrap returns the input of CompileBootstrap.
func (Runtime) Bootstrap() map[string][]byte {
	files := map[string][]byte{}
	err := fs.WalkDir(Source(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files["src/"+name], err = fs.ReadFile(Source(), name)
		return err
	})
	if err != nil {
		panic(err) // the files are embedded
	}
	if lib, err := Library(); err == nil { // otherwise CompileBootstrap reports it
		files[library] = lib
	}
	return files
}

// Pack writes the files of the bootstrap's directory, except the archive, to the directory out,
// from the compiled classes below classes/fre and classes/warm. The same classes give the same
// bytes.
func Pack(out string, classes fs.FS) error {
	lib, err := Library()
	if err != nil {
		return err
	}
	manifest, err := fs.ReadFile(source, "src/META-INF/MANIFEST.MF")
	if err != nil {
		return err
	}
	main, part := newJar(), newJar()
	main.add("META-INF/MANIFEST.MF", manifest)
	main.addAll(classes, "fre")
	part.addFile(classes, "warm/Part.class")
	class, err := fs.ReadFile(classes, "warm/Warm.class")
	if err := errors.Join(err, main.close(), part.close(), os.Mkdir(filepath.Join(out, "warm"), 0o755)); err != nil {
		return err
	}
	return write(out, map[string][]byte{library: lib, "fre.jar": main.b.Bytes(), "warm/warm.jar": part.b.Bytes(), "warm/Warm.class": class})
}

// write writes files to the directory out. The archive of classes is valid only for jars with this
// time stamp.
func write(out string, files map[string][]byte) error {
	for name, data := range files {
		name = filepath.Join(out, name)
		if err := errors.Join(os.WriteFile(name, data, 0o644), os.Chtimes(name, install.Time, install.Time)); err != nil {
			return err
		}
	}
	return nil
}

// jar builds a jar. Entries are not compressed: a JVM reads them faster.
type jar struct {
	b   bytes.Buffer
	z   *zip.Writer
	err error
}

func newJar() *jar {
	j := &jar{}
	j.z = zip.NewWriter(&j.b)
	return j
}

func (j *jar) add(name string, data []byte) {
	f, err := j.z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store, Modified: install.Time})
	if err == nil {
		_, err = f.Write(data)
	}
	j.err = errors.Join(j.err, err)
}

// addAll adds all classes below a directory.
func (j *jar) addAll(classes fs.FS, dir string) {
	err := fs.WalkDir(classes, dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			j.addFile(classes, name)
		}
		return err
	})
	j.err = errors.Join(j.err, err)
}

// addFile adds a class; the directory warm is the unnamed package.
func (j *jar) addFile(classes fs.FS, name string) {
	data, err := fs.ReadFile(classes, name)
	j.err = errors.Join(j.err, err)
	j.add(strings.TrimPrefix(name, "warm/"), data)
}

func (j *jar) close() error { return errors.Join(j.err, j.z.Close()) }

// CompileBootstrap compiles the bootstrap by a JDK, and has the base's own JVM make the archive of
// classes: an archive is valid only for the JVM that made it.
func (r Runtime) CompileBootstrap(ctx context.Context, s *image.Step) (store.Part, error) {
	jdk, err := s.Tools(ctx, "java", r.Tools...)
	if err != nil {
		return store.Part{}, err
	}
	b, err := install.NewBench(s)
	if err != nil {
		return store.Part{}, err
	}
	if err := errors.Join(os.CopyFS(filepath.Join(b.Dir, "src"), Source()), b.Mkdir("classes", "classes/warm", "out", "fre")); err != nil {
		return store.Part{}, err
	}
	sources := map[string][]string{} // by directory
	for name := range r.Bootstrap() {
		if dir := path.Dir(name); strings.HasSuffix(name, ".java") {
			sources[dir] = append(sources[dir], "/work/"+name)
		}
	}
	if err := compileBootstrap(ctx, b, jdk, "/work/classes", slices.Concat(sources["src/fre"], sources["src/fre/bootstrap"])); err != nil {
		return store.Part{}, err
	}
	if err := compileBootstrap(ctx, b, jdk, "/work/classes/warm", sources["src/warm"]); err != nil {
		return store.Part{}, err
	}
	classes, err := b.Open("classes")
	if err != nil {
		return store.Part{}, err
	}
	defer func() { _ = classes.Close() }()
	if err := Pack(filepath.Join(b.Dir, "fre"), classes.FS()); err != nil {
		return store.Part{}, err
	}
	if err := dump(ctx, s, b); err != nil {
		return store.Part{}, fmt.Errorf("archive of classes: %w", err)
	}
	tree, err := b.Import(ctx, "fre", func(string) bool { return false })
	return store.Part{Tree: tree}, err
}

// compileBootstrap compiles files to the directory out of the bench, beside the classes compiled
// before.
func compileBootstrap(ctx context.Context, b *install.Bench, jdk, out string, files []string) error {
	args := append([]string{jdkHome + "/bin/javac", "-J-XX:TieredStopAtLevel=1", "-Xlint:all,-path", "-proc:none", "--release", "17", "-cp", "/work/classes", "-d", out}, files...)
	words, err := b.Run(ctx, install.Tool{Rootfs: jdk, Args: args})
	if err != nil {
		return fmt.Errorf("compile: %w", install.Failed(err, "", words))
	}
	return nil
}

// dump makes the archive of the classes that a start loads: the JDK's own list and the classes of
// the bootstrap's start.
func dump(ctx context.Context, s *image.Step, b *install.Bench) error {
	program, err := s.Program("java")
	if err != nil {
		return err
	}
	err = dumpClasses(b, s.Rootfs, "/opt/fre/fre.jar", archive, func(args ...string) (string, error) {
		var words bytes.Buffer
		err := s.Run.Run(ctx, image.Command{
			Rootfs: s.Rootfs, Args: append([]string{program}, args...), Env: []string{"HOME=/work", "LANG=C.UTF-8"}, Dir: "/work",
			Binds: []image.Bind{
				{Source: b.Dir, Target: "/work", Writable: true},
				{Source: filepath.Join(b.Dir, "fre"), Target: "/opt/fre"},
			},
			Stdout: &words, Stderr: &words,
		})
		return words.String(), err
	})
	if err != nil {
		return err
	}
	return os.Rename(filepath.Join(b.Dir, "out", archive), filepath.Join(b.Dir, "fre", archive))
}

// dumpClasses writes the archive of the classes that a start of a JVM in rootfs loads to the bench,
// as out/NAME: the JDK's own list, and the classes of a training run of the program jar
// (fre.train). java runs the JVM at the bench. The jar has to be at its final path.
func dumpClasses(b *install.Bench, rootfs, jar, name string, java func(args ...string) (words string, err error)) error {
	run := func(args ...string) (string, error) {
		words, err := java(args...)
		return words, install.Failed(err, "", words)
	}
	settings, err := run("-XshowSettings:properties", "-version")
	if err != nil {
		return err
	}
	expected, err := classList(rootfs, settings)
	if err != nil {
		return err
	}
	if _, err := run("-Xshare:off", "-XX:DumpLoadedClassList=/work/out/classes", "-Dfre.train=true", "-jar", jar); err != nil {
		return err
	}
	ours, err := b.Read("out/classes")
	if err != nil {
		return err
	}
	if err := b.Write("classes.list", merge(expected, ours)); err != nil {
		return err
	}
	// Only G1 can archive objects; other collectors can read them.
	_, err = run("-Xshare:dump", "-XX:+UseG1GC", "-Xmx256m", "-XX:SharedClassListFile=/work/classes.list", "-XX:SharedArchiveFile=/work/out/"+name, "-cp", jar)
	return err
}

var homePattern = regexp.MustCompile(`(?m)^\s*java\.home = /(.+)$`)

// classList is the JDK's own list of the classes that a start loads, nil without one; settings is
// the JVM's output of its properties.
func classList(rootfs, settings string) ([]byte, error) {
	m := homePattern.FindStringSubmatch(settings)
	if m == nil {
		return nil, nil
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	name := path.Join(m[1], "lib/classlist")
	if info, err := root.Stat(name); err != nil || !info.Mode().IsRegular() || info.Size() > maxClassList {
		return nil, nil
	}
	return root.ReadFile(name)
}

const maxClassList = 16 << 20 // Java 21's list has 90 KB

// merge returns the lines of lists, each once.
func merge(lists ...[]byte) []byte {
	var out []byte
	seen := map[string]bool{}
	for _, list := range lists {
		for line := range bytes.Lines(list) {
			if line = bytes.TrimRight(line, "\n"); !seen[string(line)] {
				seen[string(line)] = true
				out = append(append(out, line...), '\n')
			}
		}
	}
	return out
}
