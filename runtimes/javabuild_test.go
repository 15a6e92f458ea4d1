package runtimes_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/java"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// TestBuildJava builds a Java function from the host's archive: the JVM of the base, the bootstrap
// with the archive of classes, and jars.
func TestBuildJava(t *testing.T) {
	w := newWorkshop(t)
	t.Run("packages", func(t *testing.T) { buildMaven(t, w) })
	t.Run("project", func(t *testing.T) { buildProject(t, w) })
	t.Run("jar", func(t *testing.T) { buildJar(t, w) })
	t.Run("complete", func(t *testing.T) { buildComplete(t, w) })
	// Source is compiled; other files are copied.
	build := func(files map[string]string) (*store.Image, error) {
		dir := t.TempDir()
		files["fret.yaml"] = "id: f\nbase: java\nhandler: com.example.Greeter.handle\n"
		for name, text := range files {
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = root.Close() }()
		w.runner.runs = nil
		img, _, err := w.Build(t.Context(), root, nil)
		return img, err
	}
	files := map[string]string{
		"com/example/Greeter.java": "package com.example;\npublic class Greeter {\n    public String handle(fre.Event event) { return Words.HELLO + event.text(); }\n}\n",
		"com/example/\"\\ x.java":  "package com.example;\ninterface Words { String HELLO = \"gr\u00fc\u00dfe \"; }\n",
		"com/example/words.txt":    "x",
	}
	var step image.Command
	w.runner.look = func(c image.Command) {
		if c.Parks {
			step = c
		}
	}
	defer func() { w.runner.look = nil }()
	img, err := build(files)
	if err != nil {
		t.Fatal(err)
	}
	if img.Size > 155e6 {
		t.Errorf("the image has %d bytes, want at most 155 MB", img.Size)
	}
	for name, want := range map[string]bool{"Greeter.class": true, "Words.class": true, "words.txt": true, "Greeter.java": false} {
		_, err := os.Stat(filepath.Join(w.Store.Rootfs(img.Digest), "function/com/example", name))
		if got := err == nil; got != want {
			t.Errorf("%s in the image: %v, want %v", name, got, want)
		}
	}
	config, err := image.ConfigOf(img)
	if err != nil {
		t.Fatal(err)
	}
	// The archive of classes is in use: with -Xshare:on the JVM starts only with the archive.
	args := append([]string{config.Args[0], "-Xshare:on", "-Xlog:class+load", "-Dfre.train=true"}, config.Args[1:]...)
	out := w.inside(t, img, config.Env, args...)
	for _, class := range []string{"java.net.URLClassLoader", "fre.bootstrap.Main", "fre.Json"} {
		if !strings.Contains(out, class+" source: shared objects file") {
			t.Errorf("%s is not of the archive", class)
		}
	}

	if _, err := build(files); err != nil || len(w.runner.runs) != 0 {
		t.Errorf("the same again: %v, ran %q", err, w.runner.runs)
	}

	// The compiler's archive is in use, too, and no build can write to it.
	compile := image.Command{Rootfs: step.Rootfs}
	compile.Args = slices.Concat(step.Args[:1], []string{"-Xshare:on", "-Xlog:class+load", "-Dfre.train=true"}, step.Args[1:len(step.Args)-1])
	for _, b := range step.Binds {
		if b.Target == "/function" {
			compile.Binds = append(compile.Binds, image.Bind{Source: b.Source, Target: b.Target})
			if b.Writable {
				t.Error("the compiler's directory can be written to")
			}
		}
	}
	var log bytes.Buffer
	compile.Stdout = &log
	if err := w.runner.Run(t.Context(), compile); err != nil {
		t.Error(err)
	}
	for _, class := range []string{"com.sun.tools.javac.main.JavaCompiler", "com.sun.tools.javac.comp.Attr", "fre.bootstrap.Compile"} {
		if !strings.Contains(log.String(), class+" source: shared objects file") {
			t.Errorf("%s is not of the archive", class)
		}
	}

	// A parked compiler gives the same output and the same errors for the same source.
	files["com/example/words.txt"] = "y"
	w.parkedCompiler(t)
	parked, err := build(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Greeter.class", "Words.class"} {
		var classes [2]string
		for i, of := range []*store.Image{img, parked} {
			class, err := os.ReadFile(filepath.Join(w.Store.Rootfs(of.Digest), "function/com/example", name))
			if err != nil {
				t.Fatal(err)
			}
			classes[i] = string(class)
		}
		if diff := cmp.Diff(classes[0], classes[1]); diff != "" {
			t.Errorf("%s of a parked compiler: %s", name, diff)
		}
	}
	w.parkedCompiler(t)
	files["com/example/Greeter.java"] = "package com.example;\nclass Greeter {\n    int handle() { return none; }\n}\n"
	_, err = build(files)
	var errs template.Errors
	if !errors.As(err, &errs) || !strings.Contains(err.Error(), "com/example/Greeter.java:3: error: cannot find symbol") {
		t.Errorf("got %v", err)
	}
	t.Log(err)
}

// parkedCompiler waits until a compiler is parked.
func (w *workshop) parkedCompiler(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(2 * time.Minute); ; {
		families, err := w.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "fre_parked_interpreters" && m.GetLabel()[0].GetValue() == "build:java" && m.GetGauge().GetValue() > 0 {
					return
				}
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("no compiler was parked")
		}
	}
}

func buildMaven(t *testing.T, w *workshop) {
	t.Helper()
	const fret = "id: f\nbase: java\nhandler: H.h\npackages:\n  maven: [%s]\n"
	const requests = `"com.fasterxml.jackson.core:jackson-databind", "com.fasterxml.jackson:jackson-bom:2.17.2@bom"`
	img, lock, err := w.build(t, fmt.Sprintf(fret, requests), "H.class", nil)
	if err != nil {
		t.Fatal(err)
	}
	noHosts(t, lock)
	want := []string{
		"com.fasterxml.jackson.core:jackson-annotations 2.17.2 at opt/java", "com.fasterxml.jackson.core:jackson-core 2.17.2 at opt/java",
		"com.fasterxml.jackson.core:jackson-databind 2.17.2 at opt/java",
	}
	if diff := cmp.Diff(want, partNames(img, "maven")); diff != "" {
		t.Error(diff)
	}
	again, _, err := w.build(t, fmt.Sprintf(fret, requests), "H.class", lock)
	if err != nil || len(w.runner.runs) != 0 {
		t.Fatalf("with the lock: %v, ran %q", err, w.runner.runs)
	}
	hashes := map[string]string{}
	for _, p := range section[*java.Locked](lock, "maven").Packages {
		hashes["opt/java "+p.Name] = p.Hashes[0]
	}
	for _, img := range []*store.Image{img, again} {
		if diff := cmp.Diff(hashes, hashesOf(img, "maven")); diff != "" {
			t.Error(diff)
		}
	}
	bad := *section[*java.Locked](lock, "maven")
	bad.Packages = slices.Clone(bad.Packages)
	bad.Packages[1].Hashes = []string{"sha256:" + strings.Repeat("0", 64)}
	_, _, err = w.build(t, fmt.Sprintf(fret, requests), "H.class", lockOf("maven", &bad))
	var e *image.PackageError
	if !errors.As(err, &e) || e.Cause != image.PackageChanged || !strings.Contains(err.Error(), bad.Packages[1].Name+" 2.17.2: hash mismatch") {
		t.Errorf("got %v", err)
	}
	_, _, err = w.build(t, fmt.Sprintf(fret, "com.fasterxml.jackson.core:no-such-package-of-fre:1.0"), "H.class", nil)
	var errs template.Errors
	if !errors.As(err, &errs) || !strings.Contains(err.Error(), "no-such-package-of-fre") || !strings.Contains(err.Error(), "fret.yaml:5:") {
		t.Errorf("got %v", err)
	}
	t.Log(err)
}

// buildProject builds a Maven project. Its dependencies are locked parts, compile-only dependencies
// are in no image, annotation processors run, and tests are left out.
func buildProject(t *testing.T, w *workshop) {
	t.Helper()
	const fret = "id: f\nbase: java\nhandler: com.example.App.handle\n"
	const pom = `<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
		<groupId>com.example</groupId><artifactId>app</artifactId><version>1</version>
		<properties><maven.compiler.release>17</maven.compiler.release><jackson>2.17.2</jackson></properties>
		<dependencyManagement><dependencies><dependency><groupId>com.fasterxml.jackson</groupId><artifactId>jackson-bom</artifactId><version>${jackson}</version><type>pom</type><scope>import</scope></dependency></dependencies></dependencyManagement>
		<dependencies>
			<dependency><groupId>com.fasterxml.jackson.core</groupId><artifactId>jackson-databind</artifactId></dependency>
			<dependency><groupId>org.projectlombok</groupId><artifactId>lombok</artifactId><version>1.18.34</version><scope>provided</scope></dependency>
			<dependency><groupId>org.junit.jupiter</groupId><artifactId>no-such-artifact-of-fre</artifactId><version>1</version><scope>test</scope></dependency>
		</dependencies>%s</project>`
	files := map[string]string{
		"fret.yaml": fret,
		"pom.xml":   fmt.Sprintf(pom, ""),
		"src/main/java/com/example/App.java": `package com.example;
			public class App {
				@lombok.Value static class Greeting { String hello; }
				public String handle(String name) throws Exception {
					return new com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(new Greeting(name));
				}
				public static void main(String[] args) throws Exception { System.out.println(new App().handle(args[0])); }
			}`,
		"src/main/java/module-info.java":          "module com.example { requires com.fasterxml.jackson.databind; }",
		"src/main/resources/com/example/note.txt": "a note",
		"src/test/java/com/example/AppTest.java":  "import org.junit.jupiter.api.Test;",
		"README.md":                               "",
	}
	img, lock, err := w.buildFiles(t, files, nil)
	if err != nil {
		t.Fatal(err)
	}
	noHosts(t, lock)
	if len(section[*java.Locked](lock, "maven").Packages) != 3 || len(section[*java.Locked](lock, "maven").Provided) != 1 || section[*java.Locked](lock, "maven").Provided[0].Name != "org.projectlombok:lombok" {
		t.Errorf("locked %+v", section[*java.Locked](lock, "maven"))
	}
	if got := partNames(img, "maven"); len(got) != 3 {
		t.Errorf("the image has %q", got)
	}
	got := w.inside(t, img, nil, "/usr/bin/java", "-cp", "/function:/opt/java/*", "com.example.App", "Ada")
	if got != `{"hello":"Ada"}` {
		t.Errorf("got %s", got)
	}
	for name, want := range map[string]bool{"com/example/App.class": true, "com/example/note.txt": true, "pom.xml": false, "README.md": false, "src": false} {
		if _, err := os.Stat(filepath.Join(w.Store.Rootfs(img.Digest), "function", name)); (err == nil) != want {
			t.Errorf("%s in the image: %v, want %v", name, err == nil, want)
		}
	}

	// With the lock the build resolves nothing; --locked compares the lock with the pom.
	delete(files, "README.md")
	files["src/main/resources/com/example/note.txt"] = "another note " + t.TempDir()
	w.options = image.BuildOptions{Locked: true, Offline: true}
	defer func() { w.options = image.BuildOptions{} }()
	if _, _, err := w.buildFiles(t, files, lock); err != nil || !slices.Equal(w.runner.runs, []string{"java javac.jsa"}) {
		t.Errorf("with the lock: %v, ran %q", err, w.runner.runs)
	}
	files["pom.xml"] = strings.ReplaceAll(files["pom.xml"], "2.17.2", "2.17.1")
	var drift *image.LockError
	if _, _, err := w.buildFiles(t, files, lock); !errors.As(err, &drift) {
		t.Errorf("another pom: got %v", err)
	}

	// An archive of the project is the same project, and the lock matches.
	w.options = image.BuildOptions{}
	files["pom.xml"] = fmt.Sprintf(pom, "")
	archived := map[string]string{"fret.yaml": fret + "code: {archive: app.zip}\n", "app.zip": zipped(t, files)}
	img, _, err = w.buildFiles(t, archived, lock)
	if err != nil {
		t.Fatal(err)
	}
	if got := partNames(img, "maven"); len(got) != 3 {
		t.Errorf("out of an archive: %q", got)
	}

	files["pom.xml"] = fmt.Sprintf(pom, `<build><plugins><plugin><artifactId>build-helper-maven-plugin</artifactId><executions><execution><goals><goal>add-source</goal></goals></execution></executions></plugin></plugins></build>`)
	_, _, err = w.buildFiles(t, files, nil)
	var errs template.Errors
	if !errors.As(err, &errs) || !strings.Contains(err.Error(), "build-helper-maven-plugin (add-source)") || !strings.Contains(err.Error(), "mvn package") {
		t.Errorf("got %v", err)
	}
	t.Log(err)
}

// buildJar: a jar is used unchanged; an invalid jar is refused.
func buildJar(t *testing.T, w *workshop) {
	t.Helper()
	build := func(handler, jar string) error {
		_, _, err := w.buildFiles(t, map[string]string{"fret.yaml": "id: f\nbase: java\nhandler: " + handler + "\ncode: {path: app.jar}\n", "app.jar": jar}, nil)
		return err
	}
	jar := zipped(t, map[string]string{"com/example/A.class": "x", "META-INF/MANIFEST.MF": ""})
	if err := build("com.example.A.handle", jar); err != nil {
		t.Error(err)
	}
	for name, test := range map[string]struct{ handler, jar, err string }{
		"text":          {"com.example.A.handle", "hello", "app.jar in the code is not a valid jar"},
		"cut":           {"com.example.A.handle", jar[:len(jar)-10], "app.jar in the code is not a valid jar"},
		"other class":   {"com.example.B.handle", jar, "no com/example/B.class in the code or jars"},
		"Spring Boot's": {"A.handle", zipped(t, map[string]string{"BOOT-INF/classes/A.class": ""}), ".jar.original"},
	} {
		if err := build(test.handler, test.jar); err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// zipped is a zip archive of files.
func zipped(t *testing.T, files map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := z.Create(name)
		if err == nil {
			_, err = f.Write([]byte(files[name]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
