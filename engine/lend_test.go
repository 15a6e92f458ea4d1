package engine

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http/httputil"
	"testing"

	"github.com/fre-engine/fre/image"
)

// TestLend: a function writes a long answer from the sandbox directly to the client's connection if
// the template asks for this, the operator lists the function, and the caller lends a connection.
// Other functions get no connection.
func TestLend(t *testing.T) {
	r := open(t)
	r.stop()
	r.start(Config{LendConnections: []string{"default/trusted", "default/modest"}})
	lends := func(cfg *image.Config) { cfg.Tenant, cfg.Network.LendConnection = "default", true }
	r.deploy("trusted", lends)
	r.deploy("modest", func(cfg *image.Config) { cfg.Tenant = "default" }) // its template does not ask
	const size = 4<<20 + 1
	for _, test := range []struct {
		name  string
		lends bool // the caller
		lent  bool
	}{
		{"trusted", true, true}, {"trusted", true, true}, {"trusted", false, false}, {"modest", true, false},
	} {
		resp, err := r.Invoke(t.Context(), test.name, &Request{Method: "GET", Path: "/stream", Query: "4194305", Socket: test.lends})
		if err != nil {
			t.Fatal(err)
		}
		first, err := io.ReadAll(resp.Body)
		if lent := errors.Is(err, ErrSocketWanted); lent != test.lent || !lent && err != nil || (resp.Lend != nil) != test.lent {
			t.Fatalf("%+v: %v after %d bytes", test, err, len(first))
		}
		var rest []byte
		if test.lent {
			rest = lend(t, resp)
		}
		if got := append(first, rest...); !bytes.Equal(got, bytes.Repeat([]byte("x"), size)) {
			t.Errorf("%+v: %d bytes; want %d of x", test, len(got), size)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		r.idle(test.name)
	}
	if f, err := r.Function("trusted"); err != nil || f.Failures != 0 {
		t.Errorf("%+v, %v; want no failures", f, err)
	}
}

// lend lends the function a connection and returns the bytes from its other end.
func lend(t *testing.T, resp *Response) []byte {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ours, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	got := make(chan []byte, 1)
	go func() {
		b, err := io.ReadAll(httputil.NewChunkedReader(client))
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	raw, err := ours.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	n, err := resp.Lend(raw)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(ours, "0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	b := <-got
	if n != int64(len(b)) {
		t.Errorf("%d bytes, it says, of %d", n, len(b))
	}
	if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil {
		t.Errorf("%d bytes more, %v", len(rest), err)
	}
	return b
}
