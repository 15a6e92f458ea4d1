package runtimes_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/channel"
)

// instance is a bootstrap run by the host's own interpreter, with a real socketpair as its channel.
type instance struct {
	*channel.Conn
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	logs           chan string
	raw            *net.UnixConn // the channel; Conn owns it unless startRaw was called
	load           *channel.Load // the LOAD for a parked instance
	pidfd          int           // of a forked instance, otherwise -1
	exited         chan struct{}
}

// exitCode returns the status of an instance that has exited.
func (i *instance) exitCode() int {
	if i.pidfd < 0 {
		return i.cmd.ProcessState.ExitCode()
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := unix.IoctlPidfdInfo(i.pidfd, &info); err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return -1
	}
	return unix.WaitStatus(info.Exit_code).ExitStatus()
}

// language describes a runtime for the contract tests.
type language struct {
	name      string
	command   func(dir string) (args, env []string) // without a handler
	errType   string                                // the error type of the test functions
	refusal   string                                // the error type of an unsendable answer, "" for errType
	typeError string                                // the error type of an answer of a wrong type, "" for TypeError
	single    bool                                  // handles one event at a time, even with FRE_CONCURRENCY
	renamed   map[string]string                     // handlers of testdata whose names are reserved words
	parked    bool                                  // started without a function, which LOAD names
	forked    bool                                  // child of a fork server
}

// is reports whether l is among names, or names is empty.
func (l language) is(names string) bool {
	return names == "" || slices.Contains(strings.Fields(names), l.name)
}

func (l language) String() string {
	if l.parked {
		return l.name + " parked"
	}
	if l.forked {
		return l.name + " forked"
	}
	return l.name
}

func languages(t testing.TB) []language {
	t.Helper()
	abs := func(p string) string {
		p, err := filepath.Abs(p)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	interpreter := func(name string) string {
		if p := "/usr/bin/" + name; exists(p) {
			return p
		}
		p, err := exec.LookPath(name)
		if err != nil && os.Getenv("FRE_TEST_ROOT") == "1" {
			t.Fatal(err)
		}
		return p
	}
	var l []language
	if p := interpreter("python3"); p != "" {
		l = append(l, language{name: "python", command: func(dir string) ([]string, []string) {
			return []string{p, "-S", abs("python/bootstrap.py")}, []string{"PYTHONPATH=" + abs(dir)}
		}, errType: "ValueError"})
	}
	if p := interpreter("node"); p != "" {
		l = append(l, language{name: "node", command: func(dir string) ([]string, []string) {
			return []string{p, abs("node/bootstrap.js")}, []string{"FRE_FUNCTION_DIR=" + abs(dir)}
		}, errType: "RangeError"})
	}
	if p := interpreter("java"); p != "" {
		l = append(l, javaLanguage(t, p))
	}
	if p := interpreter("php"); p != "" {
		l = append(l, language{name: "php", command: func(dir string) ([]string, []string) {
			return []string{p, "-c", abs("php/php.ini"), abs("php/bootstrap.php")}, []string{"FRE_FUNCTION_DIR=" + abs(dir)}
		}, errType: "ValueError", single: true, renamed: map[string]string{"all.echo": "all.echo_", "all.array": "all.array_"}})
	}
	if p := interpreter("ruby"); p != "" {
		l = append(l, language{name: "ruby", command: func(dir string) ([]string, []string) {
			return []string{p, "--disable=gems", abs("ruby/bootstrap.rb")}, []string{"FRE_FUNCTION_DIR=" + abs(dir)}
		}, errType: "ArgumentError"})
	}
	l = append(l, inGo(t))
	for _, direct := range l {
		if direct.name == "go" { // a program starts within a millisecond: there is no interpreter to park
			continue
		}
		direct.parked = true
		l = append(l, direct)
		if direct.name == "python" && os.Geteuid() == 0 && canFork() { // for namespaces
			direct.parked, direct.forked = false, true
			l = append(l, direct)
		}
	}
	return l
}

// canFork reports whether the kernel identifies the sender of a report and the status of its end.
func canFork() bool {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	defer unix.Close(pidfd)
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_PID | unix.PIDFD_INFO_EXIT}
	return unix.IoctlPidfdInfo(pidfd, &info) == nil
}

func exists(p string) bool { _, err := os.Stat(p); return err == nil }

// start runs a handler of testdata and ends the instance with the test.
func (l language) start(t testing.TB, handler string, env ...string) *instance {
	t.Helper()
	i := l.startRaw(t, handler, env...)
	if i.Conn != nil { // a fork server that could not load the handler
		return i
	}
	var files func() (*os.File, error)
	for _, v := range env {
		if dir, ok := strings.CutPrefix(v, "FRE_FILES="); ok && dir != "" {
			files = func() (*os.File, error) { return os.Open(dir) }
		}
	}
	i.Conn = channel.NewConn(i.raw, channel.Config{Parked: l.parked, Files: files, Log: func(id, level, message string) {
		select {
		case i.logs <- fmt.Sprintf("%s %s %s", id, level, message):
		default:
			t.Errorf("a log line too many: %s", message)
		}
	}})
	t.Cleanup(func() { _ = i.Close() })
	if l.parked {
		if err := i.Parked(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := i.Load(t.Context(), i.load); err != nil {
			t.Fatal(err)
		}
	}
	return i
}

// startRaw leaves the channel to the caller, and a parked instance's LOAD, too.
func (l language) startRaw(t testing.TB, handler string, env ...string) *instance {
	t.Helper()
	if name, ok := l.renamed[handler]; ok {
		handler = name
	}
	ours, theirs := channelPair(t)
	defer theirs.Close()
	args, more := l.command(filepath.Join("testdata", l.name))
	parked := []string{"FRE_CHANNEL=3", "PATH=/usr/bin:/bin", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"}
	env = slices.Concat(parked, more, env)
	i := &instance{logs: make(chan string, 100), raw: ours, pidfd: -1, exited: make(chan struct{})}
	if l.parked {
		i.load = &channel.Load{Handler: handler, Dir: ".", Env: map[string]string{}}
		for _, v := range env {
			name, value, _ := strings.Cut(v, "=")
			i.load.Env[name] = value
		}
		env = append(parked, "FRE_STALE=of the interpreter")
	} else {
		args = append(args, handler)
	}
	i.cmd = exec.Command(args[0], args[1:]...)
	i.cmd.Env = env
	i.cmd.ExtraFiles = []*os.File{theirs}
	i.cmd.Stdout, i.cmd.Stderr = &i.stdout, &i.stderr
	if l.forked {
		i.forkRaw(t)
		return i
	}
	if err := i.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = i.cmd.Wait()
		close(i.exited)
	}()
	t.Cleanup(func() {
		_ = i.cmd.Process.Kill()
		<-i.exited
		_ = i.raw.Close()
		if t.Failed() {
			t.Logf("%s %s\nstdout: %s\nstderr: %s", l, handler, &i.stdout, &i.stderr)
		}
	})
	return i
}

func channelPair(t testing.TB) (ours *net.UnixConn, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "engine")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn), os.NewFile(uintptr(fds[1]), "function")
}

// forkRaw runs i.cmd as a fork server and makes i its child. It sets Conn if the server could not
// load the handler.
func (i *instance) forkRaw(t testing.TB) {
	t.Helper()
	var words bytes.Buffer
	i.cmd.Env = append(i.cmd.Env, "FRE_FORK=1")
	i.cmd.Stdout, i.cmd.Stderr = &words, &words
	i.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID} // all processes end with the first
	if err := i.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = i.cmd.Wait()
		close(ended)
	}()
	server := channel.NewConn(i.raw, channel.Config{})
	t.Cleanup(func() {
		_ = i.cmd.Process.Kill()
		<-ended
		<-i.exited
		_ = server.Close()
		_ = i.raw.Close()
		if i.pidfd >= 0 {
			unix.Close(i.pidfd)
		}
		if t.Failed() {
			t.Logf("fork server: %s\nstdout: %s\nstderr: %s", &words, &i.stdout, &i.stderr)
		}
	})
	var failure *channel.Failure
	if _, err := server.Ready(t.Context()); errors.As(err, &failure) {
		i.Conn, i.exited = server, ended
		return
	} else if err != nil {
		close(i.exited)
		t.Fatal(err)
	}
	var copies sync.WaitGroup
	var files [2]*os.File
	for n, buffer := range []*bytes.Buffer{&i.stdout, &i.stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		files[n] = w
		copies.Go(func() {
			_, _ = io.Copy(buffer, r)
			_ = r.Close()
		})
	}
	ours, theirs := channelPair(t)
	defer theirs.Close()
	i.raw = ours
	err := errors.Join(channel.ExpectFork(ours), server.Fork(theirs, files[0], files[1], nil))
	if err == nil {
		i.pidfd, err = channel.Forked(t.Context(), ours)
	}
	if err == nil {
		_, err = ours.Write(rawHeader(0x0f, 0)) // GO
	}
	if err != nil {
		close(i.exited)
		t.Fatal(err)
	}
	go func() {
		for { // until the kernel has reaped the process
			p := []unix.PollFd{{Fd: int32(i.pidfd)}}
			if _, err := unix.Poll(p, -1); err == nil && p[0].Revents&unix.POLLHUP != 0 {
				break
			}
		}
		copies.Wait()
		close(i.exited)
	}()
}

// loadRaw sends the messages of Conn.Parked and Conn.Load.
func (i *instance) loadRaw(t testing.TB) {
	t.Helper()
	if i.load == nil {
		return
	}
	if _, err := io.ReadFull(i.raw, make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	p, err := json.Marshal(i.load)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.raw.Write(append(rawHeader(0x0c, len(p)), p...)); err != nil {
		t.Fatal(err)
	}
}

func rawHeader(kind byte, size int) []byte {
	h := make([]byte, 16)
	binary.LittleEndian.PutUint32(h, uint32(size))
	h[4] = kind
	return h
}

// answer is a complete reply.
type answer struct {
	Status  int
	Headers [][2]string
	Body    string
}

func (i *instance) invoke(ctx context.Context, body string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	r, err := i.Invoke(ctx, &channel.Invocation{ID: "1", Request: channel.Request{Method: "POST", Path: "/p", Body: strings.NewReader(body)}})
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(r.Body)
	return answer{r.Status, r.Headers, string(b)}, err
}

const (
	textType = "text/plain; charset=utf-8"
	byteType = "application/octet-stream"
	jsonType = "application/json"
)

func typed(t string) [][2]string { return [][2]string{{"content-type", t}} }

// TestAnswers: Each kind of a handler's return value becomes the documented answer, in each
// language.
func TestAnswers(t *testing.T) {
	tests := []struct {
		handler, body string
		only          string // the runtimes with this handler, "" for all
		want          answer
	}{
		{"echo", "abc", "python node ruby go java", answer{201, [][2]string{{"X-Path", "/p"}, {"x-many", "a"}, {"x-many", "b"}, {"content-type", byteType}}, "abc"}},
		{"echo", "abc", "php", answer{201, [][2]string{{"X-Path", "/p"}, {"x-many", "a"}, {"x-many", "b"}, {"content-type", textType}}, "abc"}}, // one type for both
		{"text", "", "", answer{200, typed(textType), "grüße"}},
		{"data", "", "", answer{200, typed(byteType), "\x00\xff"}},
		{"nothing", "", "", answer{204, [][2]string{}, ""}},
		{"array", "", "python", answer{200, typed(jsonType), `[1, "two", null]`}},
		{"array", "", "node go java php ruby", answer{200, typed(jsonType), `[1,"two",null]`}},
		{"json_in", "[1,2,3]", "python", answer{200, typed(jsonType), `{"sum": 6}`}},
		{"json_in", "[1,2,3]", "node go java php ruby", answer{200, typed(jsonType), `{"sum":6}`}},
		{"stream", "", "", answer{200, typed(textType), "part 0\npart 1\npart 2\npart 3\npart 4\n"}},
		{"stream_status", "", "", answer{202, typed("text/x"), strings.Repeat("x", 3_000_000)}},
		{"stream_nothing", "", "", answer{200, typed(byteType), ""}},
		{"asynchronous", "", "python", answer{200, typed(textType), "async"}},
		{"asynchronous_stream", "", "python", answer{200, typed(textType), "012"}},
		{"object_form", "", "node php ruby", answer{203, [][2]string{{"a", "b"}, {"content-type", jsonType}}, `{"x":1}`}},
		{"surrogate_text", "", "python", answer{200, typed(textType), "a\uFFFDb\uFFFDc"}},
		{"surrogate_stream", "", "python", answer{200, typed(textType), "a\uFFFDb"}},
		{"surrogate_json", "", "python", answer{200, typed(jsonType), `{"a\ud800": "\u00fc\udcff"}`}},
		{"surrogate_header", "", "python", answer{200, [][2]string{{"x-a", "a\uFFFDb"}, {"content-type", textType}}, "ok"}},
		{"processes", "", "python", answer{200, typed(jsonType), "[9, 9, 9]"}},
		{"asynchronous", "", "java", answer{200, typed(textType), "async"}},
		{"readable", "", "java", answer{200, typed(byteType), "ab"}},
		{"parameters", "text", "java", answer{200, typed(textType), "text1"}},
		{"input", "stream", "java", answer{200, typed(textType), "stream!"}},
		{"reader", "", "go", answer{200, typed(byteType), "ab"}},
		{"pipe", strings.Repeat("0123456789", 100_000), "go", answer{200, typed(byteType), strings.Repeat("0123456789", 100_000)}},
		{"readable", "", "node", answer{200, typed(byteType), "ab"}},
		{"readable", "", "php", answer{200, typed(byteType), "a\xff"}},
		{"readable", "", "ruby", answer{200, typed(byteType), "ab"}},
		{"children", "", "python node go java", answer{200, typed(byteType), "none\n"}},
		{"children", "", "php ruby", answer{200, typed(textType), "none\n"}},
	}
	for _, l := range languages(t) {
		for _, concurrency := range []string{"1", "4"} {
			for _, tt := range tests {
				if !l.is(tt.only) {
					continue
				}
				t.Run(l.String()+" "+concurrency+" "+tt.handler, func(t *testing.T) {
					t.Parallel()
					i := l.start(t, "all."+tt.handler, "FRE_CONCURRENCY="+concurrency)
					for range 2 { // the second time warm
						got, err := i.invoke(t.Context(), tt.body)
						if err != nil {
							t.Fatal(err)
						}
						if diff := cmp.Diff(tt.want, got); diff != "" {
							t.Error(diff)
						}
					}
				})
			}
		}
	}
}

// TestEventAndContext: A handler gets the event and its context unchanged, in each language.
func TestEventAndContext(t *testing.T) {
	for _, l := range languages(t) {
		t.Run(l.String(), func(t *testing.T) {
			i := l.start(t, "all.describe")
			deadline := time.Now().Add(time.Hour).UnixMilli()
			r, err := i.Invoke(t.Context(), &channel.Invocation{
				Function: "f", ID: "id-1", Tenant: "t", DeadlineMS: deadline, Request: channel.Request{
					Method: "PUT", Path: "/a/ü",
					Query:   "a=1&b=x%20y+z&a=2&e&%zz=%C3%BC",
					Headers: [][2]string{{"X-Twice", "one"}, {"x-twice", "two"}}, Body: strings.NewReader("bödy"),
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			var got any
			if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{
				"method": "PUT", "path": "/a/ü", "header": "one, two", "text": "bödy",
				"query": map[string]any{
					"a": []any{"1", "2"}, "b": []any{"x y z"}, "e": []any{""}, "%zz": []any{"ü"},
				},
				"function": "f", "id": "id-1", "tenant": "t", "deadline": float64(deadline) / 1000, "left": true,
			}
			if diff := cmp.Diff(any(want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestHandlerFails: The error of a handler reaches the caller with type, message and stack, and the
// instance lives on.
func TestHandlerFails(t *testing.T) {
	tests := []struct {
		handler, only string
		message       string // a part
		typ           string // "" for the language's own
		stack         string // a part
		body          string // the body before the error
	}{
		{"raises", "python node java php ruby", "no such thing", "", "raises", ""},
		{"raises", "go", "outer: no such thing", "", "", ""}, // errors have no stack
		{"raises_text", "go", "plain text", "error", "", ""},
		{"panics", "go", "no such thing", "", "runtimes_test.panics\n", ""},
		{"panics_text", "go", "plain text", "panic", "runtimes_test.", ""},
		{"index", "go", "slice bounds out of range", "runtime.boundsError", "gofunction_test.go:", ""},
		{"error_value", "go", "return it as the second value", "TypeError", "", ""},
		{"stream_error", "go", "wrapped: in the middle", "", "", "begun"},
		{"raises_cause", "python ruby", "outer", "RuntimeError", "no such thing", ""},
		{"raises_cause", "php", "outer", "RuntimeException", "no such thing", ""},
		{"throws_text", "node", "plain text", "Thrown", "", ""},
		{"unserialisable", "", "the handler's answer is no JSON", "TypeError", "", ""},
		{"odd_json", "python", "the handler's answer is no JSON: odd", "TypeError", "", ""},
		{"surrogate_raises", "python", "half a", "", "", ""},
		{"wrong_type", "", "the handler returned", "TypeError", "", ""},
		{"bad_status", "", "99", "refusal", "", ""},
		{"bad_header", "python php", "control characters", "ValueError", "", ""},
		{"bad_header", "ruby", "control characters", "ArgumentError", "", ""},
		{"bad_header", "node go java", "control characters", "TypeError", "", ""},
		{"many_headers", "", "300 headers, at most 256", "refusal", "", ""},
		{"big_headers", "", "bytes of headers, at most", "refusal", "", ""},
		{"stream_raises", "", "in the middle", "", "stream_raises", "begun"},
		{"stream_raises_first", "python node java php ruby", "at first", "", "stream_raises_first", ""},
		{"stream_raises_first", "go", "at first", "", "", ""},
		{"stream_wrong", "python node java php ruby", "7, not", "TypeError", "", "begun"},
		{"recursion", "python", "recursion depth", "RecursionError", "", ""},
		{"recursion", "node", "call stack", "RangeError", "", ""},
		{"recursion", "java", "", "java.lang.StackOverflowError", "recursion", ""},
		{"recursion", "ruby", "stack level too deep", "SystemStackError", "", ""},
		{"memory", "python", "", "MemoryError", "", ""},
		{"memory", "ruby", "", "NoMemoryError", "", ""},
		{"memory", "java", "heap space", "java.lang.OutOfMemoryError", "memory", ""},
		{"raises_cause", "java", "outer", "java.lang.RuntimeException", "Caused by: java.lang.IllegalStateException: no such thing", ""},
		{"leaves", "python", "sys.exit(3)", "SystemExit", "", ""},
		{"leaves", "ruby", "exit(3)", "SystemExit", "", ""},
		{"throws", "ruby", "nobody_catches", "UncaughtThrowError", "", ""},
	}
	for _, l := range languages(t) {
		for _, tt := range tests {
			if !l.is(tt.only) {
				continue
			}
			t.Run(l.String()+" "+tt.handler, func(t *testing.T) {
				t.Parallel()
				i := l.start(t, "all."+tt.handler)
				for range 2 { // the instance lives on
					got, err := i.invoke(t.Context(), "")
					var f *channel.Failure
					if !errors.As(err, &f) {
						t.Fatalf("got %+v, %v, want a Failure", got, err)
					}
					typ := tt.typ
					switch {
					case typ == "refusal" && l.refusal != "":
						typ = l.refusal
					case typ == "TypeError" && l.typeError != "":
						typ = l.typeError
					case typ == "" || typ == "refusal":
						typ = l.errType
					}
					if f.Type != typ || !strings.Contains(f.Message, tt.message) || f.Load {
						t.Errorf("got %s: %s (load %v), want %s: …%s…", f.Type, f.Message, f.Load, typ, tt.message)
					}
					stack := strings.ReplaceAll(tt.stack, "stream_raises", map[string]string{"python": "stream_raises", "php": "stream_raises", "ruby": "stream_raises", "node": "broken", "go": "streamRaises", "java": "all$1.next"}[l.name])
					stack = strings.TrimSuffix(stack, "_first")
					if !strings.Contains(f.Stack, stack) {
						t.Errorf("stack without %q:\n%s", stack, f.Stack)
					}
					if strings.Contains(f.Stack, "bootstrap") || strings.Contains(f.Stack, "fre/function") || strings.Contains(f.Stack, "fre/channel") || strings.Contains(f.Stack, "/_fre/") && tt.stack != "" {
						t.Errorf("stack shows the bootstrap:\n%s", f.Stack)
					}
					if got.Body != tt.body {
						t.Errorf("body %q before the failure, want %q", got.Body, tt.body)
					}
				}
				_ = i.Stop()
				<-i.exited
				if tt.message != "" && !strings.Contains(i.stderr.String(), tt.message) {
					t.Errorf("stderr does not tell: %q", &i.stderr)
				}
			})
		}
	}
}

// TestLoadFails: The error of a handler that cannot be loaded reaches the engine with type, message
// and stack.
func TestLoadFails(t *testing.T) {
	tests := []struct {
		handler, only, typ, message, stack string
	}{
		{"syntax.handle", "python node ruby", "SyntaxError", "", "syntax."},
		{"syntax.handle", "php", "ParseError", "", "syntax."},
		{"raising.handle", "python", "KeyError", "at import", "fail()"},
		{"raising.handle", "node", "RangeError", "at import", "raising.js"},
		{"raising.handle", "php", "ValueError", "at import", "fail()"},
		{"raising.handle", "ruby", "ArgumentError", "at import", "fail_here"},
		{"syntax.handle", "java", "java.lang.ClassFormatError", "syntax", ""},
		{"raising.handle", "java", "java.lang.IllegalStateException", "at import", "raising.fail(raising.java:5)"},
		{"missing.handle", "java", "java.lang.ClassNotFoundException", "no class missing", ""},
		{"all.missing", "java", "java.lang.NoSuchMethodException", "all has no method missing", ""},
		{"all.not_callable", "java", "java.lang.NoSuchMethodException", "all has no method not_callable", ""},
		{"all.many", "java", "java.lang.NoSuchMethodException", "several methods many", ""},
		{"all.unknown", "java", "java.lang.NoSuchMethodException", "takes a java.lang.Thread", ""},
		{"all", "java", "java.lang.IllegalArgumentException", "not Class.method", ""},
		{"raising.handle", "go", "*runtimes_test.rangeError", "at import", "gofunction_test.go:"},
		{"exiting.handle", "python ruby", "SystemExit", "not today", ""},
		{"exiting.handle", "php", "Exit", "called exit", ""},
		{"missing.handle", "python", "ModuleNotFoundError", "missing", ""},
		{"missing.handle", "node", "Error", "no missing.js", ""},
		{"missing.handle", "php", "RuntimeException", "no missing.php", ""},
		{"missing.handle", "ruby", "LoadError", "no missing.rb", ""},
		{"all.missing", "python", "AttributeError", "module 'all' has no function 'missing'", ""},
		{"all.missing", "node", "TypeError", "all exports no missing", ""},
		{"all.missing", "php", "TypeError", "all.php defines no function missing", ""},
		{"all.missing", "ruby", "NameError", "all.rb defines no method missing", ""},
		{"all.Missing::of", "php", "TypeError", "all.php defines no class Missing", ""},
		{"all.Counter::missing", "php", "TypeError", "class Counter has no method missing", ""},
		{"all.Missing.handle", "ruby", "NameError", "uninitialized constant Missing", ""},
		{"all.Outer.missing", "ruby", "NameError", "all.rb defines no method Outer.missing", ""},
		{"all.not_callable", "python node", "TypeError", "not a function", ""},
		{"all", "python", "ValueError", "not module.function", ""},
		{"all", "node", "TypeError", "not file.export", ""},
		{"all", "php", "ValueError", "not file.function", ""},
		{"all", "ruby", "ArgumentError", "not file.method", ""},
	}
	for _, l := range languages(t) {
		for _, tt := range tests {
			if !l.is(tt.only) {
				continue
			}
			t.Run(l.String()+" "+tt.handler, func(t *testing.T) {
				t.Parallel()
				i := l.start(t, tt.handler)
				_, err := i.Ready(t.Context())
				var f *channel.Failure
				if !errors.As(err, &f) {
					t.Fatalf("got %v, want a Failure", err)
				}
				if f.Type != tt.typ || !strings.Contains(f.Message, tt.message) || !strings.Contains(f.Stack, tt.stack) || !f.Load {
					t.Errorf("got %+v, want %s: …%s… at …%s…", f, tt.typ, tt.message, tt.stack)
				}
				if strings.Contains(f.Stack, "importlib") || strings.Contains(f.Stack, "node:internal") || strings.Contains(f.Stack, "fre.bootstrap") {
					t.Errorf("stack shows the loader:\n%s", f.Stack)
				}
				<-i.exited
				if code := i.exitCode(); code != 1 {
					t.Errorf("exit status %d, want 1", code)
				}
			})
		}
	}
}

// TestModules: A handler is found in each kind of module of its language.
func TestModules(t *testing.T) {
	for _, l := range languages(t) {
		for handler, want := range map[string]map[string]string{
			"node": {
				"module.handle": "esm", "module.other": "default", "common.handle": "cjs", "named/main.handle": "main", "named/waits.handle": "type",
				"named/exports.handle": "exports", "named/common.handle": "index.cjs", "named/modules.handle": "index.mjs",
			},
			"php":  {"all.Counter::of": "static", "all.Counter::count": "1"},
			"ruby": {"all.Outer.handle": "module", "all.Outer::Inner.count": "1"},
		}[l.name] {
			got, err := l.start(t, handler).invoke(t.Context(), "")
			if err != nil || got.Body != want {
				t.Errorf("%s: got %q, %v, want %q", handler, got.Body, err, want)
			}
		}
	}
}

// TestReady: READY names the runtime and the number of concurrent events.
func TestReady(t *testing.T) {
	for _, l := range languages(t) {
		r, err := l.start(t, "all.text", "FRE_CONCURRENCY=7").Ready(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := 7
		if l.single {
			want = 1
		}
		if r.Concurrency != want || !strings.HasPrefix(r.Runtime, l.name+" ") {
			t.Errorf("%s: %+v", l, r)
		}
	}
}

// TestLogsAndPrints: Log lines carry the event and the level; printed text goes to stdout and
// stderr of the instance.
func TestLogsAndPrints(t *testing.T) {
	for _, l := range languages(t) {
		t.Run(l.String(), func(t *testing.T) {
			i := l.start(t, "all.logs")
			if _, err := i.invoke(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"1 debug d", "1 info i 7", "1 warning w", "1 error e"} {
				if got := <-i.logs; got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
			i = l.start(t, "all.prints")
			if _, err := i.invoke(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			if err := i.Stop(); err != nil {
				t.Fatal(err)
			}
			<-i.exited
			if code := i.exitCode(); code != 0 {
				t.Errorf("exit status %d after STOP", code)
			}
			if i.stdout.String() != "to stdout\n" || i.stderr.String() != "to stderr\n" {
				t.Errorf("stdout %q, stderr %q", &i.stdout, &i.stderr)
			}
		})
	}
}

// TestBigBodies: A body of up to 8 MiB comes back unchanged, in each language.
func TestBigBodies(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 8<<20/16)
	for _, l := range languages(t) {
		for _, concurrency := range []string{"1", "4"} {
			t.Run(l.String()+" "+concurrency, func(t *testing.T) {
				i := l.start(t, "all.echo", "FRE_CONCURRENCY="+concurrency, "FRE_FILES=/tmp")
				for _, size := range []int{32<<10 + 1, 256 << 10, 1 << 20, 8 << 20} {
					got, err := i.invoke(t.Context(), big[:size])
					if err != nil || got.Body != big[:size] {
						t.Errorf("%d bytes came back of %d, %v", len(got.Body), size, err)
					}
				}
			})
		}
	}
}

// TestCancel: A cancelled event ends its stream or its handler, and the event's place is free.
func TestCancel(t *testing.T) {
	for _, l := range languages(t) {
		for _, concurrency := range []string{"1", "4"} {
			t.Run(l.String()+" stream "+concurrency, func(t *testing.T) {
				i := l.start(t, "all.endless", "FRE_CONCURRENCY="+concurrency)
				for range 2 {
					finished := make(chan struct{})
					r, err := i.Invoke(t.Context(), &channel.Invocation{Finished: func() { close(finished) }})
					if err != nil {
						t.Fatal(err)
					}
					if _, err := io.CopyN(io.Discard, r.Body, 1<<20); err != nil {
						t.Fatal(err)
					}
					if err := r.Body.Close(); err != nil {
						t.Fatal(err)
					}
					<-finished // the function ended early, and its place is free
				}
			})
		}
		t.Run(l.String()+" handler", func(t *testing.T) {
			i := l.start(t, "all.waits")
			ctx, cancel := context.WithCancelCause(t.Context())
			cause := errors.New("client gone")
			go func() {
				<-i.logs
				cancel(cause)
			}()
			if _, err := i.Invoke(ctx, &channel.Invocation{}); !errors.Is(err, cause) {
				t.Errorf("got %v, want the cause", err)
			}
		})
	}
}

func TestConcurrent(t *testing.T) {
	for _, l := range languages(t) {
		t.Run(l.String(), func(t *testing.T) {
			handler := "all.concurrent"
			if l.single { // takes the events in sequence
				handler = "all.echo"
			}
			i := l.start(t, handler, "FRE_CONCURRENCY=8")
			var wg sync.WaitGroup
			for n := range 104 { // eight meet at a time
				wg.Go(func() {
					want := strings.Repeat(fmt.Sprint(n), 1000)
					got, err := i.invoke(t.Context(), want)
					if err != nil || got.Body != want {
						t.Errorf("%d: got %d bytes, %v", n, len(got.Body), err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestExpectedQuick: Events that wait for each other meet, even after earlier events were so quick
// that no second thread read the channel.
func TestExpectedQuick(t *testing.T) {
	for _, l := range languages(t) {
		if !l.is("python") {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			i := l.start(t, "all.meets", "FRE_CONCURRENCY=4")
			for range 5 {
				for range 50 {
					if got, err := i.invoke(t.Context(), "quick"); err != nil || got.Body != "quick" {
						t.Fatalf("got %q, %v", got.Body, err)
					}
				}
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() {
						if got, err := i.invoke(t.Context(), "wait"); err != nil || got.Body != "wait" {
							t.Errorf("got %q, %v", got.Body, err)
						}
					})
				}
				wg.Wait()
			}
		})
	}
}

// TestFramesAhead: Events that arrive during another event are read together, complete or in part,
// and each gets its answer.
func TestFramesAhead(t *testing.T) {
	for _, l := range languages(t) {
		if !l.is("python node") {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			i := l.start(t, "all.echo", "FRE_CONCURRENCY=1")
			var wg sync.WaitGroup
			for n := range 60 {
				wg.Go(func() {
					want := strings.Repeat(string(rune('a'+n%26)), n*n*10)
					if got, err := i.invoke(t.Context(), want); err != nil || got.Body != want {
						t.Errorf("%d: got %d bytes of %d, %v", n, len(got.Body), len(want), err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestAnswersTogether: Answers to simultaneous events may go out together, but neither a slow event
// nor the instance's end holds an answer back.
func TestAnswersTogether(t *testing.T) {
	event := func(id byte, body string) string {
		meta := `{"function":"f","id":"1","tenant":"default","deadline_ms":4102444800000,"method":"GET","path":"/","query":"","headers":[]}`
		h := rawHeader(3, 4+len(meta)+len(body))
		h[8] = id
		return string(binary.LittleEndian.AppendUint32(h, uint32(len(meta)))) + meta + body
	}
	for _, l := range languages(t) {
		if l.name != "python" {
			continue
		}
		for last, frame := range map[string]string{"waits": event(20, "wait"), "STOP": string(rawHeader(0x0a, 0))} {
			t.Run(l.String()+" "+last, func(t *testing.T) {
				i := l.startRaw(t, "all.meets", "FRE_CONCURRENCY=4")
				i.loadRaw(t)
				r := bufio.NewReader(i.raw)
				next := func() (kind, id byte) {
					t.Helper()
					var h [16]byte
					if _, err := io.ReadFull(r, h[:]); err != nil {
						t.Fatal(err)
					}
					if _, err := r.Discard(int(binary.LittleEndian.Uint32(h[:]))); err != nil {
						t.Fatal(err)
					}
					return h[4], h[8]
				}
				if kind, _ := next(); kind != 1 {
					t.Fatalf("frame kind 0x%02x in place of READY", kind)
				}
				for id := range byte(100) { // until the bootstrap knows that they are quick
					if _, err := io.WriteString(i.raw, event(id+100, "quick")); err != nil {
						t.Fatal(err)
					}
					_, _ = next()
				}
				// A handler waits 10 minutes for the other.
				if err := i.raw.SetReadDeadline(time.Now().Add(5 * time.Minute)); err != nil {
					t.Fatal(err)
				}
				var all strings.Builder
				for id := range byte(8) {
					all.WriteString(event(id+1, "quick"))
				}
				if _, err := io.WriteString(i.raw, all.String()+frame); err != nil {
					t.Fatal(err)
				}
				answered := map[byte]bool{}
				for range 8 {
					kind, id := next()
					if answered[id] = true; kind != 4 {
						t.Errorf("frame kind 0x%02x for event %d", kind, id)
					}
				}
				if len(answered) != 8 || answered[20] {
					t.Errorf("the answers are to %v", answered)
				}
				if last == "STOP" {
					if b, err := io.ReadAll(r); len(b) > 0 || err != nil {
						t.Errorf("%d bytes more, %v", len(b), err)
					}
					return
				}
				if _, err := io.WriteString(i.raw, event(21, "wait")); err != nil {
					t.Fatal(err)
				}
				_, one := next()
				if _, other := next(); one+other != 41 {
					t.Errorf("the last answers are to %d and %d", one, other)
				}
			})
		}
	}
}

// TestDies: The end of an instance's process fails its event.
func TestDies(t *testing.T) {
	for _, l := range languages(t) {
		i := l.start(t, "all.dies")
		if _, err := i.invoke(t.Context(), ""); !errors.Is(err, channel.ErrClosed) {
			t.Errorf("%s: got %v, want ErrClosed", l, err)
		}
	}
}

// An exception outside of an event's own code ends the instance, and the events in flight get its
// message.
func TestNodeUncaught(t *testing.T) {
	for _, l := range languages(t) {
		if l.name != "node" {
			continue
		}
		for handler, want := range map[string]string{"all.rejects": "nobody waits", "all.uncaught": "nobody catches"} {
			i := l.start(t, handler)
			_, err := i.invoke(t.Context(), "")
			var f *channel.Failure
			if !errors.As(err, &f) || f.Message != want {
				t.Errorf("%s: got %v, want %s", handler, err, want)
			}
			<-i.exited
			if code := i.exitCode(); code != 1 {
				t.Errorf("%s: exit status %d, want 1", handler, code)
			}
		}
	}
}

// TestMalformedFromEngine: An invalid frame ends each bootstrap.
func TestMalformedFromEngine(t *testing.T) {
	tests := map[string]string{
		"length":        "\xff\xff\xff\xff\x03\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00",
		"kind":          "\x00\x00\x00\x00\x63\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00",
		"own kind":      "\x00\x00\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00",
		"flags":         "\x00\x00\x00\x00\x03\x80\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00",
		"fds":           "\x00\x00\x00\x00\x03\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00",
		"no metadata":   "\x00\x00\x00\x00\x03\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00",
		"metadata long": "\x04\x00\x00\x00\x03\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00",
		"no JSON":       "\x05\x00\x00\x00\x03\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00{",
		"no object":     "\x05\x00\x00\x00\x03\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x007",
	}
	for _, l := range languages(t) {
		for _, concurrency := range []string{"1", "4"} {
			for name, raw := range tests {
				t.Run(l.String()+" "+concurrency+" "+name, func(t *testing.T) {
					t.Parallel()
					i := l.startRaw(t, "all.text", "FRE_CONCURRENCY="+concurrency)
					i.loadRaw(t)
					if _, err := io.WriteString(i.raw, raw); err != nil {
						t.Fatal(err)
					}
					<-i.exited
					if code := i.exitCode(); code != 70 {
						t.Errorf("exit status %d, want 70", code)
					}
				})
			}
		}
	}
}

// An instance ends by itself if the engine closes the channel.
func TestEngineGone(t *testing.T) {
	for _, l := range languages(t) {
		for _, concurrency := range []string{"1", "4"} {
			i := l.start(t, "all.text", "FRE_CONCURRENCY="+concurrency)
			if _, err := i.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			_ = i.Close()
			<-i.exited
			if code := i.exitCode(); code != 0 {
				t.Errorf("%s: exit status %d", l, code)
			}
		}
	}
}

// BenchmarkWarm measures an event of 100 bytes, there and back.
func BenchmarkWarm(b *testing.B) {
	for _, l := range languages(b) {
		b.Run(l.String(), func(b *testing.B) {
			i := l.start(b, "all.text")
			if _, err := i.Ready(b.Context()); err != nil {
				b.Fatal(err)
			}
			body := strings.Repeat("x", 100)
			for b.Loop() {
				r, err := i.Invoke(b.Context(), &channel.Invocation{Request: channel.Request{Method: "POST", Path: "/", Body: strings.NewReader(body)}})
				if err != nil {
					b.Fatal(err)
				}
				_ = r.Body.Close()
			}
		})
	}
}

// BenchmarkStart measures the time from fork to READY.
func BenchmarkStart(b *testing.B) {
	for _, l := range languages(b) {
		b.Run(l.String(), func(b *testing.B) {
			for b.Loop() {
				i := l.start(b, "all.text")
				if _, err := i.Ready(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
