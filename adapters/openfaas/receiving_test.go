package openfaas

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/httpserver"
)

// TestBuildDrips: a client that sends a body too slowly gets 408 at the deadline and loses the
// place. The attempt counts as a failed authentication, on both servers.
func TestBuildDrips(t *testing.T) {
	for name, serve := range map[string]func(*testing.T, http.Handler) string{
		"net/http": func(t *testing.T, h http.Handler) string {
			t.Helper()
			s := httptest.NewServer(h)
			t.Cleanup(s.Close)
			return s.Listener.Addr().String()
		},
		"the gateway's": serveGateway,
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := openAccess(t)
			h := New(Config{
				Access: a, Log: slog.New(slog.DiscardHandler), Scratch: func() (string, error) { return t.TempDir(), nil },
				Builders: []Builder{{"acme", []byte("a secret of acme's builder")}}, ReceiveTime: 20 * time.Millisecond,
			})
			addr := serve(t, h)
			for range maxReceivingOf + 1 { // one after the other: each has freed its place
				conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				_, err = fmt.Fprintf(conn, "POST /build HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nX-Build-Signature: sha256=%s\r\n\r\ndrip", strings.Repeat("0", 64))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusRequestTimeout {
					t.Errorf("status %d, want %d", resp.StatusCode, http.StatusRequestTimeout)
				}
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// serveGateway serves with FRE's own server, as the gateway does.
func serveGateway(t *testing.T, h http.Handler) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := httpserver.New(httpserver.Config{Handler: httpserver.NetHTTP(h)})
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return l.Addr().String()
}
