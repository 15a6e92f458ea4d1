// Package java builds and starts functions written for the JVM: a bootstrap in plain Java that
// speaks the channel, compiled in a build step, and jars resolved by Maven.
package java

import (
	"fmt"
	"regexp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// Runtime is the runtime "java". It implements image.Project and image.Compiler.
type Runtime struct {
	Tools []string // Debian packages to add to the base "java" for a JDK
}

// Untraced implements [image.Traced]: the JVM. It holds only modules that the base's maker chose,
// and loads its own libraries on demand. The paths are FRE's base, Debian's packages, openjdk's
// images and Temurin's.
func (Runtime) Untraced() []string {
	return []string{home, "usr/lib/jvm", "usr/local/openjdk-*", "opt/java/openjdk"}
}

// Name is "java".
func (Runtime) Name() string { return "java" }

// Bases is FRE's base with a JVM, at home.
func (Runtime) Bases() []string { return []string{"java"} }

// Interpreter is the requirement on a base: the bootstrap is compiled for Java 17. A JVM prints the
// names of its option variables before its version.
func (Runtime) Interpreter() image.Interpreter {
	return image.Interpreter{Name: "java", Version: []string{"-version"}, Before: " version \"", Least: "17"}
}

// handlerPattern is Class.method, the class with its packages.
var handlerPattern = regexp.MustCompile(`^([\pL_$][\pL\pN_$]*\.)+[\pL_$][\pL\pN_$]*$`)

// Command runs the bootstrap.
func (Runtime) Command(t *template.Template) (args, env []string, err error) {
	if !handlerPattern.MatchString(t.Handler) {
		return nil, nil, &template.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not Class.method: write com.example.Handler.handle for the method handle of com.example.Handler", t.Handler)}
	}
	return append(command(t), t.Handler), append(environment(t),
		fmt.Sprintf("FRE_CONCURRENCY=%d", max(1, t.Instances.Concurrency))), nil
}

// command starts a JVM that follows the sandbox's limits, not the host's. It loads the classes of
// its start from an archive that all sandboxes share.
func command(t *template.Template) []string {
	args := append([]string{"/" + home + "/bin/java", "-XX:SharedArchiveFile=/opt/fre/" + archive}, options(t)...)
	return append(args, "-jar", "/opt/fre/fre.jar")
}

// options are the JVM's options.
func options(t *template.Template) []string {
	args := []string{
		"-XX:-UsePerfData", "-XX:-UseContainerSupport", "-XX:+UseSerialGC",
		fmt.Sprintf("-XX:ActiveProcessorCount=%d", max(1, (t.Resources.CPUMillis+999)/1000)),
		"-Duser.dir=/function", // a parked JVM starts in another directory
	}
	if t.Instances.Isolation == template.IsolationEvent {
		args = append(args, "-XX:TieredStopAtLevel=1") // no event lives long enough for the second compiler
	}
	if !heapSize.MatchString(t.Env["JAVA_TOOL_OPTIONS"]) && !heapSize.MatchString(t.Env["JDK_JAVA_OPTIONS"]) {
		args = append(args, fmt.Sprintf("-Xmx%dm", heapMiB(t.Resources.MemoryBytes)))
	}
	return args
}

func environment(t *template.Template) []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8", "FRE_CHANNEL=3"}
	if !t.ForeignBase() { // a foreign base has another JVM and may set the variable
		env = append(env, "JAVA_HOME=/"+home)
	}
	return env
}

// Parked is the bootstrap without a handler. Functions with different limits of memory or CPU do
// not share it, because a JVM reads the options only at the start.
func (Runtime) Parked(t *template.Template, env []string) *image.ParkedInterpreter {
	s := &image.ParkedInterpreter{Args: command(t), Env: environment(t), Mounts: []string{"/function", "/" + jars}}
	if !s.Fits(env, []string{"JAVA_", "JDK_JAVA_OPTIONS", "_JAVA_"}, nil) {
		return nil
	}
	return s
}

// heapSize matches a heap limit of the template's own.
var heapSize = regexp.MustCompile(`-Xmx|MaxHeapSize|MaxRAM`)

// heapMiB is the heap's limit in a sandbox with memory bytes: three quarters, with 64 MiB left for
// classes, code and threads, but at least half.
func heapMiB(memory int64) int64 {
	return max(memory/2, min(memory/4*3, memory-64<<20)) >> 20
}

// jars is the directory of packages in an image.
const jars = "opt/java"

// Files of the bootstrap's directory, besides libfre.so:
//
//	fre.jar          fre and fre.bootstrap
//	fre.jsa          the JVM's image of these and of the JDK's classes that a start loads
//	warm/Warm.class
//	warm/warm.jar    Part.class
const archive = "fre.jsa"
