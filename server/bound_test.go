package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/server/intake"
)

// If a request is refused or answered before its body has arrived, the server reads no more and
// closes the connection. A handler with a complete body may take its time.
func TestLimitBody(t *testing.T) {
	fretest.CheckLeaks(t)
	const patience = 20 * time.Millisecond
	s := httptest.NewServer(limitBody(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/refused":
			w.WriteHeader(http.StatusUnauthorized)
		case "/read":
			body, err := io.ReadAll(r.Body)
			if err != nil || string(body) != "body" {
				t.Errorf("%q, %v", body, err)
			}
			select {
			case <-time.After(10 * patience):
			case <-r.Context().Done():
				t.Error("its client is taken for gone")
			}
		}
	}), patience, patience))
	defer s.Close()
	for path, length := range map[string]string{"/refused": "Content-Length: 100", "/": "Transfer-Encoding: chunked"} {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: a\r\n"+length+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(5 * time.Minute)); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the connection goes on: %v", path, err)
		}
		if err := errors.Join(resp.Body.Close(), c.Close()); err != nil {
			t.Error(err)
		}
	}
	resp, err := http.Post(s.URL+"/read", "text/plain", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Error(resp.Status, err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// A tenant may upload a limited number of templates at a time. Uploads over the socket are not
// counted.
func TestUploadSlots(t *testing.T) {
	s := &buildRoutes{remote: true, uploads: intake.Slots[string]{All: 3, Of: 1}}
	upload := func(want bool) func() {
		t.Helper()
		w := httptest.NewRecorder()
		leave, err := s.upload(w, httptest.NewRequest(http.MethodPost, "/v1/build", http.NoBody))
		if (err == nil) != want || want != (w.Header().Get("Retry-After") == "") {
			t.Errorf("%v, %v", err, w.Header())
		}
		return leave
	}
	leave := upload(true)
	upload(false)
	leave()
	upload(true)
	s.remote = false
	upload(true)
}

// The audit log has an action even if the client disconnects before the answer.
func TestAuditBrokenOff(t *testing.T) {
	dir := t.TempDir()
	a, err := access.Open(access.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	s := &guard{access: a}
	handle := s.guarded(route{http.MethodPost, "/v1/agents/{id}/exec", func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(http.StatusOK)
		panic(http.ErrAbortHandler)
	}})
	func() {
		defer func() {
			if v := recover(); v != http.ErrAbortHandler { //nolint:errorlint // it is that very one
				t.Errorf("it panics with %v", v)
			}
		}()
		t.Error(handle(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/agents/x/exec", http.NoBody)))
	}()
	raw, err := os.ReadFile(filepath.Join(dir, "audit.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	var e access.Entry
	if err := json.Unmarshal(raw, &e); err != nil || e.Action != "POST /v1/agents/{id}/exec" || e.Result != access.Failed || e.Reason == "" {
		t.Errorf("%s: %v", raw, err)
	}
}

// A client is an IPv4 address or an IPv6 /64. Connections from proxies count only in the total.
func TestBounded(t *testing.T) {
	l := Bounded(nil, 4, 2, func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.9") }).(*boundedListener)
	enter := func(from string, want bool) func() {
		t.Helper()
		leave, ok := l.enter(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from)))
		if ok != want {
			t.Errorf("%s comes: %t, want %t", from, ok, want)
		}
		return leave
	}
	first, second := enter("[2001:db8::1]:1", true), enter("[2001:db8::2]:1", true)
	enter("[2001:db8::3]:1", false) // a /64 is one client
	first()
	first()
	all := []func(){second, enter("192.0.2.9:1", true), enter("192.0.2.9:2", true), enter("[::ffff:192.0.2.9]:3", true)}
	enter("192.0.2.9:4", false)
	for _, leave := range all {
		leave()
	}
	enter("[2001:db8::4]:1", true)
	enter("[2001:db8::5]:1", true)
}

// The listener closes connections over the limit and continues.
func TestBoundedAccept(t *testing.T) {
	fretest.CheckLeaks(t)
	inner, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	_ = s.Listener.Close() // the default listener is not used
	s.Listener = Bounded(inner, 2, 1, func(netip.Addr) bool { return false })
	s.Start()
	defer s.Close()
	hold, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	more, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := more.Read(make([]byte, 1)); err == nil {
		t.Error("one more is let in")
	}
	if err := errors.Join(more.Close(), hold.Close()); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(5 * time.Minute); ; {
		resp, err := s.Client().Get(s.URL)
		if err == nil {
			if err := resp.Body.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
