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
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
)

// fake is an engine whose only function is a Go function in the same process.
type fake func(ctx context.Context, name string, r *engine.Request) (*engine.Response, error)

func (f fake) Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error) {
	resp, err := f(ctx, name, r)
	if err == nil && resp.ID == "" {
		resp.ID = "inv"
	}
	return resp, err
}

func (fake) Stopping() bool { return false }

// text returns a complete answer.
func text(status int, body string, header ...[2]string) *engine.Response {
	return &engine.Response{Status: status, Header: header, Size: int64(len(body)), Body: io.NopCloser(strings.NewReader(body))}
}

// serveFake serves a gateway in front of f.
func serveFake(t *testing.T, f fake, change func(*Config)) *rig {
	t.Helper()
	return serveFakeIn(t, f, change, buffer.Memory{Pool: fretest.Buffers(t, 16<<20)})
}

// serveFakeIn is serveFake with this memory for connections.
func serveFakeIn(t *testing.T, f fake, change func(*Config), memory httpserver.Memory) *rig {
	t.Helper()
	fretest.CheckLeaks(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	order := new(sync.Mutex)
	ordered := fake(func(ctx context.Context, name string, r *engine.Request) (*engine.Response, error) {
		order.Lock()
		defer order.Unlock()
		return f(ctx, name, r)
	})
	cfg := Config{Engine: ordered, Log: slog.New(slog.DiscardHandler), MaxBodyBytes: maxBody}
	if change != nil {
		change(&cfg)
	}
	g := New(cfg)
	srv := httpserver.New(httpserver.Config{Handler: g, Refuse: g.Refuse, Memory: memory})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	end := sync.OnceFunc(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return &rig{t: t, addr: l.Addr().String(), url: "http://" + l.Addr().String(), order: order, end: end}
}

// ask sends a request of HTTP/1.1 with these header lines, and returns the answer.
func (r *rig) ask(method, target string, lines ...string) (answer, string) {
	r.t.Helper()
	r.order.Lock()   // orders the test's actions and the event
	r.order.Unlock() //nolint:staticcheck // an empty section is all that is needed
	defer func() {
		r.order.Lock()
		defer r.order.Unlock()
	}()
	c := r.dial()
	defer c.Close()
	c.send("%s %s HTTP/1.1\r\nHost: shop.example\r\n%s\r\n", method, target, strings.Join(append(lines, ""), "\r\n"))
	a, body, err := c.answer(method)
	if err != nil {
		r.t.Errorf("%s %s: %v", method, target, err)
	}
	return a, body
}

// little refuses buffers of more than 8 KiB.
type little struct{ httpserver.Memory }

func (m little) Acquire(size int, wait time.Duration) (httpserver.Buffer, error) {
	if size > 8<<10 {
		return nil, buffer.ErrExhausted
	}
	return m.Memory.Acquire(size, wait)
}

// If an answer needs memory and the pool is empty, the gateway answers 503 with the reason. Answers
// without need of memory pass.
func TestNoMemory(t *testing.T) {
	long := strings.Repeat("long ", 5000)
	file, offset := fileOf(t, long)
	r := serveFakeIn(t, func(_ context.Context, name string, _ *engine.Request) (*engine.Response, error) {
		resp := text(200, long, [2]string{"Content-Type", "text/plain"})
		switch name {
		case "stream":
			resp.Size, resp.Body = -1, io.NopCloser(readerOnly{resp.Body})
		case "file":
			resp.File, resp.Offset = file, offset
		case "short":
			resp = text(200, "short")
		}
		return resp, nil
	}, func(cfg *Config) { cfg.Compress = true }, little{buffer.Memory{Pool: fretest.Buffers(t, 16<<20)}})
	for _, test := range []struct{ name, line string }{
		{"known", "X: y"}, {"stream", "X: y"}, {"stream", "Accept-Encoding: gzip"}, {"file", "Range: bytes=0-1,5-6"},
	} {
		a, body := r.ask("GET", "/function/"+test.name, test.line)
		if a.StatusCode != 503 || a.Header.Get("Retry-After") == "" || !strings.Contains(body, `"code":"busy"`) {
			t.Errorf("%s, %s: %d, %q", test.name, test.line, a.StatusCode, body)
		}
	}
	for name, want := range map[string]string{"short": "short", "file": long} {
		if a, body := r.ask("GET", "/function/"+name); a.StatusCode != 200 || body != want {
			t.Errorf("%s: %d, %d bytes", name, a.StatusCode, len(body))
		}
	}
}

// A function gets the path exactly as the client wrote it. Each path names a single function.
func TestPaths(t *testing.T) {
	var got [3]string
	r := serveFake(t, func(_ context.Context, name string, r *engine.Request) (*engine.Response, error) {
		got = [3]string{name, r.Path, r.Query}
		return text(200, ""), nil
	}, nil)
	for target, want := range map[string][3]string{
		"/function/f":                    {"f", "/", ""},
		"/function/f/":                   {"f", "/", ""},
		"/function/f?":                   {"f", "/", ""},
		"/function/f/a/b?x=1&y=%20&&z":   {"f", "/a/b", "x=1&y=%20&&z"},
		"/function/f//a///b/":            {"f", "//a///b/", ""},
		"/function/f/../g/./h":           {"f", "/../g/./h", ""},
		"/function/f/a%2Fb%20c%c3%BC":    {"f", "/a%2Fb%20c%c3%BC", ""},
		"/function/%66/x":                {"f", "/x", ""},
		"/function/a%2Fb/x":              {"a/b", "/x", ""},
		`/function/f/"<a>|{b}^` + "`\\":  {"f", "/%22%3Ca%3E%7C%7Bb%7D%5E%60%5C", ""},
		"/function/f/!$&'()*+,;=:@-._~[": {"f", "/!$&'()*+,;=:@-._~[", ""},
		"http://h/function/f/abs?q":      {"f", "/abs", "q"},
		"/function//x":                   {"", "/x", ""},
	} {
		got = [3]string{}
		if a, body := r.ask("GET", target); a.StatusCode != 200 || got != want {
			t.Errorf("%s: %q, want %q; %d %s", target, got, want, a.StatusCode, body)
		}
	}
	for target, want := range map[string]string{
		"/function/f/%zz": "bad_path", "/function/f/%2": "bad_path", "/function/%/x": "bad_path",
		"/function": "not_found", "/": "not_found", "/functions/f": "not_found", "//function/f": "not_found", "/metrics": "not_found",
	} {
		if a, body := r.ask("GET", target); a.StatusCode/100 != 4 || !strings.Contains(body, `"code":"`+want+`"`) || a.Close {
			t.Errorf("%s: %d %s, want %s", target, a.StatusCode, body, want)
		}
	}
	if a, body := r.ask("POST", "/healthz"); a.StatusCode != 405 || a.Header.Get("Allow") != "GET, HEAD" || !strings.Contains(body, "method_not_allowed") {
		t.Errorf("POST /healthz: %d %v %s", a.StatusCode, a.Header, body)
	}
	if a, body := r.ask("HEAD", "/healthz"); a.StatusCode != 200 || body != "" {
		t.Errorf("HEAD /healthz: %d %q", a.StatusCode, body)
	}
}

// FuzzEventPath: an accepted path starts with a slash, holds no special bytes, and is parsed to
// itself.
func FuzzEventPath(f *testing.F) {
	for _, s := range []string{"", "a/b", "%2F", "%", "\"", "a b", "\x00\xff", "[::]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, rest []byte) {
		got, err := eventPath(rest)
		if err != nil {
			return
		}
		if !bytes.HasPrefix(got, []byte("/")) || bytes.ContainsFunc(got, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '?' || r == '#' }) {
			t.Errorf("%q: %q", rest, got)
		}
		if again, err := eventPath(got[1:]); err != nil || !bytes.Equal(got, again) {
			t.Errorf("%q: %q, then %q, %v", rest, got, again, err)
		}
	})
}

// The function gets the client's end-to-end headers, and the client's address from the gateway. The
// gateway ignores a client's own statements about its address, except from trusted proxies.
func TestEventHeader(t *testing.T) {
	claims := []string{
		"X-Forwarded-For: 203.0.113.9, 198.51.100.7", "x-forwarded-proto: https", "X-Forwarded-Host: shop.example.org",
		"Forwarded: for=203.0.113.9;proto=https", "X-Real-IP: 203.0.113.9", "X-Forwarded-Prefix: /a/",
		// WSGI, CGI and frameworks would take these for the gateway's own fields.
		"X_Forwarded_For: 203.0.113.66", "x.forwarded-for: 203.0.113.66", "X_Real_Ip: 203.0.113.66", "X_Request_Id: forged", "X_Forwarded_Prefix: /b",
		"Content_Length: 1", "Transfer_Encoding: chunked", "X_Fre_Id: forged", "Authoriz_ation: kept",
	}
	lines := append([]string{
		"x-two: 1", "Connection: x-mine, keep-alive, forwarded, x-request-id, x-forwarded-for, x-forwarded-host, x-forwarded-proto", "X-Mine: 1", "Te: trailers", "X-Two: 2", "Accept: */*", "X-Request-ID: abc-1",
	}, claims...)
	own := `for=127.0.0.1;host="shop.example";proto=http`
	for name, tt := range map[string]struct {
		trusted []netip.Prefix
		want    [][2]string
	}{
		"nobody": {nil, [][2]string{
			{"Host", "shop.example"},
			{"Accept", "*/*"},
			{"Authoriz_ation", "kept"},
			{"Forwarded", own},
			{"X-Forwarded-For", "127.0.0.1"},
			{"X-Forwarded-Host", "shop.example"},
			{"X-Forwarded-Prefix", "/function/%66"},
			{"X-Forwarded-Proto", "http"},
			{"X-Request-Id", "abc-1"},
			{"X-Two", "1"},
			{"X-Two", "2"},
		}},
		"a proxy": {[]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, [][2]string{
			{"Host", "shop.example"},
			{"Accept", "*/*"},
			{"Authoriz_ation", "kept"},
			{"Forwarded", "for=203.0.113.9;proto=https, " + own},
			{"X-Forwarded-For", "203.0.113.9, 198.51.100.7, 127.0.0.1"},
			{"X-Forwarded-Host", "shop.example.org"},
			{"X-Forwarded-Prefix", "/a/function/%66"},
			{"X-Forwarded-Proto", "https"},
			{"X-Real-Ip", "203.0.113.9"},
			{"X-Request-Id", "abc-1"},
			{"X-Two", "1"},
			{"X-Two", "2"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var got [][2]string
			r := serveFake(t, func(_ context.Context, _ string, r *engine.Request) (*engine.Response, error) {
				got = r.Headers
				return text(200, "", [2]string{"x-request-id", "forged"}, [2]string{"date", "never"}), nil
			}, func(c *Config) { c.TrustedProxies = tt.trusted })
			a, _ := r.ask("GET", "/function/%66", lines...)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if id := a.Header["X-Request-Id"]; !slices.Equal(id, []string{"abc-1"}) || len(a.Header["Date"]) != 1 || a.Header.Get("Date") == "never" {
				t.Errorf("answer %v", a.Header)
			}
		})
	}
}

// The client is the last address that no trusted proxy of ours has.
func TestClientOf(t *testing.T) {
	ours := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	var log bytes.Buffer
	for _, tt := range []struct {
		trusted []netip.Prefix
		lines   []string
		want    string
	}{
		{nil, []string{"X-Forwarded-For: 203.0.113.9"}, "127.0.0.1"},
		{ours, nil, "127.0.0.1"},
		{ours, []string{"X-Forwarded-For: 203.0.113.9"}, "203.0.113.9"},
		{ours, []string{"X-Forwarded-For: 203.0.113.9, 198.51.100.7"}, "198.51.100.7"},
		{ours, []string{"X-Forwarded-For: 203.0.113.9,  10.1.2.3"}, "203.0.113.9"},
		{ours, []string{"X-Forwarded-For: 203.0.113.9", "x-forwarded-for: 10.1.2.3:4711, [2001:db8::1]:99"}, "203.0.113.9"},
		{ours, []string{"X-Forwarded-For: 10.9.9.9"}, "10.9.9.9"},
		{ours, []string{"X-Forwarded-For: 203.0.113.9, what"}, "127.0.0.1"},
		{ours, []string{"X-Forwarded-For: ::ffff:203.0.113.9"}, "203.0.113.9"},
	} {
		log.Reset()
		t.Run(fmt.Sprint(tt.trusted != nil, tt.lines), func(t *testing.T) {
			accessLog := NewAccessLog(&log, slog.New(slog.DiscardHandler), nil)
			r := serveFake(t, func(context.Context, string, *engine.Request) (*engine.Response, error) { return text(200, ""), nil },
				func(c *Config) { c.TrustedProxies, c.AccessLog = tt.trusted, accessLog })
			c := r.dial()
			c.send("GET /function/f HTTP/1.1\r\nHost: h\r\n%s\r\n", strings.Join(append(tt.lines, "Connection: close", ""), "\r\n"))
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Error(err)
			}
			r.end() // a line is written after its answer
			if err := accessLog.Close(); err != nil {
				t.Error(err)
			}
			var line accessLine
			if err := json.Unmarshal(log.Bytes(), &line); err != nil || line.Client != tt.want {
				t.Errorf("%s: client %q, want %q; %v", log.Bytes(), line.Client, tt.want, err)
			}
		})
	}
}

// FuzzParseHop: an accepted hop is a valid address without a zone.
func FuzzParseHop(f *testing.F) {
	for _, s := range []string{"1.2.3.4", " [::1]:80", "1.2.3.4:5", "fe80::1%eth0", "unknown", "_hidden", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if a, err := parseHop(s); err == nil && (!a.IsValid() || a.Zone() != "") {
			t.Errorf("%q: %v", s, a)
		}
	})
}

func TestRequestID(t *testing.T) {
	for given, kept := range map[string]bool{
		"a": true, "4bf92f35-77b3_4.x~": true, strings.Repeat("a", 128): true,
		"": false, "a b": false, `a"b`: false, "a/b": false, "ä": false, strings.Repeat("a", 129): false,
	} {
		got := requestID([]byte(given))
		if (got == given) != kept || len(got) == 0 || !kept && len(got) != 32 {
			t.Errorf("%q: %q", given, got)
		}
	}
}

// What the server refuses is answered as all errors are, says that the connection
// ends, and is in the access log.
func TestRefused(t *testing.T) {
	var log bytes.Buffer
	accessLog := NewAccessLog(&log, slog.New(slog.DiscardHandler), nil)
	r := serveFake(t, nil, func(c *Config) { c.AccessLog = accessLog })
	for head, want := range map[string]struct {
		status int
		code   string
	}{
		"GET /function/f HTTP/1.1\r\nHost: h\r\nbad header\r\n\r\n":                                                {400, "bad_request"},
		"POST /function/f HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": {400, "bad_request"},
		"GET /" + strings.Repeat("a", 9<<10) + " HTTP/1.1\r\nHost: h\r\n\r\n":                                      {414, "path_too_long"},
		"GET / HTTP/1.1\r\nHost: h\r\nExpect: tea\r\n\r\n":                                                         {417, "expectation_failed"},
		"GET / HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("A: b\r\n", 200) + "\r\n":                                 {431, "header_too_large"},
		"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n":                                            {501, "not_implemented"},
		"GET / HTTP/4.0\r\nHost: h\r\n\r\n":                                                                        {505, "version_not_supported"},
	} {
		c := r.dial()
		c.send("%s", head)
		a, body, err := c.answer("GET")
		var e struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			t.Errorf("%q: %v", body, err)
		}
		if err != nil || a.StatusCode != want.status || e.Error.Code != want.code || !a.Close || !strings.HasSuffix(e.Error.Message, "; the connection is closed") ||
			a.Header.Get("Content-Type") != "application/json" || len(a.Header.Get("X-Request-Id")) != 32 {
			t.Errorf("%.60q: %d %v %s, %v; want %v", head, a.StatusCode, a.Header, body, err, want)
		}
		_ = c.Close()
	}
	r.end() // a line is written after its answer
	if err := accessLog.Close(); err != nil {
		t.Error(err)
	}
	lines := bufio.NewScanner(&log)
	n := 0
	for ; lines.Scan(); n++ {
		var line accessLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Status/100 < 4 || line.Error == "" || line.Client != "127.0.0.1" || line.Bytes == 0 {
			t.Errorf("%s: %v", lines.Bytes(), err)
		}
	}
	if n != 7 {
		t.Errorf("%d lines", n)
	}
}

// The access log has a line for each request with its method, target, status and bytes.
func TestAccessLog(t *testing.T) {
	var log bytes.Buffer
	accessLog := NewAccessLog(&log, slog.New(slog.DiscardHandler), nil)
	r := serveFake(t, func(_ context.Context, name string, r *engine.Request) (*engine.Response, error) {
		switch name {
		case "cold":
			resp := text(201, strings.Repeat("x", 100<<10))
			resp.ID, resp.Cold = "000a", true
			return resp, nil
		case "breaks":
			return &engine.Response{ID: "000b", Status: 200, Size: -1, Body: io.NopCloser(io.MultiReader(strings.NewReader("abc"), broken{}))}, nil
		}
		return nil, &engine.InvocationError{ID: "000d", Err: engine.ErrOverloaded}
	}, func(c *Config) { c.AccessLog = accessLog })
	for _, request := range []string{
		"GET /function/cold/a?secret=1 HTTP/1.1\r\nHost: h\r\nX-Request-Id: one\r\nConnection: close\r\n\r\n",
		"HEAD /function/cold/ HTTP/1.1\r\nHost: h\r\nX-Request-Id: two\r\nConnection: close\r\n\r\n",
		"POST /function/breaks HTTP/1.1\r\nHost: h\r\nX-Request-Id: three\r\nConnection: close\r\n\r\n",
		"GET /function/busy HTTP/1.1\r\nHost: h\r\nX-Request-Id: four\r\nConnection: close\r\n\r\n",
		"GET /nowhere HTTP/1.1\r\nHost: h\r\nX-Request-Id: five\r\nConnection: close\r\n\r\n",
	} {
		c := r.dial()
		c.send("%s", request)
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Error(err)
		}
	}
	LogCall(accessLog, &engine.CallRecord{
		At: time.Now(), RequestID: "one", From: "cold", Function: "warm", Method: "POST", Path: "/", Status: 200, Bytes: -1, Invocation: "000c",
	})
	r.end() // a line is written after its answer
	if err := accessLog.Close(); err != nil {
		t.Error(err)
	}
	var got []accessLine
	for line := range bytes.Lines(log.Bytes()) {
		var a accessLine
		if err := json.Unmarshal(line, &a); err != nil || a.Time.IsZero() || a.Micros < 0 || bytes.Contains(line, []byte("secret")) {
			t.Errorf("%s: %v", line, err)
		}
		if a.Error == "not_found" || a.Error == "overloaded" {
			a.Bytes = min(a.Bytes, 1)
		}
		a.Time, a.Micros = time.Time{}, 0
		got = append(got, a)
	}
	want := []accessLine{
		{ID: "one", Client: "127.0.0.1", Method: "GET", Path: "/function/cold/a", Status: 201, Bytes: 100 << 10, Function: "cold", Invocation: "000a", Cold: true},
		{ID: "two", Client: "127.0.0.1", Method: "HEAD", Path: "/function/cold/", Status: 201, Function: "cold", Invocation: "000a", Cold: true},
		{ID: "three", Client: "127.0.0.1", Method: "POST", Path: "/function/breaks", Status: 200, Bytes: 3, Function: "breaks", Invocation: "000b", Error: "broken_off"},
		{ID: "four", Client: "127.0.0.1", Method: "GET", Path: "/function/busy", Status: 503, Bytes: 1, Function: "busy", Invocation: "000d", Error: "overloaded"},
		{ID: "five", Client: "127.0.0.1", Method: "GET", Path: "/nowhere", Status: 404, Bytes: 1, Error: "not_found"},
		{ID: "one", Method: "POST", Path: "/", Status: 200, Function: "warm", From: "cold", Invocation: "000c"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("broken") }

// Forward does behind net/http what the gateway does before its own server.
func TestForwardFile(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	content := strings.Repeat("0123456789", 30_000)
	if _, err := file.WriteString("skipped" + content + "more"); err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var closed, status atomic.Int64
	status.Store(http.StatusOK)
	f := fake(func(context.Context, string, *engine.Request) (*engine.Response, error) {
		return &engine.Response{Status: int(status.Load()), Size: int64(len(content)), File: file, Offset: 7, Body: closing{&closed}}, nil
	})
	r := serveFake(t, f, nil)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := Forward(w, r, Event{Engine: f, Log: slog.New(slog.DiscardHandler), Function: "f", MaxBodyBytes: 1, Request: engine.Request{Method: r.Method, Path: "/"}}); err != nil {
			t.Error(err)
		}
	}))
	defer h.Close()
	for i, url := range []string{r.url + "/function/f", h.URL} {
		if status, body := do(t, http.MethodGet, url, nil); status != 200 || body != content {
			t.Errorf("%s: %d, %d bytes", url, status, len(body))
		}
		if status, body := do(t, http.MethodHead, url, nil); status != 200 || body != "" {
			t.Errorf("HEAD %s: %d, %d bytes", url, status, len(body))
		}
		status.Store(http.StatusNoContent)
		if status, body := do(t, http.MethodGet, url, nil); status != http.StatusNoContent || body != "" {
			t.Errorf("no content, %s: %d, %d bytes", url, status, len(body))
		}
		status.Store(http.StatusOK)
		eventually(t, "the close of the bodies", func() bool { return closed.Load() == int64(3*(i+1)) })
	}
}

// TestForwardBytes: a short answer is sent from where it is.
func TestForwardBytes(t *testing.T) {
	var closed, status atomic.Int64
	f := fake(func(context.Context, string, *engine.Request) (*engine.Response, error) {
		return &engine.Response{Status: int(status.Load()), Size: 5, Bytes: []byte("short"), Body: closing{&closed}}, nil
	})
	r := serveFake(t, f, nil)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := Forward(w, r, Event{Engine: f, Log: slog.New(slog.DiscardHandler), Function: "f", MaxBodyBytes: 1, Request: engine.Request{Method: r.Method, Path: "/"}}); err != nil {
			t.Error(err)
		}
	}))
	defer h.Close()
	n := int64(0)
	for _, url := range []string{r.url + "/function/f", h.URL} {
		for _, test := range []struct {
			method, body string
			status       int
		}{{http.MethodGet, "short", 200}, {http.MethodHead, "", 200}, {http.MethodPost, "short", 500}, {http.MethodGet, "", 204}, {http.MethodGet, "", 304}} {
			status.Store(int64(test.status))
			if status, body := do(t, test.method, url, nil); status != test.status || body != test.body {
				t.Errorf("%s %s: %d, %q; want %d, %q", test.method, url, status, body, test.status, test.body)
			}
			n++
			eventually(t, "the close of the body", func() bool { return closed.Load() == n })
		}
	}
}

// A client of the control API says no more of where an event comes from than one of the
// gateway's.
func TestForwardHeader(t *testing.T) {
	var got [][2]string
	f := fake(func(_ context.Context, _ string, r *engine.Request) (*engine.Response, error) {
		got = r.Headers
		return text(200, ""), nil
	})
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := Forward(w, r, Event{Engine: f, Log: slog.New(slog.DiscardHandler), Function: "f.t", MaxBodyBytes: 1, Request: engine.Request{Method: r.Method, Path: "/"}}); err != nil {
			t.Error(err)
		}
	}))
	defer h.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "api.example"
	r.Header["User-Agent"], r.Header["Accept-Encoding"] = nil, []string{"x"}
	for _, name := range []string{"X-Forwarded-Prefix", "X-Forwarded-For", "X_Forwarded_Prefix", "X_Request_Id", "Forwarded", "A_b"} {
		r.Header[name] = []string{"said"}
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	want := [][2]string{{"Host", "api.example"}, {"A_b", "said"}, {"Accept-Encoding", "x"}, {"X-Forwarded-Prefix", "/function/f.t"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// An event that fails is named in the answer as one that does not.
func TestFailedID(t *testing.T) {
	f := fake(func(context.Context, string, *engine.Request) (*engine.Response, error) {
		return nil, &engine.InvocationError{ID: "000a", Err: &engine.FunctionError{Message: "boom"}}
	})
	r := serveFake(t, f, nil)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := Forward(w, r, Event{Engine: f, Log: slog.New(slog.DiscardHandler), Function: "f", MaxBodyBytes: 1, Request: engine.Request{Method: r.Method, Path: "/"}}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	defer h.Close()
	for _, url := range []string{r.url + "/function/f", h.URL} {
		resp, err := http.Get(url) //nolint:gosec // of this test
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got := resp.Header.Values("X-Fre-Id"); resp.StatusCode != 500 || !slices.Equal(got, []string{"000a"}) {
			t.Errorf("%s: %d, X-Fre-Id %q; want 500, [000a]", url, resp.StatusCode, got)
		}
	}
}

// closing is the body of an answer that nobody reads.
type closing struct{ n *atomic.Int64 }

func (closing) Read([]byte) (int, error) {
	return 0, errors.New("read of a body that is had otherwise")
}
func (c closing) Close() error { c.n.Add(1); return nil }
