package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

const maxBody = 1 << 20

var fnBinary []byte // the program of engine/testdata/fn

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if os.Geteuid() == 0 {
			if err := sandbox.Isolate(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		dir, err := os.MkdirTemp("", "fre-gateway-test")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		path := os.Getenv("FRE_TEST_FN") // set on machines without Go
		if path == "" {
			path = filepath.Join(dir, "fn")
			build := exec.CommandContext(context.Background(), "go", "build", "-o", path, "../engine/testdata/fn")
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build engine/testdata/fn: %v\n%s", err, out)
				return 1
			}
		}
		if fnBinary, err = os.ReadFile(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// rig is a gateway in front of its own engine.
type rig struct {
	t     *testing.T
	eng   *engine.Engine
	store *store.Store
	url   string
	addr  string
	order *sync.Mutex // orders a fake's events and the test's actions in between
	end   func()      // stops a fake's server and waits for the handlers; the second call does nothing
}

func open(t *testing.T) *rig {
	t.Helper()
	return openWith(t, func(*Config) {})
}

func openWith(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	return openServer(t, change, 0)
}

// openServer is openWith, with a stall time of connections and with connections lent to functions
// named lent.
func openServer(t *testing.T, change func(*Config), stall time.Duration) *rig {
	t.Helper()
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	state, log, reg := t.TempDir(), slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	st, err := store.Open(filepath.Join(state, "store"), log)
	if err != nil {
		t.Fatal(err)
	}
	host, err := sandbox.Open(sandbox.Config{Dir: filepath.Join(state, "run"), Log: log, PoolSize: 4})
	if err != nil {
		t.Fatal(errors.Join(err, st.Close()))
	}
	eng, err := engine.Open(engine.Config{
		Store: st, Sandboxes: host, Builder: &image.Builder{Store: st}, StateDir: state, Log: log, Metrics: reg,
		LendConnections: []string{"default/lent"},
	})
	if err != nil {
		t.Fatal(errors.Join(err, host.Close(), st.Close()))
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Engine: eng, Log: log, MaxBodyBytes: maxBody, Metrics: reg}
	change(&cfg)
	g := New(cfg)
	srv := httpserver.New(httpserver.Config{Handler: g, Refuse: g.Refuse, StallTimeout: stall})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	r := &rig{t: t, eng: eng, store: st, addr: l.Addr().String(), url: "http://" + l.Addr().String()}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := errors.Join(eng.Close(ctx), host.Close(), st.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) deploy(name string, change func(*image.Config)) {
	r.t.Helper()
	w, err := r.store.Create()
	if err != nil {
		r.t.Fatal(err)
	}
	defer w.Abort()
	if err := w.File("function/fn", 0o755, time.Unix(1, 0), bytes.NewReader(fnBinary)); err != nil {
		r.t.Fatal(err)
	}
	tree, err := w.Commit(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := image.Config{
		Base: "native", Args: []string{"/function/fn"}, Protocol: image.ProtocolChannel, Tenant: "default",
		Instances: template.Instances{Isolation: template.IsolationInstance, Concurrency: 1, Max: 2, Idle: time.Minute},
		Resources: template.Resources{MemoryBytes: 64 << 20, CPUMillis: 1000, Pids: 32, TmpBytes: 1 << 20, Files: 64, Timeout: time.Minute},
	}
	if change != nil {
		change(&cfg)
	}
	raw, err := json.Marshal(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	img, err := r.store.PutImage(r.t.Context(), store.Manifest{
		Name: name, Version: "1", Config: raw, Parts: []store.Part{{Kind: "code", Name: "fn", Tree: tree}},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.eng.Deploy(r.t.Context(), name, img, engine.DeployOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func stdio(c *image.Config) {
	c.Protocol, c.Instances.Isolation = image.ProtocolStdio, template.IsolationEvent
}

// brief is a function whose events time out; some starts take longer.
func brief(c *image.Config) { c.Resources.Timeout = 2 * time.Second }

// conn is a client connection with access to every byte.
type conn struct {
	*bufio.Reader
	net.Conn
	t *testing.T
}

func (c conn) Read(p []byte) (int, error) { return c.Reader.Read(p) }

func (r *rig) dial() conn {
	r.t.Helper()
	c, err := (&net.Dialer{}).DialContext(r.t.Context(), "tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		r.t.Fatal(err)
	}
	return conn{bufio.NewReader(c), c, r.t}
}

func (c conn) send(format string, a ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.Conn, format, a...); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads one answer with its body; the error is the body's.
func (c conn) answer(method string) (answer, string, error) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.Reader, &http.Request{Method: method})
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, resp.Close}, string(body), err
}

// answer is a response without its body.
type answer struct {
	StatusCode int
	Header     http.Header
	Close      bool
}

// closed reports whether the server has closed the connection.
func (c conn) closed() bool {
	_, err := c.ReadByte()
	return err != nil
}

// post returns a request with a complete body.
func post(path, header, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\n%sContent-Length: %d\r\n\r\n%s", path, header, len(body), body)
}

// TestStatuses: each way to end an event has its status, shows no detail of the engine, and leaves
// the connection ready for the next request.
func TestStatuses(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	r.deploy("brief", brief)
	r.deploy("one", stdio)
	r.deploy("nothing", func(c *image.Config) { c.Args = []string{"/function/nothing"} })
	r.deploy("load", func(c *image.Config) { c.Env = []string{"FN_LOAD=fail"} })
	large := strings.Repeat("X-L: "+strings.Repeat("<", 10<<10)+"\r\n", 5) // JSON writes six bytes for each <
	tests := []struct {
		name, request string
		status        int
		code          string
	}{
		{"answer", post("/function/f", "", "hello"), 200, ""},
		{"unknown name", post("/function/nobody", "", "hello"), 404, "not_found"},
		{"unknown path", post("/nowhere", "", "hello"), 404, "not_found"},
		{"exception", post("/function/f/fail", "", "x"), 500, "function_error"},
		{"exit status", post("/function/one/fail", "", "x"), 500, "function_error"},
		{"crash", post("/function/f/exit", "", "x"), 502, "function_crashed"},
		{"crash at load", post("/function/load", "", "x"), 502, "function_crashed"},
		{"malformed frame", post("/function/f/garbage", "", "x"), 502, "function_crashed"},
		{"time-out", post("/function/brief/hang", "", "x"), 504, "timeout"},
		{"stuck", post("/function/brief/stuck", "", "x"), 504, "timeout"},
		{"cannot be started", post("/function/nothing", "", "x"), 500, "internal"},
		{"metadata too large", post("/function/f", large, "x"), 431, "header_too_large"},
		{"function's own status", post("/function/f/status?status=503&body=busy", "", "x"), 503, ""},
	}
	c := r.dial()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c.t = t
			c.send("%s", tt.request)
			resp, body, err := c.answer("POST")
			if err != nil {
				t.Fatal(err)
			}
			var e struct {
				Error struct{ Code, Message string }
			}
			if tt.code != "" {
				if err := json.Unmarshal([]byte(body), &e); err != nil {
					t.Errorf("body %q: %v", body, err)
				}
			}
			if resp.StatusCode != tt.status || e.Error.Code != tt.code || resp.Close {
				t.Errorf("status %d, close %v, body %q; want %d %q", resp.StatusCode, resp.Close, body, tt.status, tt.code)
			}
			if strings.Contains(body, "/function/nothing") || strings.Contains(body, "engine_test") || strings.Contains(body, os.TempDir()) {
				t.Errorf("tells of the host: %s", body)
			}
		})
	}
}

// TestBodyTooLarge: a body above the limit is answered 413, with or without a length. A smaller
// body passes completely, even while the answer is on its way.
func TestBodyTooLarge(t *testing.T) {
	r := open(t)
	r.deploy("f", func(c *image.Config) { c.Instances.Max = 1 })
	r.deploy("one", stdio)
	for _, name := range []string{"f", "one"} {
		t.Run(name, func(t *testing.T) {
			url := r.url + "/function/" + name
			for _, n := range []int{100, 40 << 10, 200 << 10, maxBody} {
				body := strings.Repeat("0123456789abcde\n", n/16)
				for _, hide := range []bool{false, true} {
					var in io.Reader = strings.NewReader(body)
					if hide {
						in = io.MultiReader(in) // hides the length
					}
					if status, got := do(t, http.MethodPost, url, in); status != 200 || got != body {
						t.Errorf("%d bytes, chunked %v: status %d, %d bytes", n, hide, status, len(got))
					}
				}
			}
			c := r.dial()
			c.send("POST /function/%s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", name, maxBody+1)
			if resp, body, _ := c.answer("POST"); resp.StatusCode != 413 || !strings.Contains(body, fmt.Sprintf(`"body_too_large","message":"the body is over the limit of %d bytes","next":"send at most %d bytes"`, maxBody, maxBody)) {
				t.Errorf("announced: %d %s", resp.StatusCode, body)
			}
		})
	}
	// After the beginning of an answer 413 is impossible; before, 413 is possible.
	warm, _ := do(t, http.MethodPost, r.url+"/function/f", strings.NewReader("x"))
	if status, body := do(t, http.MethodPost, r.url+"/function/f/slurp", io.MultiReader(strings.NewReader(strings.Repeat("x", maxBody+1)))); warm != 200 || status != 413 || !strings.Contains(body, fmt.Sprintf("the body is over the limit of %d bytes", maxBody)) {
		t.Errorf("chunked: %d %s", status, body)
	}
	all := r.eng.Sandboxes(true) // sandboxes of function "one" may end shortly after their answers
	if n := len(slices.DeleteFunc(all, func(s *live.Sandbox) bool { return s.Function != "f" })); n != 1 {
		t.Errorf("%d instances; a large body is no reason to end one", n)
	}
}

func do(t *testing.T, method, url string, body io.Reader) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Errorf("%s %s: %v", method, url, err)
		return 0, ""
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s %s: %v", method, url, err)
	}
	return resp.StatusCode, string(got)
}

// TestNoSmuggling: the rest of a body is never read as a request.
func TestNoSmuggling(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	r.deploy("brief", brief)
	r.deploy("one", stdio)
	r.deploy("briefone", func(c *image.Config) { stdio(c); brief(c) })
	inner := "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"
	for name, tt := range map[string]struct {
		path   string
		now    int // bytes of the body sent with the header
		status int
		may    bool // continue: a function that fails at once leaves its body unread
	}{
		"answer before the body's end":         {path: "/function/f/early", now: 64 << 10, status: 200},
		"failure before the body's end":        {path: "/function/f/fail", now: 64 << 10, status: 500},
		"time-out while the body comes":        {path: "/function/brief", now: 10, status: 504},
		"stdio, failure before the body's end": {path: "/function/one/fail", now: 64 << 10, status: 500, may: true},
		"stdio, time-out while it comes":       {path: "/function/briefone/fail", now: 10, status: 504}, // not started yet
	} {
		t.Run(name, func(t *testing.T) {
			c := r.dial()
			c.t = t
			c.send("POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", tt.path, tt.now+len(inner), strings.Repeat("x", tt.now))
			resp, body, err := c.answer("POST")
			if resp.StatusCode != tt.status || err != nil || !resp.Close && !tt.may {
				t.Errorf("status %d, close %v, %q, %v", resp.StatusCode, resp.Close, body, err)
			}
			// The server may have closed the connection already.
			_, _ = c.Write([]byte(inner + "GET /next HTTP/1.1\r\nHost: h\r\n\r\n"))
			if resp.Close {
				if !c.closed() {
					t.Error("the rest of a body was answered")
				}
				return
			}
			next, err := http.ReadResponse(c.Reader, nil)
			if err != nil {
				return // closed, too
			}
			_ = next.Body.Close()
			if next.StatusCode != http.StatusNotFound {
				t.Errorf("the rest of a body was answered: status %d", next.StatusCode)
			}
		})
	}
	for name, request := range map[string]string{
		"two lengths":           "POST /function/f HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
		"unknown coding":        "POST /function/f HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
		"malformed chunk":       "POST /function/f HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"header without a name": "POST /function/f HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := r.dial()
			c.t = t
			c.send("%s", request)
			if resp, _, _ := c.answer("POST"); resp.StatusCode/100 == 2 || !resp.Close {
				t.Errorf("status %d, close %v", resp.StatusCode, resp.Close)
			}
		})
	}
}

// TestAnswerFraming: only the engine determines where an answer ends.
func TestAnswerFraming(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	c := r.dial()
	tests := []struct {
		name, method, query, body, length string
		status                            int
	}{
		{"length too small", "POST", "status=200&body=hello&header=Content-Length:2", "hello", "5", 200},
		{"length too large", "POST", "status=200&body=hello&header=Content-Length:200", "hello", "5", 200},
		{"hop by hop", "POST", "status=200&body=x&header=Connection:close&header=Transfer-Encoding:gzip&header=Upgrade:h2c&header=Trailer:X&header=X-Fre-Id:forged", "x", "1", 200},
		{"no content", "POST", "status=204", "", "", 204},
		{"no content with a body", "POST", "status=204&body=x", "", "", 204},
		{"not modified with a body", "POST", "status=304&body=x", "", "", 304},
		{"HEAD", "HEAD", "status=200&body=hello", "", "5", 200},
		{"HEAD without a body", "HEAD", "status=200", "", "", 200},
		{"empty", "POST", "status=200", "", "0", 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c.t = t
			c.send("%s /function/f/status?%s HTTP/1.1\r\nHost: h\r\n\r\n", tt.method, tt.query)
			resp, body, err := c.answer(tt.method)
			if err != nil || resp.StatusCode != tt.status || body != tt.body || resp.Header.Get("Content-Length") != tt.length {
				t.Errorf("%d %q %v, %v", resp.StatusCode, body, resp.Header, err)
			}
			for _, k := range []string{"Connection", "Transfer-Encoding", "Upgrade", "Trailer"} {
				if v, ok := resp.Header[k]; ok {
					t.Errorf("%s: %q", k, v)
				}
			}
			if id := resp.Header["X-Fre-Id"]; len(id) != 1 || id[0] == "forged" {
				t.Errorf("X-Fre-Id %q", id)
			}
		})
	}
}

// TestBrokenBody: an answer that the function breaks off does not look complete.
func TestBrokenBody(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	r.deploy("one", stdio)
	for _, path := range []string{"/function/f/status?status=200&fail=1", "/function/one/bigfail"} {
		c := r.dial()
		c.send("POST %s HTTP/1.1\r\nHost: h\r\n\r\n", path)
		resp, body, err := c.answer("POST")
		if resp.StatusCode != 200 || !errors.Is(err, io.ErrUnexpectedEOF) || len(body) == 0 || !c.closed() {
			t.Errorf("%s: %d, %d bytes, %v", path, resp.StatusCode, len(body), err)
		}
	}
}

// TestStreams: each piece of an answer leaves at once, before the end of the body.
func TestStreams(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	c := r.dial()
	piece := strings.Repeat("a", 100<<10)
	c.send("POST /function/f HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(piece), piece)
	resp, err := http.ReadResponse(c.Reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	// The function's reader holds the rest of the first piece until a chunk is complete.
	if _, err := io.ReadFull(resp.Body, make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	c.send("0\r\n\r\n")
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != len(piece)-64<<10 {
		t.Errorf("%d bytes follow, %v", len(rest), err)
	}
}

// TestClientGone: when a client disconnects, its event ends.
func TestClientGone(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	r.deploy("one", stdio)
	for _, request := range []string{
		post("/function/f/hang", "", "x"),
		post("/function/f/stuck", "", "x"),
		post("/function/one/hang", "", "x"),
		"POST /function/f HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"POST /function/f/status?status=200&endless=1 HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		line, _, _ := strings.Cut(request, "\r\n")
		busy := func() (n int) {
			for _, f := range r.eng.Functions() {
				n += f.Busy
			}
			return n
		}
		c := r.dial()
		c.send("%s", request)
		eventually(t, "the event of "+line, func() bool { return busy() == 1 })
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the end of "+line, func() bool { return busy() == 0 })
	}
	_, metrics := do(t, http.MethodGet, r.url+"/metrics", nil)
	for _, function := range []string{"f", "one"} {
		if !strings.Contains(metrics, `fre_invocation_seconds_count{function="`+function+`",outcome="cancelled",revision="1"}`) {
			t.Errorf("no event of %s is counted as cancelled", function)
		}
	}
}

// TestHeaderTooLarge: a header above net/http's limit is answered 431.
func TestHeaderTooLarge(t *testing.T) {
	r := open(t)
	c := r.dial()
	c.send("GET /function/f HTTP/1.1\r\nHost: h\r\nX: %s\r\n\r\n", strings.Repeat("x", MaxHeaderBytes+8<<10))
	if resp, _, _ := c.answer("GET"); resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// TestStopping: a stopping engine answers 503 with the code stopping.
func TestStopping(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	if status, body := do(t, http.MethodGet, r.url+"/healthz", nil); status != 200 {
		t.Errorf("healthz: %d %s", status, body)
	}
	if status, body := do(t, http.MethodGet, r.url+"/metrics", nil); status != 200 || !strings.Contains(body, "fre_functions 1") {
		t.Errorf("metrics: %d %s", status, body)
	}
	if err := r.eng.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/function/f", "/healthz"} {
		if status, body := do(t, http.MethodGet, r.url+path, nil); status != 503 || !strings.Contains(body, "stopping") {
			t.Errorf("%s of a stopping engine: %d %s", path, status, body)
		}
	}
}

// eventually waits for a state that another goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(5 * time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
