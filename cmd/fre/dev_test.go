package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/client"
)

// devRun is a fre dev under way.
type devRun struct {
	t     *testing.T
	lines chan string
	ended chan int
}

func startDev(t *testing.T, args ...string) *devRun {
	t.Helper()
	r, w := io.Pipe()
	d := &devRun{t: t, lines: make(chan string), ended: make(chan int, 1)}
	go func() {
		d.ended <- execute(append([]string{"dev"}, args...), strings.NewReader(""), w, w)
		_ = w.Close()
	}()
	go func() {
		defer close(d.lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			d.lines <- s.Text()
		}
	}()
	return d
}

// sees waits for a line with a prefix; no line before may have a prefix of not.
func (d *devRun) sees(prefix string, not ...string) {
	d.t.Helper()
	late := time.NewTimer(5 * time.Minute)
	defer late.Stop()
	var before []string
	for {
		select {
		case line, ok := <-d.lines:
			if !ok {
				d.t.Fatalf("it ended before it said %q, and said %q", prefix, before)
			}
			if strings.HasPrefix(line, prefix) {
				return
			}
			if before = append(before, line); slices.ContainsFunc(not, func(n string) bool { return strings.HasPrefix(line, n) }) {
				d.t.Fatalf("it said %q before %q", line, prefix)
			}
		case <-late.C:
			d.t.Fatalf("it never said %q, but %q", prefix, before)
		}
	}
}

// interrupt sends Ctrl-C and requires exit status 0.
func (d *devRun) interrupt() {
	d.t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		d.t.Fatal(err)
	}
	for range d.lines { // until the output ends
	}
	if code := <-d.ended; code != 0 {
		d.t.Errorf("after Ctrl-C: exit status %d, want 0", code)
	}
}

// fre dev deploys and tests again after a change to a template, ignores changes to ignored files,
// and survives mistakes.
func TestDev(t *testing.T) {
	socket := serveForTest(t)
	t.Setenv("FRE_SOCKET", socket)
	dir := filepath.Join(t.TempDir(), "hello")
	if _, err := scaffoldInto(dir, "python", "hello"); err != nil {
		t.Fatal(err)
	}
	// write moves a file, with its new directories, into place as one change. In two steps fre dev
	// could see two changes.
	write := func(name, text string) {
		t.Helper()
		aside := t.TempDir()
		path := filepath.Join(aside, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		top := name
		for d := filepath.Dir(name); d != "."; d = filepath.Dir(d) {
			if _, err := os.Stat(filepath.Join(dir, d)); errors.Is(err, fs.ErrNotExist) {
				top = d
			}
		}
		if err := os.Rename(filepath.Join(aside, top), filepath.Join(dir, top)); err != nil {
			t.Fatal(err)
		}
	}
	write("test/expect.json", `{"body_subset": {"path": "/a"}}`)
	template, err := os.ReadFile(filepath.Join(dir, "fret.yaml"))
	if err != nil {
		t.Fatal(err)
	}

	d := startDev(t, "--test", "--rm", dir)
	d.sees("deployed hello from hello:0.1.0, ")
	d.sees("1 passed, 0 failed")
	write("main.py", "def handle(event, context): pass\n")
	d.sees("changed: main.py")
	d.sees("deployed hello")
	d.sees("1 passed, 0 failed", "changed")

	write("README.md", "ignored") // ignored by .freignore
	write(".git/index", "ignored")
	write("pkg/deep/mod.py", "x = 1\n") // a new directory
	d.sees("changed: pkg", "changed: README", "changed: .git")
	d.sees("1 passed, 0 failed")
	write("pkg/deep/mod.py", "x = 2\n") // the new directory is watched as well
	d.sees("changed: pkg/deep/mod.py")
	d.sees("1 passed, 0 failed")

	if err := os.Rename(filepath.Join(dir, "pkg"), filepath.Join(dir, "lib")); err != nil {
		t.Fatal(err)
	}
	d.sees("changed: ")
	d.sees("1 passed, 0 failed")
	write("lib/deep/mod.py", "x = 3\n") // below a moved directory
	d.sees("changed: lib/deep/mod.py")
	d.sees("1 passed, 0 failed")
	write("pkg/deep/mod.py", "x = 4\n") // the directory's old place
	d.sees("changed: pkg")
	d.sees("1 passed, 0 failed")
	write("pkg/deep/mod.py", "x = 5\n")
	d.sees("changed: pkg/deep/mod.py")
	d.sees("1 passed, 0 failed")

	write("fret.yaml", "id: hello\nbase: python\nnonsense: 1\n")
	d.sees("changed: fret.yaml")
	d.sees("fre: fret.yaml:3:1", "deployed")
	write("fret.yaml", string(template))
	d.sees("changed: fret.yaml")
	d.sees("1 passed, 0 failed")
	write("test/expect.json", `{"body_subset": {"path": "/b"}}`)
	d.sees("changed: test/expect.json")
	d.sees("FAIL event")
	d.sees("0 passed, 1 failed")
	if err := os.Rename(filepath.Join(dir, "main.py"), filepath.Join(dir, "other.py")); err != nil {
		t.Fatal(err)
	}
	d.sees("changed: ")
	d.sees("0 passed, 1 failed")
	if err := os.WriteFile(filepath.Join(dir, "test/expect.json"), []byte(`{"body_subset": {"path": "/c"}}`), 0o644); err != nil { // written in place: one change or two
		t.Fatal(err)
	}
	d.sees("changed: test/expect.json")
	d.interrupt()

	c := client.New(socket)
	defer c.Close()
	functions := func() (names []string) {
		list, err := c.Functions().List(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			names = append(names, f.Name)
		}
		return names
	}
	if got := functions(); got != nil {
		t.Errorf("after --rm there is %q", got)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	d = startDev(t, "--name", "mine", link) // without tests and --rm
	d.sees("deployed mine")
	write("test/expect.json", `{}`)
	write("fret.yaml", strings.Replace(string(template), "0.1.0", "0.2.0", 1))
	d.sees("changed: fret.yaml", "changed: test")
	d.sees("deployed mine from hello:0.2.0")
	d.interrupt()
	if got := fmt.Sprint(functions()); got != "[mine]" {
		t.Errorf("there is %s, want [mine]", got)
	}
	if code := execute([]string{"dev", t.TempDir()}, strings.NewReader(""), io.Discard, io.Discard); code != 1 {
		t.Errorf("of an empty directory: exit status %d, want 1", code)
	}
}

// A log line during a build is printed once, above the bars or after their end, and never among
// JSON.
func TestDevSays(t *testing.T) {
	var out, other bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetErr(&other)
	d := &dev{cmd: cmd, progress: progressFlags{mode: "plain"}}
	d.say("to people")
	d.progress.mode = progressJSON
	d.say("beside JSON")
	if out.String() != "to people\n" || other.String() != "beside JSON\n" {
		t.Errorf("standard output %q, standard error %q", out.String(), other.String())
	}

	d.progress.mode = "auto"
	for range 20 {
		out.Reset()
		var terminal bytes.Buffer
		d.report = &progress{bars: newBars(&terminal, func() (int, int) { return 80, 24 }, false)}
		const lines = 200
		begun, done := make(chan bool), make(chan bool)
		go func() {
			defer close(done)
			for i := range lines {
				if d.say(fmt.Sprintf("line %d", i)); i == 0 {
					close(begun)
				}
			}
		}()
		<-begun
		d.report.end()
		<-done
		for i := range lines {
			if n := strings.Count(terminal.String()+out.String(), fmt.Sprintf("line %d\n", i)); n != 1 {
				t.Fatalf("line %d is there %d times", i, n)
			}
		}
	}
}

func TestWatchRules(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "src"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "src", ".freignore"), []byte("*.pyc\nnode_modules/\n/fret.yaml\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	src := watchRules{}
	src.read(dir, "./src/")
	top := watchRules{test: true}
	top.read(filepath.Join(dir, "src"), ".")
	for _, c := range []struct {
		rules watchRules
		path  string
		dir   bool
		want  bool
	}{
		{src, "fret.yaml", false, true},
		{src, "fret.lock", false, false},
		{src, ".fret.lock-123", false, false},
		{src, "requirements.txt", false, true},
		{src, "m.pyc", false, true}, // outside the code
		{src, "src/m.pyc", false, false},
		{src, "src/.freignore", false, true},
		{src, "src/node_modules", true, false},
		{src, "src/node_modules/a/b.js", false, false},
		{src, "src/.git/x", false, false},
		{src, "test/event.json", false, false},
		{top, "test/event.json", false, true},
		{top, "fret.yaml", false, true},
		{top, "a/m.pyc", false, false},
		{top, "a/m.py", false, true},
	} {
		if got := c.rules.counts(c.path, c.dir); got != c.want {
			t.Errorf("counts(%q) with %+v = %v, want %v", c.path, c.rules, got, c.want)
		}
	}
}
