package httpserver_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fre-engine/fre/buffer"
	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
)

// start serves cfg.Handler on loopback and returns the address. The end of the test checks for
// running handlers.
func start(t testing.TB, cfg httpserver.Config) string {
	t.Helper()
	_, addr := startServer(t, cfg)
	return addr
}

func startOn(t testing.TB, l net.Listener, cfg httpserver.Config) string {
	t.Helper()
	_, addr := serveOn(t, l, cfg)
	return addr
}

// startServer is start, and also returns the server.
func startServer(t testing.TB, cfg httpserver.Config) (*httpserver.Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, cfg)
}

func serveOn(t testing.TB, l net.Listener, cfg httpserver.Config) (*httpserver.Server, string) {
	t.Helper()
	if cfg.Memory == nil { // all must be returned
		cfg.Memory = buffer.Memory{Pool: fretest.Buffers(t, 64<<20)}
	}
	s := httpserver.New(cfg)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return s, l.Addr().String()
}

// large is larger than the buffers of server and kernel.
var large = func() []byte {
	b := make([]byte, 9<<20+12345)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}()

// everything is a handler with an answer of each kind.
func everything(t testing.TB) httpserver.Handler {
	t.Helper()
	path := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(path, large, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		query := string(x.Query)
		switch string(x.Path) {
		case "/hello":
			x.Set("Content-Type", "text/plain")
			check(t, x.Send(200, []byte("hello "+query)))
		case "/file":
			x.Set("Content-Type", "application/octet-stream")
			check(t, x.SendFile(200, file, 0, int64(len(large))))
		case "/part":
			check(t, x.SendFile(206, file, 1000, 100_000))
		case "/stream", "/known":
			length := int64(-1)
			if string(x.Path) == "/known" {
				length = int64(len(large))
			}
			check(t, x.Begin(200, length))
			for rest := large; len(rest) > 0; {
				n := min(len(rest), 100_001)
				if _, err := x.Write(rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
		case "/echo":
			body, err := io.ReadAll(x.Body)
			if err != nil {
				t.Error(err)
			}
			// The head is unchanged after the body was read.
			x.Set("X-Got", string(x.Get("x-sent")))
			check(t, x.Send(200, body))
		case "/both": // both directions at once
			check(t, x.Begin(200, -1))
			buf := make([]byte, 10_000)
			for {
				n, err := x.Body.Read(buf)
				if _, err := x.Write(buf[:n]); err != nil {
					t.Error(err)
					return
				}
				if err != nil {
					if !errors.Is(err, io.EOF) {
						t.Error(err)
					}
					return
				}
			}
		case "/wait":
			<-x.Context().Done()
		case "/unread":
			check(t, x.Send(413, []byte("no")))
		case "/status":
			status, err := strconv.Atoi(query)
			check(t, err)
			check(t, x.Send(status, nil))
		case "/short":
			check(t, x.Begin(200, 10))
			_, err := x.Write([]byte("five!"))
			check(t, err)
		case "/abort":
			check(t, x.Begin(200, -1))
			_, err := x.Write([]byte("five!"))
			check(t, err)
			x.Abort()
		case "/panicked":
			check(t, x.Begin(200, -1))
			_, err := x.Write([]byte("five!"))
			check(t, err)
			panic("after a part")
		case "/panic":
			panic("as asked for")
		}
	})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// TestClient: net/http's client gets every kind of answer, in sequence on one connection, over TCP,
// Unix sockets and TLS.
func TestClient(t *testing.T) {
	fretest.CheckLeaks(t)
	cfg := httpserver.Config{Handler: everything(t)}
	unixPath := filepath.Join(t.TempDir(), "s")
	unixListener, err := net.Listen("unix", unixPath)
	if err != nil {
		t.Fatal(err)
	}
	startOn(t, unixListener, cfg)
	tcp := start(t, cfg)
	certificates := httptest.NewTLSServer(nil)
	defer certificates.Close()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	secure := startOn(t, tls.NewListener(plain, &tls.Config{Certificates: certificates.TLS.Certificates, MinVersion: tls.VersionTLS13}), cfg)
	both := cfg
	both.TLS = &tls.Config{Certificates: certificates.TLS.Certificates}
	chosen := start(t, both)
	http1, http2 := new(http.Protocols), new(http.Protocols)
	http1.SetHTTP1(true)
	http2.SetHTTP2(true)
	http2.SetUnencryptedHTTP2(true)
	trust := certificates.Client().Transport.(*http.Transport).TLSClientConfig

	for _, of := range []struct {
		name, url, protocol string
		transport           *http.Transport
	}{
		{"tcp", "http://" + tcp, "HTTP/1.1", &http.Transport{}},
		{"unix", "http://unix", "HTTP/1.1", &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", unixPath)
		}}},
		{"tls", "https://" + secure, "HTTP/1.1", &http.Transport{TLSClientConfig: trust.Clone()}},
		{"http2", "http://" + tcp, "HTTP/2.0", &http.Transport{Protocols: http2}},
		{"http2 tls", "https://" + chosen, "HTTP/2.0", &http.Transport{Protocols: http2, TLSClientConfig: trust.Clone()}},
		{"http1 tls", "https://" + chosen, "HTTP/1.1", &http.Transport{Protocols: http1, TLSClientConfig: trust.Clone()}},
	} {
		t.Run(of.name, func(t *testing.T) {
			ended := keeps(of.transport)
			of.transport.DisableCompression = true
			defer of.transport.CloseIdleConnections()
			client := &http.Client{Transport: of.transport}
			for _, test := range []struct {
				method, path string
				body         io.Reader
				status       int
				want         []byte
				length       int64
			}{
				{"GET", "/hello?you", nil, 200, []byte("hello you"), 9},
				{"HEAD", "/hello?you", nil, 200, nil, 9},
				{"GET", "/file", nil, 200, large, int64(len(large))},
				{"HEAD", "/file", nil, 200, nil, int64(len(large))},
				{"GET", "/part", nil, 206, large[1000:101_000], 100_000},
				{"GET", "/stream", nil, 200, large, -1},
				{"HEAD", "/stream", nil, 200, nil, -1},
				{"GET", "/known", nil, 200, large, int64(len(large))},
				{"POST", "/echo", strings.NewReader("small"), 200, []byte("small"), 5},
				{"POST", "/echo", bytes.NewReader(large), 200, large, int64(len(large))},
				{"POST", "/echo", io.MultiReader(bytes.NewReader(large)), 200, large, int64(len(large))}, // in chunks
				{"POST", "/unread", strings.NewReader("small"), 413, []byte("no"), 2},
				{"GET", "/status?204", nil, 204, nil, 0},
				{"GET", "/status?304", nil, 304, nil, 0},
				{"GET", "/none", nil, 500, nil, 0},
			} {
				r, err := http.NewRequestWithContext(t.Context(), test.method, of.url+test.path, test.body)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("X-Sent", test.path)
				resp, err := client.Do(r)
				if err != nil {
					t.Fatalf("%s %s: %v", test.method, test.path, err)
				}
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || resp.Proto != of.protocol || resp.StatusCode != test.status || !bytes.Equal(body, test.want) || resp.ContentLength != test.length || resp.Close {
					t.Errorf("%s %s: %s %s, length %d, %d bytes, %v", test.method, test.path, resp.Proto, resp.Status, resp.ContentLength, len(body), err)
				}
				if test.path == "/echo" && resp.Header.Get("X-Got") != test.path {
					t.Errorf("%s: the head was %q when the body was read", test.path, resp.Header.Get("X-Got"))
				}
				if when, err := http.ParseTime(resp.Header.Get("Date")); err != nil || time.Since(when) > time.Minute {
					t.Errorf("Date: %q", resp.Header.Get("Date"))
				}
			}
			if n := ended(); n != 0 {
				t.Errorf("the server has ended %d connections", n)
			}
		})
	}
}

// keeps returns a function that counts the connections of tr that the server has ended. Counting
// connections would be wrong: net/http drops a connection whose last request was not written within
// 50 ms.
func keeps(tr *http.Transport) (ended func() int) {
	dial := tr.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	var n atomic.Int32
	tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return endCounter{c, &n}, nil
	}
	return func() int { return int(n.Load()) }
}

// endCounter counts the ends of the server's direction.
type endCounter struct {
	net.Conn
	n *atomic.Int32
}

func (c endCounter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		c.n.Add(1)
	}
	return n, err
}

// dial returns a raw connection for the test.
func dial(t testing.TB, addr string) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(hangs)); err != nil {
		t.Fatal(err)
	}
	return c
}

// hangs is the longest wait before a test fails.
const hangs = 5 * time.Minute

// exchange sends text and returns the whole answer until the server closes.
func exchange(t *testing.T, addr, text string) string {
	t.Helper()
	c := dial(t, addr)
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("%.80q: %v after %q", text, err, got)
	}
	return string(got)
}

// Pipelined requests are answered in order, for any split into pieces.
func TestPipelined(t *testing.T) {
	addr := start(t, httpserver.Config{Handler: everything(t)})
	text := "GET /hello?1 HTTP/1.1\r\nHost: a\r\n\r\n" +
		"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" +
		"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n1\r\nf\r\n0\r\n\r\n" +
		"POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nghi" +
		"GET /hello?2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	for _, size := range []int{1, 13, len(text)} {
		c := dial(t, addr)
		go func() {
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				if _, err := io.WriteString(c, rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
		}()
		r := bufio.NewReader(c)
		for _, want := range []string{"hello 1", "abc", "def", "no", "hello 2"} {
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("%d bytes at once: %v", size, err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || string(body) != want || resp.Close != (want == "hello 2") {
				t.Errorf("%d bytes at once: %q, %v, close %t, want %q", size, body, err, resp.Close, want)
			}
		}
		if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%d bytes more, %v", n, err)
		}
	}
}

// A refused request gets an answer, and the bytes after the request are not read as a request.
func TestRefused(t *testing.T) {
	addr := start(t, httpserver.Config{Handler: everything(t)})
	const second = "GET /hello?smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, test := range map[string]struct{ text, want string }{
		"length and coding": {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second, "HTTP/1.1 400 "},
		"two lengths":       {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n" + second, "HTTP/1.1 400 "},
		"folded coding":     {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + second, "HTTP/1.1 400 "},
		"coding with space": {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + second, "HTTP/1.1 400 "},
		"bare line feeds":   {"GET /echo HTTP/1.1\nHost: a\n\n" + second, "HTTP/1.1 400 "},
		"version":           {"GET / HTTP/3.0\r\nHost: a\r\n\r\n" + second, "HTTP/1.1 505 "},
		"large head":        {"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("a", 70<<10) + "\r\n\r\n", "HTTP/1.1 431 "},
	} {
		got := exchange(t, addr, test.text)
		if !strings.HasPrefix(got, test.want) || strings.Contains(got, "smuggled") || !strings.Contains(got, "\r\nConnection: close\r\n") {
			t.Errorf("%s: got %q", name, got)
		}
	}
	// A request with a malformed body that a handler reads.
	handler := httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		_, err := io.ReadAll(x.Body)
		if refused, ok := errors.AsType[*httpserver.RequestError](err); ok {
			check(t, x.Send(refused.Status, []byte(refused.Reason)))
			return
		}
		t.Errorf("got %v", err)
	})
	addr = start(t, httpserver.Config{Handler: handler})
	got := exchange(t, addr, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n"+second)
	if !strings.HasPrefix(got, "HTTP/1.1 400 ") || strings.Contains(got, "smuggled") || !strings.Contains(got, "\r\nConnection: close\r\n") {
		t.Errorf("body: got %q", got)
	}
}

// Refuse makes the answer to a refused request. Refuse sees the client and may add fields.
func TestRefuse(t *testing.T) {
	addr := start(t, httpserver.Config{Handler: everything(t), Refuse: func(x *httpserver.Exchange, e *httpserver.RequestError) (string, []byte) {
		x.Set("X-Client", x.RemoteAddr())
		return "text/x", []byte(strconv.Itoa(e.Status))
	}})
	got := exchange(t, addr, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nbad header\r\n\r\n")
	for _, want := range []string{"HTTP/1.1 400 ", "\r\nX-Client: 127.0.0.1:", "\r\nContent-Type: text/x\r\n", "\r\nConnection: close\r\n", "\r\n\r\n400"} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// If a handler calls CloseAfter, the answer announces the end of the connection.
func TestCloseAfter(t *testing.T) {
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		x.CloseAfter()
		check(t, x.Send(200, nil))
	})})
	got := exchange(t, addr, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if strings.Count(got, "HTTP/1.1 ") != 1 || !strings.Contains(got, "\r\nConnection: close\r\n") {
		t.Errorf("got %q", got)
	}
}

// A client that waits for 100 gets 100 only if the handler reads the body.
func TestContinue(t *testing.T) {
	addr := start(t, httpserver.Config{Handler: everything(t)})
	c := dial(t, addr)
	r := bufio.NewReader(c)
	for range 2 {
		if _, err := io.WriteString(c, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := r.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if line, err := r.ReadString('\n'); err != nil || line != "\r\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if _, err := io.WriteString(c, "abc"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != "abc" {
			t.Errorf("%q, %v", body, err)
		}
	}
	// If the body is not wanted, the connection ends: the body may or may not arrive.
	got := exchange(t, addr, "POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 413 ") || !strings.Contains(got, "\r\nConnection: close\r\n") {
		t.Errorf("got %q", got)
	}
}

// A large unread body does not keep the client from reading the answer.
func TestUnreadBody(t *testing.T) {
	addr := start(t, httpserver.Config{Handler: everything(t)})
	c := dial(t, addr)
	go func() {
		_, _ = fmt.Fprintf(c, "POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", 1<<30)
		for sent := 0; sent < 1<<30; sent += len(large) {
			if _, err := c.Write(large); err != nil {
				return
			}
		}
		t.Error("the server took all of it")
	}()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "no" || !resp.Close {
		t.Errorf("%q, %v, close %t", body, err, resp.Close)
	}
}

// An incomplete answer does not look complete. A handler's panic ends only its own connection.
func TestBroken(t *testing.T) {
	addr := start(t, httpserver.Config{Handler: everything(t)})
	for _, path := range []string{"/short", "/abort"} {
		resp, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(body) != "five!" || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %q, %v", path, body, err)
		}
	}
	if got := exchange(t, addr, "GET /panic HTTP/1.1\r\nHost: a\r\n\r\n"); got != "" {
		t.Errorf("panic: got %q", got)
	}
	// Sent data arrives even if the server has not read all of the request: a reset would overtake
	// the data.
	for _, path := range []string{"/short", "/abort", "/panicked"} {
		got := exchange(t, addr, "POST "+path+" HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("x", 50000))
		if !strings.Contains(got, "five!") || strings.HasSuffix(got, "0\r\n\r\n") {
			t.Errorf("POST %s: got %q", path, got)
		}
	}
	if got := exchange(t, addr, "GET /hello HTTP/1.0\r\n\r\n"); !strings.HasSuffix(got, "\r\n\r\nhello ") {
		t.Errorf("afterwards: got %q", got)
	}
	// Without chunks the end of the connection ends the answer.
	got := exchange(t, addr, "GET /stream HTTP/1.0\r\n\r\n")
	if _, body, _ := strings.Cut(got, "\r\n\r\n"); body != string(large) {
		t.Errorf("HTTP/1.0: %d bytes", len(body))
	}
}

// A file that became shorter than announced breaks off the answer.
func TestFileShrinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, large[:1000], 0o600); err != nil {
		t.Fatal(err)
	}
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		f, err := os.Open(path)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		if err := x.SendFile(200, f, 0, 2000); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v", err)
		}
	})})
	resp, err := http.Get("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); len(body) != 1000 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

func TestTimeouts(t *testing.T) {
	broken := make(chan error, 2)
	cfg := httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		if string(x.Path) == "/body" {
			_, err := io.ReadAll(x.Body)
			broken <- err
			return
		}
		broken <- x.Send(200, bytes.Repeat(large, 5))
	})}
	// One server per case: a slow machine must meet only the tested limit.
	idle, head, stall := cfg, cfg, cfg
	idle.IdleTimeout, head.HeadTimeout, stall.StallTimeout = 100*time.Millisecond, 50*time.Millisecond, 200*time.Millisecond
	if got := exchange(t, start(t, idle), ""); got != "" {
		t.Errorf("idle: got %q", got)
	}
	if got := exchange(t, start(t, head), "GET / HTTP/1.1\r\nHost:"); !strings.HasPrefix(got, "HTTP/1.1 408 ") {
		t.Errorf("slow head: got %q", got)
	}
	addr := start(t, stall)
	c := dial(t, addr)
	if _, err := io.WriteString(c, "GET /body HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"); err != nil {
		t.Fatal(err)
	}
	if err := <-broken; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("slow body: %v", err)
	}
	c = dial(t, addr) // reads nothing
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-broken; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("slow reader: %v", err)
	}
}

// Another goroutine may read a body, and the handler may close the body.
func TestBodyClosed(t *testing.T) {
	entered := make(chan struct{})
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		read := make(chan error, 1)
		go func() {
			_, err := io.ReadAll(x.Body)
			read <- err
		}()
		<-entered
		if string(x.Path) == "/handler" {
			check(t, x.Body.Close())
			if err := <-read; !errors.Is(err, httpserver.ErrBodyClosed) {
				t.Errorf("got %v", err)
			}
		} // otherwise the handler's end closes the body
		check(t, x.Send(200, []byte("enough")))
	})})
	for _, path := range []string{"/handler", "/end"} {
		for _, framing := range []string{"Content-Length: 10\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n5\r\nabc"} {
			c := dial(t, addr)
			if _, err := io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: a\r\n"+framing); err != nil {
				t.Fatal(err)
			}
			entered <- struct{}{}
			got, err := io.ReadAll(c)
			if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200 ") || !strings.HasSuffix(string(got), "\r\n\r\nenough") {
				t.Errorf("%s: got %q, %v", path, got, err)
			}
		}
	}
}

// After the body was read, a handler learns that its client has disconnected. A client that sends
// another request is still connected.
func TestClientGone(t *testing.T) {
	entered, ended := make(chan struct{}), make(chan error)
	addr := start(t, httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		ctx := x.Context()
		if _, err := io.ReadAll(x.Body); err != nil {
			t.Error(err)
		}
		entered <- struct{}{}
		if string(x.Path) == "/stays" {
			<-entered
			ended <- ctx.Err()
			check(t, x.Send(200, []byte("still here")))
			return
		}
		<-ctx.Done()
		ended <- context.Cause(ctx)
	})})
	for _, body := range []string{"", "abc"} {
		c := dial(t, addr)
		if _, err := fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			t.Fatal(err)
		}
		<-entered
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, httpserver.ErrClientGone) || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	c := dial(t, addr)
	r := bufio.NewReader(c)
	if _, err := io.WriteString(c, "GET /stays HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for more := 2; more >= 0; more-- {
		<-entered
		if more > 0 { // the next request arrives while the server watches the connection
			if _, err := io.WriteString(c, "GET /stays HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // it is watched, and nothing is to happen
		entered <- struct{}{}
		if err := <-ended; err != nil {
			t.Errorf("got %v", err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != "still here" {
			t.Errorf("%q, %v", body, err)
		}
	}
}

// Shutdown lets running requests end and closes idle connections; Close ends all.
func TestShutdown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	s := httpserver.New(httpserver.Config{Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		switch string(x.Path) {
		case "/slow":
			entered <- struct{}{}
			<-leave
		case "/endless":
			entered <- struct{}{}
			<-x.Context().Done()
			if err := context.Cause(x.Context()); !errors.Is(err, httpserver.ErrClosed) {
				t.Errorf("ended by %v", err)
			}
		}
		_ = x.Send(200, nil)
	})})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	idle, slow, endless := dial(t, l.Addr().String()), dial(t, l.Addr().String()), dial(t, l.Addr().String())
	for c, path := range map[net.Conn]string{slow: "/slow", endless: "/endless"} {
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		<-entered
	}
	ctx, cancel := context.WithCancel(t.Context())
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(ctx) }()
	if got, err := io.ReadAll(idle); len(got) != 0 || err != nil {
		t.Errorf("idle: %q, %v", got, err)
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve: %v", err)
	}
	close(leave)
	if got, err := io.ReadAll(slow); !strings.HasPrefix(string(got), "HTTP/1.1 200 ") || !strings.Contains(string(got), "Connection: close") || err != nil {
		t.Errorf("slow: %q, %v", got, err)
	}
	cancel()
	if err := <-down; !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Serve(l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve afterwards: %v", err)
	}
}

// A field that would end the head early is refused.
func TestSet(t *testing.T) {
	for _, f := range [][2]string{{"", "a"}, {"a b", "c"}, {"a", "b\r\nX: c"}, {"a", "\x00"}, {"a:", "b"}} {
		if httpserver.ValidField(f[0], f[1]) {
			t.Errorf("%q", f)
		}
	}
	if !httpserver.ValidField("X-A", "b\tc \xff") {
		t.Error("refuses a good one")
	}
}

// A used connection allocates nothing for a request and its answer.
func TestAllocates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, large[:64<<10], 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() }) // after the server's end
	hello := []byte("hello\n")
	pool, err := buffer.New(buffer.Config{Stacks: 1 << 30}) // with stacks the pool would allocate too
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, pool.Close()) })
	addr := start(t, httpserver.Config{Memory: buffer.Memory{Pool: pool}, Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		x.Set("Content-Type", "text/plain")
		if string(x.Path) == "/file" {
			_ = x.SendFile(200, file, 0, 64<<10)
			return
		}
		_ = x.Send(200, hello)
	})})
	for path, size := range map[string]int{"/": len(hello), "/file": 64 << 10} {
		c := dial(t, addr)
		request := []byte("GET " + path + " HTTP/1.1\r\nHost: a\r\nUser-Agent: test\r\n\r\n")
		buf := make([]byte, 128<<10)
		one := func() {
			if _, err := c.Write(request); err != nil {
				t.Fatal(err)
			}
			for n := 0; ; {
				m, err := c.Read(buf[n:])
				if err != nil {
					t.Fatal(err)
				}
				n += m
				if head := bytes.Index(buf[:n], []byte("\r\n\r\n")); head >= 0 && n >= head+4+size {
					return
				}
			}
		}
		for range 10 {
			one()
		}
		if n := testing.AllocsPerRun(500, one); n > 0 {
			t.Errorf("%s: %v allocations", path, n)
		}
	}
}
