package rawhttp_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
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
