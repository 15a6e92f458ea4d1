package httpserver_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
)

// dialFrom is dial from a loopback address.
func dialFrom(t *testing.T, local, addr string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	c, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(hangs)); err != nil {
		t.Fatal(err)
	}
	return c
}

// hello checks that a request on c is answered.
func hello(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.WriteString(c, "GET /hello?you HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for !strings.HasSuffix(got.String(), "hello you") {
		var b [1024]byte
		n, err := c.Read(b[:])
		if got.Write(b[:n]); err != nil {
			t.Fatalf("%q, %v", &got, err)
		}
	}
}

// ended reads to the end of a connection, which the server must close.
func ended(t *testing.T, c net.Conn) string {
	t.Helper()
	got, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%q, %v", got, err)
	}
	return string(got)
}

// If all slots are taken, a new connection gets the slot of the connection that has waited longest,
// with or without a part of a head.
func TestConnectionsTakeTurns(t *testing.T) {
	fretest.CheckLeaks(t)
	for _, sent := range []string{"", "GET / HTTP/1.1\r\nHost: a\r\n"} {
		s, addr := startServer(t, httpserver.Config{Handler: everything(t), MaxConnections: 3, MaxPerClient: 3})
		conns := make([]net.Conn, 3)
		for i := range conns {
			conns[i] = dial(t, addr)
			if _, err := io.WriteString(conns[i], sent); err != nil {
				t.Fatal(err)
			}
		}
		next := dial(t, addr)
		hello(t, next)
		if got := ended(t, conns[0]); got != "" {
			t.Errorf("%q: the first got %q", sent, got)
		}
		if got, want := s.Stats(), (httpserver.Stats{Open: 3, Evicted: 1}); got != want {
			t.Errorf("%q: %+v, want %+v", sent, got, want)
		}
		if sent == "" {
			hello(t, conns[1])
			hello(t, conns[2])
		}
		hello(t, next)
	}
}

// Connections with a running request keep their slots. New connections are refused with the advice
// to come again.
func TestConnectionsRefused(t *testing.T) {
	fretest.CheckLeaks(t)
	waiting := make(chan struct{}, 2)
	gate := make(chan struct{})
	s, addr := startServer(t, httpserver.Config{
		MaxConnections: 2, MaxPerClient: 2,
		Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
			waiting <- struct{}{}
			<-gate
			check(t, x.Send(200, []byte("hello you")))
		}),
	})
	first, second := dial(t, addr), dialH2(t, addr)
	if _, err := io.WriteString(first, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	second.request(1, "GET", "/", true)
	<-waiting
	<-waiting
	if got := exchange(t, addr, ""); !strings.HasPrefix(got, "HTTP/1.1 503 ") || !strings.Contains(got, "\r\nConnection: close\r\n") || !strings.HasSuffix(got, "too many connections of the client\n") {
		t.Errorf("got %q", got)
	}
	if got, want := s.Stats(), (httpserver.Stats{Open: 2, RefusedClient: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	close(gate)
	if got := ended(t, first); !strings.HasSuffix(got, "hello you") {
		t.Errorf("the first got %q", got)
	}
	if status, _ := second.answer(1); status != "200" {
		t.Errorf("the second got %s", status)
	}
	until(t, "the first has left", func() bool { return s.Stats().Open == 1 })
	hello(t, dial(t, addr))
}

// A client's connections take slots from each other, not from other clients. A proxy for many
// clients has no limit of its own.
func TestConnectionsOfClients(t *testing.T) {
	fretest.CheckLeaks(t)
	proxy := netip.MustParseAddr("127.0.0.3")
	s, addr := startServer(t, httpserver.Config{
		Handler: everything(t), MaxConnections: 8, MaxPerClient: 2,
		Shared: func(a netip.Addr) bool { return a == proxy },
	})
	other := dialFrom(t, "127.0.0.2", addr)
	mine := make([]net.Conn, 5)
	for i := range mine {
		mine[i] = dialFrom(t, "127.0.0.1", addr)
	}
	hello(t, mine[4])
	for i, c := range mine[:3] {
		if got := ended(t, c); got != "" {
			t.Errorf("connection %d got %q", i, got)
		}
	}
	hello(t, mine[3])
	hello(t, other)
	shared := make([]net.Conn, 5)
	for i := range shared {
		shared[i] = dialFrom(t, proxy.String(), addr)
	}
	for _, c := range shared {
		hello(t, c)
	}
	if got, want := s.Stats(), (httpserver.Stats{Open: 8, Evicted: 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A connection of HTTP/2 without streams may lose its slot, and the client gets GOAWAY. The same
// holds with TLS.
func TestConnectionsTakeTurnsHTTP2(t *testing.T) {
	fretest.CheckLeaks(t)
	s, addr := startServer(t, httpserver.Config{Handler: everything(t), MaxConnections: 1})
	c := dialH2(t, addr)
	c.request(1, "GET", "/hello?you", true)
	if status, body := c.answer(1); status != "200" || string(body) != "hello you" {
		t.Errorf("%s %q", status, body)
	}
	// The connection gives its slot back shortly after the answer.
	until(t, "another one is served", func() bool {
		return strings.HasSuffix(exchange(t, addr, "GET /hello?you HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"), "hello you")
	})
	if code := c.goAway(); code != http2.ErrCodeNo.String() {
		t.Errorf("got %s", code)
	}
	until(t, "all have left", func() bool { return s.Stats().Open == 0 })
	c = dialH2(t, addr)
	c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block(":method", "GET"), EndStream: true, EndHeaders: true}))
	if status, _ := c.answer(1); status != http2.ErrCodeProtocol.String() {
		t.Errorf("malformed: %s", status)
	}
	hello(t, dial(t, addr)) // a malformed request does not keep the slot
	if n := s.Stats().Evicted; n != 2 {
		t.Errorf("%d evicted, want 2", n)
	}

	addr = start(t, httpserver.Config{Handler: everything(t), MaxConnections: 1, TLS: &tls.Config{GetCertificate: certificate(t).Get}})
	silent := dial(t, addr)
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get("https://" + addr + "/hello?you")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || string(got) != "hello you" {
		t.Errorf("over TLS: %q, %v", got, err)
	}
	if got := ended(t, silent); got != "" {
		t.Errorf("one that never shook hands got %q", got)
	}
}
