package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image"
)

// asking is a body whose function asks for the client's connection after a first piece. With the
// connection the function writes the rest there; else the body continues here.
type asking struct {
	pieces []string // to be read
	asks   bool
	lent   *atomic.Int32 // times
	fails  error
}

func (a *asking) Read(p []byte) (int, error) {
	switch {
	case len(a.pieces) == 1 && a.asks:
		return 0, engine.ErrSocketWanted
	case len(a.pieces) == 0:
		return 0, io.EOF
	}
	n := copy(p, a.pieces[0])
	a.pieces = a.pieces[1:]
	return n, nil
}

func (a *asking) Close() error { return nil }

func (a *asking) lend(conn syscall.RawConn) (int64, error) {
	a.asks = false
	if conn == nil {
		return 0, nil
	}
	a.lent.Add(1)
	rest := a.pieces[0]
	a.pieces = nil
	var werr error
	err := conn.Control(func(fd uintptr) {
		other, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			werr = err
			return
		}
		f := os.NewFile(uintptr(other), "client")
		_, err = io.WriteString(f, "5\r\n"+rest+"\r\n")
		werr = errors.Join(err, f.Close())
	})
	return int64(len(rest)), errors.Join(err, werr, a.fails)
}

// TestLend: a function that asks for the client's connection gets it if the gateway need not change
// the answer. Otherwise the function is refused, and the answer is the same.
func TestLend(t *testing.T) {
	var offered atomic.Bool
	var lent atomic.Int32
	r := serveFake(t, func(_ context.Context, name string, req *engine.Request) (*engine.Response, error) {
		offered.Store(req.Socket)
		body := &asking{pieces: []string{"hello, ", "world"}, asks: req.Socket, lent: &lent}
		resp := &engine.Response{Status: 200, Size: -1, Body: body, Header: [][2]string{{"content-type", "text/plain"}}}
		switch name {
		case "fails":
			body.fails = errors.New("broken")
		case "none":
			resp.Status = 204
		}
		if req.Socket {
			resp.Lend = body.lend
		}
		return resp, nil
	}, compressing)
	for _, test := range []struct {
		name, method, line, want string
		offered                  bool
		lent                     int32
	}{
		{"plain", "GET", "X: y", "hello, world", true, 1},
		{"closing", "GET", "Connection: close", "hello, world", true, 1},
		{"head", "HEAD", "X: y", "", false, 0},
		{"coded", "GET", "Accept-Encoding: gzip", "hello, world", true, 0},
		{"none", "GET", "X: y", "", true, 0},
	} {
		lent.Store(0)
		a, got := r.ask(test.method, "/function/"+test.name, test.line)
		if coding := a.Header.Get("Content-Encoding"); coding != "" {
			got = decoded(t, coding, got)
		}
		if got != test.want || offered.Load() != test.offered || lent.Load() != test.lent {
			t.Errorf("%s: %q, offered %t, lent %d times", test.name, got, offered.Load(), lent.Load())
		}
	}

	c := r.dial()
	defer c.Close()
	c.send("GET /function/fails HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, got, err := c.answer("GET"); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.HasSuffix(got, "world") {
		t.Errorf("fails: %q, %v; want it broken off", got, err)
	}

	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get(r.url + "/function/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "hello, world" || offered.Load() {
		t.Errorf("over HTTP/2: %q, %v, offered %t", got, err, offered.Load())
	}
}

// TestLendToOne: a connection from a proxy, or before a switch to another protocol, is not lent.
func TestLendToOne(t *testing.T) {
	var offered atomic.Bool
	proxied := func(_ context.Context, _ string, req *engine.Request) (*engine.Response, error) {
		offered.Store(req.Socket)
		return text(200, "answer"), nil
	}
	behind := serveFake(t, proxied, func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	if _, got := behind.ask("GET", "/function/f"); got != "answer" || offered.Load() {
		t.Errorf("behind a proxy: %q, offered %t", got, offered.Load())
	}
	direct := serveFake(t, proxied, nil)
	for line, want := range map[string]bool{"X: y": true, "Connection: Upgrade\r\nUpgrade: shout": false} {
		if _, got := direct.ask("GET", "/function/f", line); got != "answer" || offered.Load() != want {
			t.Errorf("%q: %q, offered %t", line, got, offered.Load())
		}
	}
}

// TestLendToWhoIsGone: if a client stalls or disconnects while a function has the connection, only
// this event fails, and the function's place is free again.
func TestLendToWhoIsGone(t *testing.T) {
	const stall = 300 * time.Millisecond
	r := openServer(t, func(*Config) {}, stall)
	r.deploy("lent", func(c *image.Config) {
		c.Network.LendConnection = true
		c.Instances.Max, c.Resources.Timeout = 1, time.Hour // without an early release the place stays taken for an hour
	})
	resp, err := r.eng.Invoke(t.Context(), "lent", &engine.Request{Method: http.MethodGet, Path: "/stream", Query: "100000", Socket: true})
	if err != nil || resp.Lend == nil {
		t.Fatalf("nothing would be lent: %v", err)
	}
	check(t, resp.Body.Close())
	for name, leave := range map[string]func(c conn){
		"stalls":    func(conn) {},
		"closes":    func(c conn) { check(t, c.Close()) },
		"resets":    func(c conn) { check(t, c.Conn.(*net.TCPConn).SetLinger(0)); check(t, c.Close()) },
		"is halved": func(c conn) { check(t, c.Conn.(*net.TCPConn).CloseWrite()) },
	} {
		c := r.dial()
		c.send("GET /function/lent/stream?16777216 HTTP/1.1\r\nHost: a\r\n\r\n")
		line, err := c.ReadString('\n')
		if err != nil || !strings.Contains(line, "200") {
			rest, _ := io.ReadAll(io.LimitReader(c.Reader, 2000))
			t.Fatalf("%s: %q, %v, %s", name, line, err, rest)
		}
		leave(c)
		if status, body := do(t, http.MethodGet, r.url+"/function/lent/stream?100000", nil); status != 200 || len(body) != 100_000 {
			t.Errorf("%s: then %d, %d bytes", name, status, len(body))
		}
		if name == "stalls" {
			n, err := io.Copy(io.Discard, c.Reader)
			if err == nil || n >= 16<<20 {
				t.Errorf("%s: %d bytes, %v; want it broken off", name, n, err)
			}
		}
		_ = c.Close()
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
