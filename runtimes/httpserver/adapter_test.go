package httpserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/function/adapter"
)

// TestMain is the adapter or a server if it is started as one.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("FRE_CHANNEL") != "", os.Getenv("FRE_HTTP_BECOME") != "":
		os.Exit(adapter.Main(os.Args[1:]))
	case os.Getenv("AWS_LAMBDA_RUNTIME_API") != "":
		client(os.Args[1])
	case os.Getenv("GATEWAY_INTERFACE") != "":
		program()
	case os.Getenv("PORT") != "":
		serve(os.Args[1])
	}
	os.Exit(m.Run())
}

// serve is a server that mode selects.
func serve(mode string) {
	done := make(chan os.Signal, 1)
	signal.Notify(done, syscall.SIGTERM)
	go func() {
		<-done
		fmt.Println("stopped")
		os.Exit(0)
	}()
	if mode == "exits" {
		fmt.Fprintln(os.Stderr, "no such module: x")
		os.Exit(3)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:"+os.Getenv("PORT"))
	switch mode {
	case "deaf":
		_ = l.Close()
		fmt.Fprintln(os.Stderr, "listening elsewhere")
		untilKilled()
	case "inherits":
		if err == nil {
			panic("nobody has bound the port")
		}
		if os.Getenv("LISTEN_FDS") != "1" || os.Getenv("LISTEN_PID") != fmt.Sprint(os.Getpid()) {
			panic(fmt.Sprint("sockets are not for this process: ", os.Environ()))
		}
		l, err = net.FileListener(os.NewFile(3, "listener"))
	}
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	var asked atomic.Int32
	mux.HandleFunc("/up", func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/x")
		w.Header()["X-Two"] = []string{"1", "2"}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintf(w, "%s %s %s %q %d %v %s %s %v", r.Method, r.RequestURI, r.Host, r.Header["X-Many"], r.ContentLength, r.TransferEncoding, r.Header.Get("X-Fre-Id"), body, err)
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(flushing{w}, r.Body)
	})
	mux.HandleFunc("/none", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "hinted")
	})
	mux.HandleFunc("/close", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "closed")
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 10_000))
		}
		fmt.Println("gone")
	})
	mux.HandleFunc("/waits", func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println("waiting")
		<-r.Context().Done()
		fmt.Println("gone")
	})
	mux.HandleFunc("/dies", func(http.ResponseWriter, *http.Request) {
		fmt.Fprintln(os.Stderr, "out of luck")
		os.Exit(5)
	})
	mux.HandleFunc("/breaks", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = flushing{w}.Write([]byte("begun"))
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/shout", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "shout" || r.Header.Get("Connection") != "Upgrade" {
			w.WriteHeader(http.StatusUpgradeRequired)
			return
		}
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: shout\r\nX-Volume: 11\r\n\r\n")
		buf := make([]byte, 1000)
		for err == nil {
			var n int
			n, err = rw.Read(buf)
			_, _ = c.Write(bytes.ToUpper(buf[:n]))
		}
		fmt.Println("hoarse")
	})
	mux.HandleFunc("/raw/{answer}", func(w http.ResponseWriter, r *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, map[string]string{
			"switch":   "HTTP/1.1 101 Switching Protocols\r\n\r\n",
			"garbage":  "what?\r\n\r\n",
			"status":   "HTTP/1.1 999 Odd\r\n\r\n",
			"short":    "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
			"headers":  "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 300) + "\r\n",
			"old":      "HTTP/1.0 200 OK\r\nA: b\r\n\r\nabc",
			"hang up":  "",
			"trailers": "HTTP/1.1 200 OK\r\nTrailer: T\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: x\r\n\r\n",
		}[r.PathValue("answer")])
	})
	server := &http.Server{Handler: mux}
	if mode == "impatient" { // closes each connection
		server.SetKeepAlivesEnabled(false)
	}
	fmt.Fprintln(os.Stderr, server.Serve(l))
}

type flushing struct{ w http.ResponseWriter }

// untilKilled blocks. The runtime reports no deadlock in a process that waits for a signal.
func untilKilled() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt)
	<-c
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}

// function is an adapter with its server.
type function struct {
	*channel.Conn
	raw            *net.UnixConn
	cmd            *exec.Cmd
	stdout, stderr lines
	exited         chan struct{}
}

// lines keeps the written bytes; a test can wait for a part of them.
type lines struct {
	mu   sync.Mutex
	b    bytes.Buffer
	more chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(p)
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	return len(p), nil
}

func (l *lines) wait(t *testing.T, want string) {
	t.Helper()
	for {
		l.mu.Lock()
		if strings.Contains(l.b.String(), want) {
			l.mu.Unlock()
			return
		}
		if l.more == nil {
			l.more = make(chan struct{})
		}
		more := l.more
		l.mu.Unlock()
		select {
		case <-more:
		case <-t.Context().Done():
			t.Fatalf("never said %q", want)
		}
	}
}

// startServer runs the adapter with a server in the given mode.
func startServer(t *testing.T, mode string, env ...string) *function {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startWith(t, []string{self, mode}, env...)
}

func startWith(t *testing.T, args []string, env ...string) *function {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "engine"), os.NewFile(uintptr(fds[1]), "function")
	defer ours.Close()
	defer theirs.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	f := &function{raw: c.(*net.UnixConn), exited: make(chan struct{})}
	f.cmd = exec.Command(self, args...)
	f.cmd.Env = append([]string{
		"PATH=/usr/bin:/bin", "FRE_CHANNEL=3", "FRE_CONCURRENCY=8", "FRE_HTTP_LISTEN=port", "FRE_HTTP_PORT=0", "FRE_HTTP_TIMEOUT=5m", "GOTRACEBACK=none",
	}, env...)
	f.cmd.ExtraFiles = []*os.File{theirs}
	f.cmd.Stdout, f.cmd.Stderr = &f.stdout, &f.stderr
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = f.cmd.Wait()
		close(f.exited)
	}()
	f.Conn = channel.NewConn(f.raw, channel.Config{})
	t.Cleanup(func() {
		_ = f.Close()
		_ = syscall.Kill(-f.cmd.Process.Pid, syscall.SIGKILL) // the server, too
		<-f.exited
		if t.Failed() {
			t.Logf("%q\nstdout: %s\nstderr: %s", args, &f.stdout.b, &f.stderr.b)
		}
	})
	return f
}

type answer struct {
	Status  int
	Headers [][2]string
	Body    string
}

func (f *function) get(t *testing.T, in *channel.Invocation, body io.Reader) (answer, error) {
	t.Helper()
	sent := *in
	sent.Body = body
	r, err := f.Invoke(t.Context(), &sent)
	if err != nil {
		return answer{}, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	headers := slices.DeleteFunc(slices.Clone(r.Headers), func(h [2]string) bool { return h[0] == "Date" })
	return answer{r.Status, headers, string(b)}, err
}

// TestRequests: The server gets each event as an HTTP request, on $PORT or on an inherited socket.
func TestRequests(t *testing.T) {
	text := [][2]string{{"Content-Type", "text/plain; charset=utf-8"}}
	all := [][2]string{{"Content-Type", "text/x"}, {"X-Two", "1"}, {"X-Two", "2"}}
	big := strings.Repeat("0123456789", 100_000)
	for _, mode := range []struct{ name, env string }{{"binds", "FRE_HTTP_READY="}, {"binds", "FRE_HTTP_READY=/up"}, {"inherits", "FRE_HTTP_LISTEN=fd"}, {"impatient", "FRE_HTTP_READY="}} {
		f := startServer(t, mode.name, mode.env)
		if r, err := f.Ready(t.Context()); err != nil || r.Concurrency != 8 {
			t.Fatalf("%s: %+v, %v", mode, r, err)
		}
		for _, tt := range []struct {
			event channel.Invocation
			body  string
			want  answer
		}{
			{channel.Invocation{
				ID: "id-1",
				Request: channel.Request{
					Method: "PUT", Path: "/a%20b/%C3%BC", Query: "x=1&&y",
					Headers: [][2]string{{"Host", "example.org:80"}, {"x-many", "a"}, {"X-Many", "b"}, {"connection", "close"}, {"X-Fre-Id", "forged"}, {"bad name", "x"}, {"x-many", "c\r\nX-Many: d"}},
				},
			}, "body", answer{202, all, `PUT /a%20b/%C3%BC?x=1&&y example.org:80 ["a" "b"] 4 [] id-1 body <nil>`}},
			{channel.Invocation{Request: channel.Request{Method: "GET", Path: "/"}}, "", answer{202, all, `GET / localhost [] 0 []   <nil>`}},
			{channel.Invocation{Request: channel.Request{Method: "POST", Path: "/", Headers: [][2]string{{"Transfer-Encoding", "chunked"}}}}, "", answer{202, all, `POST / localhost [] 0 []   <nil>`}},
			{channel.Invocation{Request: channel.Request{Method: "HEAD", Path: "/none"}}, "", answer{204, [][2]string{}, ""}},
			{channel.Invocation{Request: channel.Request{Method: "HEAD", Path: "/"}}, "", answer{202, all, ""}},
			{channel.Invocation{Request: channel.Request{Method: "GET", Path: "/hints"}}, "", answer{200, text, "hinted"}},
			{channel.Invocation{Request: channel.Request{Method: "GET", Path: "/close"}}, "", answer{200, text, "closed"}},
			{channel.Invocation{Request: channel.Request{Method: "POST", Path: "/echo"}}, big, answer{200, text, big}},
			{channel.Invocation{Request: channel.Request{Method: "POST", Path: "/echo", Headers: [][2]string{{"Content-Length", "1000000"}}}}, big, answer{200, text, big}},
			{channel.Invocation{Request: channel.Request{Method: "GET", Path: "/raw/old"}}, "", answer{200, [][2]string{{"A", "b"}}, "abc"}},
			{channel.Invocation{Request: channel.Request{Method: "GET", Path: "/raw/trailers"}}, "", answer{200, [][2]string{}, "abc"}},
			{channel.Invocation{Request: channel.Request{Method: "GET", Path: "/a b"}}, "", answer{400, [][2]string{{"content-type", text[0][1]}}, "\"GET /a b\" cannot be the target of a request\n"}},
			{channel.Invocation{Request: channel.Request{Method: "GET", Path: "/", Query: "\r\nX: y"}}, "", answer{400, [][2]string{{"content-type", text[0][1]}}, "\"GET /?\\r\\nX: y\" cannot be the target of a request\n"}},
		} {
			for range 2 {
				got, err := f.get(t, &tt.event, strings.NewReader(tt.body))
				if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
					t.Errorf("%s, %s %s: %v\n%s", mode, tt.event.Method, tt.event.Path, err, diff)
				}
			}
		}
	}
}

// TestBadAnswers: An invalid answer of the server is an error of the server.
func TestBadAnswers(t *testing.T) {
	f := startServer(t, "binds")
	for path, want := range map[string]string{
		"/raw/switch": "switched protocols", "/raw/garbage": "malformed HTTP", "/raw/status": "status 999", "/raw/headers": "300 headers, at most 256",
		"/raw/hang%20up": "EOF", "/raw/short": "unexpected EOF", "/breaks": "unexpected EOF",
	} {
		got, err := f.get(t, &channel.Invocation{Request: channel.Request{Method: "GET", Path: path}}, nil)
		var failure *channel.Failure
		if !errors.As(err, &failure) || failure.Type != "ServerError" || !strings.Contains(failure.Message, want) {
			t.Errorf("%s: %+v, %v, want %s", path, got, err, want)
		}
		if path == "/breaks" && got.Body != "begun" {
			t.Errorf("%s: body %q", path, got.Body)
		}
	}
}

// An answer streams while its request streams.
func TestStreams(t *testing.T) {
	f := startServer(t, "binds")
	read, write := io.Pipe()
	defer write.Close()
	go func() { _, _ = io.WriteString(write, "x") }()
	r, err := f.Invoke(t.Context(), &channel.Invocation{Request: channel.Request{Method: "POST", Path: "/echo", Body: read}, Flows: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := io.CopyN(io.Discard, r.Body, 1); err != nil {
		t.Fatal(err)
	}
	for _, tick := range []string{"one", "two"} {
		if _, err := io.WriteString(write, tick); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(tick))
		if _, err := io.ReadFull(r.Body, got); err != nil || string(got) != tick {
			t.Fatalf("got %q, %v, want %q", got, err, tick)
		}
	}
}

// A server may switch the protocol if the event asks for it. Then bytes flow both ways until one
// side ends.
func TestUpgrade(t *testing.T) {
	f := startServer(t, "binds")
	shout := channel.Invocation{Request: channel.Request{Method: "GET", Path: "/shout", Upgrade: "shout", Headers: [][2]string{{"X-A", "b"}}}}
	for _, end := range []string{"client", "event"} {
		ctx, cancel := context.WithCancel(t.Context())
		read, write := io.Pipe()
		shout.Body = read
		r, err := f.Invoke(ctx, &shout)
		if err != nil {
			t.Fatal(err)
		}
		if want := [][2]string{{"X-Volume", "11"}, {"Upgrade", "shout"}}; r.Status != 101 || cmp.Diff(want, r.Headers) != "" {
			t.Errorf("%d %q", r.Status, r.Headers)
		}
		for _, word := range []string{"one", "two"} {
			if _, err := io.WriteString(write, word); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(word))
			if _, err := io.ReadFull(r.Body, got); err != nil || string(got) != strings.ToUpper(word) {
				t.Fatalf("%q, %v", got, err)
			}
		}
		if end == "event" {
			cancel()
			if _, err := io.ReadAll(r.Body); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
		} else {
			_ = write.Close()
			if rest, err := io.ReadAll(r.Body); err != nil || len(rest) > 0 {
				t.Errorf("at the end %q, %v", rest, err)
			}
		}
		_ = write.Close()
		_ = r.Body.Close()
		f.stdout.wait(t, "hoarse")
		cancel()
	}
	// A server that refuses the switch, or was not asked, answers normally.
	shout.Upgrade = "whisper"
	for _, upgrade := range []string{"whisper", ""} {
		shout.Upgrade = upgrade
		read, write := io.Pipe()
		if upgrade == "" {
			_ = write.Close()
		}
		got, err := f.get(t, &shout, read)
		if err != nil || got.Status != 426 {
			t.Errorf("%q: %+v, %v", upgrade, got, err)
		}
		_ = write.Close()
	}
}

// A cancelled event closes the server's connection, and the event's place is free.
func TestCancel(t *testing.T) {
	f := startServer(t, "binds")
	for _, path := range []string{"/waits", "/endless"} {
		ctx, cancel := context.WithCancel(t.Context())
		finished := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			r, err := f.Invoke(ctx, &channel.Invocation{Request: channel.Request{Method: "GET", Path: path}, Finished: func() { close(finished) }})
			if err == nil {
				_, err = io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
				_ = r.Body.Close()
			}
			done <- err
		}()
		if path == "/waits" {
			f.stdout.wait(t, "waiting")
			cancel()
		}
		if err := <-done; path == "/waits" && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", path, err)
		}
		<-finished
		f.stdout.wait(t, "gone")
		cancel()
	}
	if got, err := f.get(t, &channel.Invocation{Request: channel.Request{Method: "GET", Path: "/none"}}, nil); err != nil || got.Status != 204 {
		t.Errorf("after that: %+v, %v", got, err)
	}
}

// TestConcurrent: The server answers 64 events at once.
func TestConcurrent(t *testing.T) {
	f := startServer(t, "binds")
	var wg sync.WaitGroup
	for n := range 64 {
		wg.Go(func() {
			want := strings.Repeat(fmt.Sprint(n), 5000)
			got, err := f.get(t, &channel.Invocation{Request: channel.Request{Method: "POST", Path: "/echo"}}, strings.NewReader(want))
			if err != nil || got.Body != want {
				t.Errorf("%d: %d bytes, %v", n, len(got.Body), err)
			}
		})
	}
	wg.Wait()
}

// deafTime bounds the start of a mode: "deaf" never listens, and has printed its message by then
// even on a slow machine.
var deafTime = map[string]string{"deaf": "FRE_HTTP_TIMEOUT=5s"}

// The error of a server that does not start, or dies, has the server's last lines.
func TestServerFails(t *testing.T) {
	for mode, want := range map[string]channel.Failure{
		"exits": {Type: "ServerExited", Message: "the server ended with exit status 3", Stack: "no such module: x\n", Load: true},
		"deaf":  {Type: "NotReady", Message: "listen on $PORT", Stack: "listening elsewhere\n", Load: true},
	} {
		f := startServer(t, mode, deafTime[mode])
		_, err := f.Ready(t.Context())
		var failure *channel.Failure
		if !errors.As(err, &failure) || failure.Type != want.Type || !strings.Contains(failure.Message, want.Message) || failure.Stack != want.Stack || !failure.Load {
			t.Errorf("%s: got %+v, %v", mode, failure, err)
		}
		<-f.exited
		if code := f.cmd.ProcessState.ExitCode(); code != 1 {
			t.Errorf("%s: exit status %d, want 1", mode, code)
		}
	}
	f := startServer(t, "binds")
	_, err := f.get(t, &channel.Invocation{Request: channel.Request{Method: "GET", Path: "/dies"}}, nil)
	var failure *channel.Failure
	if !errors.As(err, &failure) || failure.Message != "the server ended with exit status 5" || failure.Stack != "out of luck\n" {
		t.Errorf("got %+v, %v", failure, err)
	}
	select {
	case <-f.Ending():
	default:
		t.Error("an event has failed of the server's end before the engine was told of that")
	}
	<-f.exited
	if code := f.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
}

// TestNoProgram: The error for a missing server program names the program.
func TestNoProgram(t *testing.T) {
	f := startWith(t, []string{"no-such-server", "$PORT"})
	_, err := f.Ready(t.Context())
	var failure *channel.Failure
	if !errors.As(err, &failure) || failure.Type != "StartError" || !strings.Contains(failure.Message, "executable file not found") {
		t.Errorf("got %v", err)
	}
}

// STOP reaches the server as SIGTERM, after the answers to the events in flight.
func TestStop(t *testing.T) {
	f := startServer(t, "binds")
	if _, err := f.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.Stop(); err != nil {
		t.Fatal(err)
	}
	<-f.exited
	f.stdout.wait(t, "stopped")
	if code := f.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	f = startServer(t, "binds")
	if _, err := f.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = f.Close() // the engine is gone
	<-f.exited
	f.stdout.wait(t, "stopped")
}

// TestSignals: SIGTERM to the adapter stops the server.
func TestSignals(t *testing.T) {
	f := startServer(t, "binds")
	if _, err := f.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-f.exited
	f.stdout.wait(t, "stopped")
}

// An invalid frame ends the adapter, as it ends each bootstrap.
func TestMalformed(t *testing.T) {
	f := startServer(t, "binds")
	if _, err := f.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f.raw, "\xff\xff\xff\xff\x03\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	<-f.exited
	if code := f.cmd.ProcessState.ExitCode(); code != 70 {
		t.Errorf("exit status %d, want 70", code)
	}
}
