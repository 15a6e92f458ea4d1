// Package java builds and starts functions written for the JVM: a bootstrap in
// plain Java that speaks the channel, compiled in a build step, and jars
// resolved by Maven.
package java

import (
	"fmt"
	"regexp"

	"github.com/fre-engine/fre/image"
)

// Runtime is the runtime "java". It implements image.Project and image.Compiler.
type Runtime struct {
	Tools []string // Debian packages to add to the base "java" for a JDK
}

// Untraced implements [image.Traced]: the JVM, which holds only what the base's
// maker has chosen, and loads its own libraries when they are asked for: in FRE's
// base, and where Debian's packages, openjdk's images and Temurin's have it.
func (Runtime) Untraced() []string {
	return []string{home, "usr/lib/jvm", "usr/local/openjdk-*", "opt/java/openjdk"}
}

// Name is "java".
func (Runtime) Name() string { return "java" }

// Bases is the one that has a JVM, at home.
func (Runtime) Bases() []string { return []string{"java"} }

// Interpreter is what a base has to have: the bootstrap is compiled for Java 17.
// Before its version a JVM says which variables it has its options from.
func (Runtime) Interpreter() image.Interpreter {
	return image.Interpreter{Name: "java", Version: []string{"-version"}, Before: " version \"", Least: "17"}
}

// handlerPattern is Class.method, the class with its packages.
var handlerPattern = regexp.MustCompile(`^([\pL_$][\pL\pN_$]*\.)+[\pL_$][\pL\pN_$]*$`)

// Command runs the bootstrap.
func (Runtime) Command(t *image.Template) (args, env []string, err error) {
	if !handlerPattern.MatchString(t.Handler) {
		return nil, nil, &image.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not Class.method: write com.example.Handler.handle for the method handle of com.example.Handler", t.Handler)}
	}
	return append(command(t), t.Handler), append(environment(t),
		fmt.Sprintf("FRE_CONCURRENCY=%d", max(1, t.Instances.Concurrency))), nil
}

// command starts a JVM that goes by the sandbox's limits, not the host's, and has
// the classes of its start in an archive that all sandboxes share.
func command(t *image.Template) []string {
	args := append([]string{"/" + home + "/bin/java", "-XX:SharedArchiveFile=/opt/fre/" + archive}, options(t)...)
	return append(args, "-jar", "/opt/fre/fre.jar")
}

// options are the JVM's.
func options(t *image.Template) []string {
	args := []string{
		"-XX:-UsePerfData", "-XX:-UseContainerSupport", "-XX:+UseSerialGC",
		fmt.Sprintf("-XX:ActiveProcessorCount=%d", max(1, (t.Resources.CPUMillis+999)/1000)),
		"-Duser.dir=/function", // a parked one is elsewhere when it reads that
	}
	if t.Instances.Isolation == image.IsolationEvent {
		args = append(args, "-XX:TieredStopAtLevel=1") // no event lives to see the second compiler's code
	}
	if !heapSize.MatchString(t.Env["JAVA_TOOL_OPTIONS"]) && !heapSize.MatchString(t.Env["JDK_JAVA_OPTIONS"]) {
		args = append(args, fmt.Sprintf("-Xmx%dm", heapMiB(t.Resources.MemoryBytes)))
	}
	return args
}

func environment(t *image.Template) []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8", "FRE_CHANNEL=3"}
	if !t.ForeignBase() { // which has another, and may say where
		env = append(env, "JAVA_HOME=/"+home)
	}
	return env
}

// Shell is the bootstrap without a handler; functions with different limits of
// memory or CPU do not share it. The JVM reads its options at its start.
func (Runtime) Shell(t *image.Template, env []string) *image.Shell {
	s := &image.Shell{Args: command(t), Env: environment(t), Mounts: []string{"/function", "/" + jars}}
	if !s.Fits(env, []string{"JAVA_", "JDK_JAVA_OPTIONS", "_JAVA_"}, nil) {
		return nil
	}
	return s
}

// heapSize matches what a template says itself about the heap's limit.
var heapSize = regexp.MustCompile(`-Xmx|MaxHeapSize|MaxRAM`)

// heapMiB is the limit of the heap in a sandbox with so much memory: three
// quarters, and 64 MiB left for classes, code and threads, but no less than half.
func heapMiB(memory int64) int64 {
	return max(memory/2, min(memory/4*3, memory-64<<20)) >> 20
}

// jars is where packages are in an image.
const jars = "opt/java"
