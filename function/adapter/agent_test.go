package adapter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/function/channel"
)

// TestMain also runs as the program of a command.
func TestMain(m *testing.M) {
	if os.Getenv("LEAVES_GROUP") != "" {
		leaveGroup()
	}
	os.Exit(m.Run())
}

// reaper is this process's reaper: the first waiter gets the status of an ended child.
var reaper = sync.OnceValue(newChildren)

func testAgent(t *testing.T) *agent {
	t.Helper()
	return newAgent(reaper(), t.TempDir())
}

// askAgent lets an agent answer an event.
func askAgent(ctx context.Context, a *agent, method, path, query, body string) (status int, answer string, err error) {
	e := &channel.Event{Invocation: channel.Invocation{Request: channel.Request{Method: method, Path: path, Query: query, Body: strings.NewReader(body)}}}
	got, err := a.handle(ctx, e)
	if err != nil {
		return 0, "", err
	}
	status = max(got.Status, 200)
	if got.Body == nil {
		return status, "", nil
	}
	raw, err := io.ReadAll(got.Body)
	if c, ok := got.Body.(io.Closer); ok {
		_ = c.Close()
	}
	return status, string(raw), err
}

// ran is the combined output of an exec.
type ran struct {
	stdout, stderr string
	exit           *exit
}

func execAgent(t *testing.T, a *agent, request, stdin string) ran {
	t.Helper()
	status, answer, err := askAgent(t.Context(), a, "POST", "/exec", "", request+"\n"+stdin)
	if err != nil || status != 200 {
		t.Fatalf("%s: %d %s %v", request, status, answer, err)
	}
	var out ran
	for line := range strings.Lines(answer) {
		var l struct {
			Stdout, Stderr string
			Stdout64       []byte `json:"stdout_base64"`
			Stderr64       []byte `json:"stderr_base64"`
			Exit           *exit
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%s: line %q: %v", request, line, err)
		}
		if out.exit != nil {
			t.Errorf("%s: %q comes after the exit", request, line)
		}
		out.stdout += l.Stdout + string(l.Stdout64)
		out.stderr += l.Stderr + string(l.Stderr64)
		out.exit = l.Exit
	}
	if out.exit == nil {
		t.Fatalf("%s: no exit in %q", request, answer)
	}
	return out
}

// TestAgentExec: The output of a command comes in order, stdout and stderr apart, and the last line
// is the exit code, the signal or the time-out.
func TestAgentExec(t *testing.T) {
	a := testAgent(t)
	large := strings.Repeat("é☃", 200_000)
	for _, c := range []struct {
		name, request, stdin, stdout, stderr string
		code                                 int
	}{
		{"words", `{"args":["printf","%s|","a b","$HOME"]}`, "", "a b|$HOME|", "", 0},
		{"shell", `{"shell":"echo out; echo err >&2; exit 3"}`, "", "out\n", "err\n", 3},
		{"stdin", `{"args":["cat"]}`, large, large, "", 0},
		{"no stdin", `{"args":["cat"]}`, "", "", "", 0},
		{"stdin unread", `{"args":["true"]}`, large, "", "", 0},
		{"no text", `{"shell":"printf '\\377\\000x'"}`, "", "\xff\x00x", "", 0},
		{"part of a character at the end", `{"shell":"printf '\\303'"}`, "", "\xc3", "", 0},
		{"environment", `{"shell":"echo $A-$FRE_CONTRACT","env":{"A":"b"}}`, "", "b-\n", "", 0},
		{"a signal", `{"shell":"kill -TERM $$"}`, "", "", "", 143},
		{"directory", `{"shell":"mkdir -p sub; cd sub; pwd"}`, "", filepath.Join(a.home, "sub") + "\n", "", 0},
		{"in it", `{"shell":"pwd","dir":"sub"}`, "", filepath.Join(a.home, "sub") + "\n", "", 0},
		{"output and a child that stays", `{"shell":"echo one; sleep 600 & echo $! > child; echo two"}`, "", "one\ntwo\n", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := execAgent(t, a, c.request, c.stdin)
			if got.stdout != c.stdout || got.stderr != c.stderr || got.exit.Code != c.code {
				t.Errorf("%.100q %.100q %+v, want %.100q %.100q %d", got.stdout, got.stderr, got.exit, c.stdout, c.stderr, c.code)
			}
		})
	}
	pid := alive(t, filepath.Join(a.home, "child")) // a background process of the command runs on
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

// alive returns the process whose id is in the file, and checks that it runs.
func alive(t *testing.T, file string) (pid int) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("process %d: %v", pid, err)
	}
	return pid
}

// leaveGroup joins the process group of a child and waits for SIGKILL. The child ends with it.
func leaveGroup() {
	cmd := exec.CommandContext(context.Background(), "cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	_, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		err = syscall.Setpgid(0, cmd.Process.Pid)
	}
	if err == nil {
		err = cmd.Wait()
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestAgentKills: The process group of a command ends at the time limit and when the client
// disconnects.
func TestAgentKills(t *testing.T) {
	a := testAgent(t)
	// child returns the process id that a command left in a file, or 0 before that.
	child := func(file string) (pid int) {
		text, _ := os.ReadFile(filepath.Join(a.home, file))
		_, _ = fmt.Sscan(string(text), &pid)
		return pid
	}
	gone := func(file string) {
		t.Helper()
		pid := child(file)
		if pid == 0 {
			t.Fatalf("%s has no process id", file)
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil { // already reaped
			return
		}
		defer unix.Close(fd)
		err = unix.EINTR
		for errors.Is(err, unix.EINTR) { // SIGCHLD, or the runtime's signals
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 300_000)
		}
		if err != nil {
			t.Error(err)
		}
		if syscall.Kill(pid, 0) == nil {
			state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if !bytes.Contains(state, []byte(") Z ")) {
				t.Errorf("the command's child runs on: %s", state)
			}
		}
	}
	for limit := 300; child("timeout") == 0; limit *= 2 { // until the shell has started its child in time
		got := execAgent(t, a, fmt.Sprintf(`{"shell":"sleep 3600 & echo $! > timeout; wait","timeout_ms":%d}`, limit), "")
		if !got.exit.TimedOut || got.exit.Code != 137 || got.exit.Signal != "SIGKILL" {
			t.Fatalf("at the limit: %+v", got.exit)
		}
	}
	gone("timeout")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	got := execAgent(t, a, `{"args":["`+self+`"],"env":{"LEAVES_GROUP":"yes"},"timeout_ms":1000}`, "")
	if !got.exit.TimedOut || got.exit.Signal != "SIGKILL" {
		t.Errorf("one that has left its group, at the limit: %+v", got.exit)
	}

	ctx, cancel := context.WithCancel(t.Context())
	got1, err := a.handle(ctx, &channel.Event{Invocation: channel.Invocation{Request: channel.Request{Method: "POST", Path: "/exec", Body: strings.NewReader(`{"shell":"sleep 600 & echo $! > client; echo ready; wait"}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := got1.Body.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if rest, err := io.ReadAll(got1.Body); err == nil {
		t.Errorf("the answer of a client that has gone ends well: %q", rest)
	}
	gone("client")
	for range cap(a.running) { // after the end of all commands
		a.running <- struct{}{}
	}
	status, answer, _ := askAgent(t.Context(), a, "POST", "/exec", "", `{"args":["true"]}`)
	if status != 503 || !strings.Contains(answer, "16 commands are running") {
		t.Errorf("one command too many: %d %s", status, answer)
	}
}

// TestAgentStreams: Output is sent as it is written. A command with an unread output waits.
func TestAgentStreams(t *testing.T) {
	a := testAgent(t)
	r, w := io.Pipe()
	got, err := a.handle(t.Context(), &channel.Event{Invocation: channel.Invocation{Request: channel.Request{Method: "POST", Path: "/exec", Body: io.MultiReader(strings.NewReader(`{"args":["cat"]}`+"\n"), r)}}})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1000)
	for _, word := range []string{"one", "two"} {
		if _, err := io.WriteString(w, word); err != nil {
			t.Fatal(err)
		}
		n, err := got.Body.Read(buf)
		if want := `{"stdout":"` + word + `"}` + "\n"; err != nil || string(buf[:n]) != want {
			t.Fatalf("%q %v, want %q", buf[:n], err, want)
		}
	}
	_ = w.Close()
	if rest, err := io.ReadAll(got.Body); err != nil || !strings.HasPrefix(string(rest), `{"exit":{"code":0,`) {
		t.Errorf("%q %v", rest, err)
	}

	// A truncated input is no end of file: the engine cancels its event.
	r, w = io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	got, err = a.handle(ctx, &channel.Event{Invocation: channel.Invocation{Request: channel.Request{Method: "POST", Path: "/exec", Body: io.MultiReader(strings.NewReader(`{"shell":"cat; echo whole"}`+"\n"), r)}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "part"); err != nil {
		t.Fatal(err)
	}
	_ = w.CloseWithError(errors.New("the client has gone"))
	cancel()
	if out, _ := io.ReadAll(got.Body); strings.Contains(string(out), "whole") || strings.Contains(string(out), `"code":0`) {
		t.Errorf("after an input that broke off: %q", out)
	}

	got, err = a.handle(t.Context(), &channel.Event{Invocation: channel.Invocation{Request: channel.Request{Method: "POST", Path: "/exec", Body: strings.NewReader(`{"shell":"exec cat /dev/zero"}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, got.Body, 10<<20); err != nil {
		t.Fatal(err)
	}
	_ = got.Body.(io.Closer).Close() // ends the command
	a.running <- struct{}{}
	for range cap(a.running) - 1 {
		a.running <- struct{}{}
	}
}

// TestAgentFiles: A file is written whole or not at all; links and fifos do no harm, and the
// sandbox's own directory stays.
func TestAgentFiles(t *testing.T) {
	a := testAgent(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(a.home, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(a.home, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, method, path, query, body string
		status                          int
		want                            string
	}{
		{"write", "PUT", "/files", "path=a/b/c.txt&mode=640", "0123456789", 204, ""},
		{"read", "GET", "/files", "path=a/b/c.txt", "", 200, "0123456789"},
		{"absolute", "GET", "/files", "path=" + a.home + "/a/b/c.txt", "", 200, "0123456789"},
		{"range", "GET", "/files", "path=a/b/c.txt&offset=2&length=3", "", 200, "234"},
		{"range of none", "GET", "/files", "path=a/b/c.txt&offset=20", "", 200, ""},
		{"replace", "PUT", "/files", "path=a/b/c.txt", "new", 204, ""},
		{"replaced", "GET", "/files", "path=a/b/c.txt", "", 200, "new"},
		{"over a link", "PUT", "/files", "path=file&mode=755", "x", 204, ""},
		{"list", "GET", "/list", "path=a/b", "", 200, `"name":"c.txt","type":"file","size":3,"mode":"640"`}, // of the replaced file
		{"list a link", "GET", "/list", "", "", 200, `"name":"link","type":"symlink"`},
		{"list a file", "GET", "/list", "path=file", "", 200, `"mode":"755"`},
		{"make a directory", "POST", "/mkdir", "path=x/y", "", 204, ""},
		{"a fifo", "GET", "/files", "path=fifo", "", 400, "not a regular file"},
		{"a directory", "GET", "/files", "path=a", "", 400, "not a regular file"},
		{"over a directory", "PUT", "/files", "path=a", "x", 400, "is a directory"},
		{"below a file", "PUT", "/files", "path=file/x", "x", 400, "not a directory"},
		{"missing", "GET", "/files", "path=nothing", "", 404, "list the directory"},
		{"no path", "GET", "/files", "", "", 400, "name a file"},
		{"NUL", "GET", "/files", "path=a%00b", "", 400, "name a file"},
		{"malformed query", "GET", "/files", "path=%zz", "", 400, "query"},
		{"negative", "GET", "/files", "path=file&offset=-1", "", 400, "offset"},
		{"set-id", "PUT", "/files", "path=s&mode=4755", "", 400, "mode"},
		{"long name", "PUT", "/files", "path=" + strings.Repeat("x", 300), "", 400, "too long"},
		{"remove what is not empty", "DELETE", "/files", "path=a", "", 400, "recursive=true"},
		{"remove all", "DELETE", "/files", "path=a&recursive=true", "", 204, ""},
		{"remove the link alone", "DELETE", "/files", "path=link&recursive=true", "", 204, ""},
		{"remove home", "DELETE", "/files", "path=.&recursive=true", "", 400, "cannot be removed"},
		{"remove home from below", "DELETE", "/files", "path=x/..&recursive=true", "", 400, "cannot be removed"},
		{"remove nothing", "DELETE", "/files", "path=a", "", 404, ""},
		{"unknown", "POST", "/files", "path=a", "", 404, "knows no POST /files"},
	} {
		status, answer, err := askAgent(t.Context(), a, c.method, c.path, c.query, c.body)
		exact := c.status == 200 && c.path == "/files"
		if err != nil || status != c.status || exact && answer != c.want || !strings.Contains(answer, c.want) {
			t.Errorf("%s: %d %s %v, want %d %s", c.name, status, answer, err, c.status, c.want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(a.home, ".fre-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q %v", left, err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error("the target of a link was removed with it:", err)
	}

	// A truncated body leaves the old file in place.
	broken := io.MultiReader(strings.NewReader("half"), failing{})
	if got, _ := a.handle(t.Context(), &channel.Event{Invocation: channel.Invocation{Request: channel.Request{Method: "PUT", Path: "/files", Query: "path=file", Body: broken}}}); got.Status != 500 {
		t.Errorf("a body that breaks off: %d", got.Status)
	}
	if text, err := os.ReadFile(filepath.Join(a.home, "file")); string(text) != "x" {
		t.Errorf("then the file is %q, %v", text, err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, fmt.Errorf("broken off") }

var execRequests = []struct{ name, line, want string }{
	{"none", ``, "EOF"},
	{"no command", `{}`, "name a command"},
	{"empty program", `{"args":[""]}`, "name a command"},
	{"both", `{"args":["a"],"shell":"b"}`, "not both"},
	{"unknown field", `{"shell":"a","tty":true}`, "unknown field"},
	{"two values", `{"shell":"a"} {}`, "several JSON values"},
	{"garbage behind it", `{"shell":"a"} x`, "several JSON values"},
	{"negative time", `{"shell":"a","timeout_ms":-1}`, "timeout_ms"},
	{"long time", `{"shell":"a","timeout_ms":3600001}`, "timeout_ms"},
	{"NUL", `{"args":["a","\u0000"]}`, "NUL"},
	{"NUL in the environment", `{"args":["a"],"env":{"A":"\u0000"}}`, "NUL"},
	{"name of a variable", `{"args":["a"],"env":{"A=B":"c"}}`, "variable"},
	{"type", `{"args":"ls"}`, "cannot unmarshal"},
	{"whole", `{"args":["ls","-l"],"dir":"x","env":{"A":""},"timeout_ms":1}`, ""},
}

// TestParseExec: A faulty exec request is refused with the next step.
func TestParseExec(t *testing.T) {
	for _, c := range execRequests {
		_, err := parseExec([]byte(c.line))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	a := testAgent(t)
	for line, want := range map[string]string{
		`{"args":["no-such-program"]}`:                   "command_not_found",
		`{"args":["/no/such/program"]}`:                  "command_not_found",
		`{"args":["/etc/passwd"]}`:                       "command_not_exec",
		`{"args":["true"],"dir":"missing"}`:              "not_found",
		`{"args":["true"],"dir":"/etc/passwd"}`:          "no directory",
		`{"shell":"` + strings.Repeat("x", 1<<20) + `"}`: "write a file and run the file",
	} {
		status, answer, err := askAgent(t.Context(), a, "POST", "/exec", "", line)
		if err != nil || status < 400 || !strings.Contains(answer, want) {
			t.Errorf("%.60s: %d %s %v, want %q", line, status, answer, err, want)
		}
	}
}

// FuzzParseExec: An accepted request can be executed.
func FuzzParseExec(f *testing.F) {
	for _, c := range execRequests {
		f.Add([]byte(c.line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parseExec(line)
		if err != nil {
			return
		}
		all := slices.Concat(r.Args, r.environ(), []string{r.Dir})
		if len(r.Args) == 0 || r.Args[0] == "" || slices.ContainsFunc(all, func(s string) bool { return strings.ContainsRune(s, 0) }) {
			t.Errorf("%q is taken as %+v", line, r)
		}
		if limit := time.Duration(r.TimeoutMS) * time.Millisecond; limit < 0 || limit > maxTimeout {
			t.Errorf("%q: time limit %s", line, limit)
		}
	})
}
