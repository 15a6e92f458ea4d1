package rawhttp_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/bench/internal/rawhttp"
)

func TestConn(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		switch r.URL.Path {
		case "/echo":
			w.Header().Set("X-Method", r.Method)
			_, _ = w.Write(body)
		case "/empty":
			w.WriteHeader(http.StatusTeapot)
		case "/chunked":
			_, _ = w.Write(body)
			w.(http.Flusher).Flush()
		case "/close":
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")
		}
	}))
	defer server.Close()
	addr := strings.TrimPrefix(server.URL, "http://")

	type answer struct {
		Status int
		Method string
		Body   string
	}
	for _, c := range []struct {
		name, path, body string
		want             answer
		err              error
	}{
		{"body", "/echo", "hello", answer{200, "POST", "hello"}, nil},
		{"empty body", "/empty", "", answer{418, "", ""}, nil},
		{"chunks", "/chunked", "hello", answer{200, "", "hello"}, nil},
		{"large chunks", "/echo", strings.Repeat("x", 100_000), answer{200, "POST", strings.Repeat("x", 100_000)}, nil},
		{"until the end", "/close", "hello", answer{200, "", ""}, rawhttp.ErrUnknownLength},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := rawhttp.Dial(addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for range 2 { // the connection is kept
				resp, err := conn.Do(rawhttp.Post(addr, c.path, []byte(c.body)))
				if !errors.Is(err, c.err) {
					t.Fatalf("got error %v, want %v", err, c.err)
				}
				got := answer{Status: resp.Status, Body: string(resp.Body)}
				got.Method, _ = resp.Header("x-method")
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("answer (-want +got):\n%s", diff)
				}
				if c.err != nil {
					break
				}
			}
		})
	}
}

// Requests with headers work over a Unix socket, and a 304 has no body despite its Content-Length.
func TestUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("If-None-Match") == `"1"` {
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, r.Method)
	})}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	defer func() { _ = server.Close(); <-done }()
	conn, err := rawhttp.DialUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, test := range []struct {
		header []string
		status int
		body   string
	}{{nil, 200, "GET"}, {[]string{`If-None-Match: "1"`}, 304, ""}, {[]string{"X-A: b", "X-C: d"}, 200, "GET"}} {
		resp, err := conn.Do(rawhttp.Get("x", "/", test.header...))
		if err != nil || resp.Status != test.status || string(resp.Body) != test.body {
			t.Errorf("%q: status %d, body %q, error %v, want %d and %q", test.header, resp.Status, resp.Body, err, test.status, test.body)
		}
	}
}
