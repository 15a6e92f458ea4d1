package runtimes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/runtimes/java"
)

// javaDir holds the compiled bootstrap (fre/) and the compiled testdata/java (functions/); it is ""
// until a test needs it. removeJava, which TestMain calls, removes the directory in the process
// that made it.
var (
	javaDir    string
	removeJava = func() {}
)

// The child processes of go test -fuzz, which are killed, use their parent's directory.
const javaDirVariable = "FRE_TEST_JAVA_DIR"

var compileJava = sync.OnceValue(func() error {
	if javaDir = os.Getenv(javaDirVariable); javaDir != "" {
		return nil
	}
	dir, err := os.MkdirTemp("", "fre-java-")
	if err != nil {
		return err
	}
	javaDir, removeJava = dir, func() { _ = os.RemoveAll(dir) }
	if err := os.CopyFS(filepath.Join(dir, "src"), java.Source()); err != nil {
		return err
	}
	compile := func(out string, patterns ...string) error {
		args := []string{"--release", "17", "-Xlint:all,-path", "-Werror", "-cp", filepath.Join(dir, "classes"), "-d", filepath.Join(dir, out)}
		for _, p := range patterns {
			sources, err := filepath.Glob(p)
			if err != nil {
				return err
			}
			args = append(args, sources...)
		}
		words, err := exec.Command("javac", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("javac: %w\n%s", err, words)
		}
		return nil
	}
	if err := compile("classes", filepath.Join(dir, "src/fre/*.java"), filepath.Join(dir, "src/fre/bootstrap/*.java")); err != nil {
		return err
	}
	if err := compile("classes/warm", filepath.Join(dir, "src/warm/*.java")); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, "fre"), 0o755); err != nil {
		return err
	}
	if err := java.Pack(filepath.Join(dir, "fre"), os.DirFS(filepath.Join(dir, "classes"))); err != nil {
		return err
	}
	jar := filepath.Join(dir, "fre/fre.jar")
	words, err := exec.Command("java", "-XX:ArchiveClassesAtExit="+filepath.Join(dir, "fre/fre.jsa"), "-XX:+UseSerialGC", "-Dfre.train=true", "-Dfre.warm=3", "-jar", jar).CombinedOutput()
	if err != nil {
		return fmt.Errorf("archive of classes: %w\n%s", err, words)
	}
	if err := compile("functions", "testdata/java/*.java"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "functions/syntax.class"), []byte("no class"), 0o644); err != nil {
		return err
	}
	return os.Setenv(javaDirVariable, dir)
})

// javaLanguage runs the bootstrap much as java.Runtime does, with a heap small enough to fill.
func javaLanguage(t testing.TB, jvm string) language {
	t.Helper()
	if err := compileJava(); err != nil {
		t.Fatal(err)
	}
	return language{name: "java", command: func(string) ([]string, []string) {
		return []string{
			jvm, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ActiveProcessorCount=3", "-Xmx64m",
			"-Dfre.warm=1", "-XX:SharedArchiveFile=" + filepath.Join(javaDir, "fre/fre.jsa"),
			"-jar", filepath.Join(javaDir, "fre/fre.jar"),
		}, []string{"FRE_FUNCTION_DIR=" + filepath.Join(javaDir, "functions")}
	}, errType: "java.lang.IllegalStateException", refusal: "java.lang.IllegalArgumentException", typeError: "java.lang.IllegalArgumentException"}
}

// A cancelled event interrupts its handler.
func TestJavaInterrupted(t *testing.T) {
	for _, l := range languages(t) {
		if l.name != "java" || l.parked {
			continue
		}
		i := l.start(t, "all.waits")
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("client gone")
		finished := make(chan struct{})
		go func() {
			<-i.logs
			cancel(cause)
		}()
		if _, err := i.Invoke(ctx, &channel.Invocation{Finished: func() { close(finished) }}); !errors.Is(err, cause) {
			t.Errorf("got %v, want the cause", err)
		}
		<-finished
		if got := <-i.logs; !strings.HasSuffix(got, "interrupted, cancelled true") {
			t.Errorf("got %q", got)
		}
	}
}

// FuzzJavaJSON: The bootstrap's codec accepts the same JSON as Go's, with the same meaning.
func FuzzJavaJSON(f *testing.F) {
	for _, s := range []string{
		`null`, `{}`, `[]`, ` {"a": [1, -2.5e3, true, false, null, "\u00fc\n\\\/\ud83d\ude00"]} `, `"\ud800"`, `01`, `1.`, `.5`, `-`, `+1`,
		`1e400`, `12345678901234567890`, `{"a":1,}`, `[1,]`, `{"a" 1}`, `"a` + "\n" + `b"`, `"\x"`, `tru`, `nulll`, `[` + strings.Repeat("[", 600),
		`"` + "\x7f" + `"`, `{"a":1,"a":2}`, `-0`, `-0.0`, `1E+2`, "\ufeff1", `"\u12"`, "\"\x00\"", strings.Repeat("9", 1001),
	} {
		f.Add(s)
	}
	var i *instance
	for _, l := range languages(f) {
		if l.name == "java" && !l.parked {
			i = l.start(f, "all.json_echo")
		}
	}
	if i == nil {
		f.Skip("no JDK is installed")
	}
	f.Fuzz(func(t *testing.T, s string) {
		if s == "" || len(s) > 200_000 || !utf8.ValidString(s) {
			return // the empty text is an empty event, not JSON; Go accepts invalid UTF-8
		}
		got, err := i.invoke(t.Context(), s)
		var failure *channel.Failure
		if err != nil && !errors.As(err, &failure) {
			t.Fatal(err)
		}
		var want any
		goErr := json.Unmarshal([]byte(s), &want)
		switch {
		case failure != nil && goErr != nil:
		case failure != nil:
			if !strings.Contains(failure.Message, "nested deeper") && !strings.Contains(failure.Message, "a number of more than") {
				t.Errorf("%q: refused: %s", s, failure.Message)
			}
		case goErr != nil:
			if !strings.Contains(goErr.Error(), "cannot unmarshal number") {
				t.Errorf("%q: taken as %s: %v", s, got.Body, goErr)
			}
		default:
			var v any
			if err := json.Unmarshal([]byte(got.Body), &v); err != nil {
				t.Fatalf("%q: %v in %s", s, err, got.Body)
			}
			if diff := cmp.Diff(want, v); diff != "" {
				t.Errorf("%q: %s", s, diff)
			}
		}
	})
}
