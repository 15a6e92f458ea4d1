package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine"
)

// TestHTTP2: events and answers over HTTP/2 are the same as over HTTP/1.1.
func TestHTTP2(t *testing.T) {
	var got [][2]string
	var body []byte
	r := serveFake(t, func(_ context.Context, _ string, r *engine.Request) (*engine.Response, error) {
		got = r.Headers
		var err error
		body, err = io.ReadAll(r.Body)
		return text(200, "answer", [2]string{"x-mine", "yes"}, [2]string{"connection", "close"}), err
	}, nil)
	tr := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	ask := func(path string, body io.Reader, header http.Header) (protocol string, status int, answered http.Header, text string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "POST", r.url+path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header
		req.Host = "shop.example"
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		all, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.Proto, resp.StatusCode, resp.Header, string(all)
	}
	protocol, status, answered, text := ask("/function/f", strings.NewReader("question"), http.Header{
		"User-Agent": {"test"}, "X-Forwarded-For": {"203.0.113.9"}, "X-Request-Id": {"abc-1"}, "Cookie": {"a=b; c=d"},
	})
	if protocol != "HTTP/2.0" || status != 200 || text != "answer" || string(body) != "question" || answered.Get("X-Mine") != "yes" || answered.Get("X-Request-Id") != "abc-1" {
		t.Errorf("%s %d %q to %q, %v", protocol, status, text, body, answered)
	}
	want := [][2]string{
		{"Host", "shop.example"},
		{"Content-Length", "8"},
		{"Cookie", "a=b; c=d"},
		{"Forwarded", `for=127.0.0.1;host="shop.example";proto=http`},
		{"User-Agent", "test"},
		{"X-Forwarded-For", "127.0.0.1"},
		{"X-Forwarded-Host", "shop.example"},
		{"X-Forwarded-Prefix", "/function/f"},
		{"X-Forwarded-Proto", "http"},
		{"X-Request-Id", "abc-1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for path, want := range map[string]struct {
		body   io.Reader
		status int
		code   string
	}{
		"/nowhere":                               {nil, 404, "not_found"},
		"/function/f":                            {bytes.NewReader(make([]byte, maxBody+1)), 413, "body_too_large"},
		"/function/" + strings.Repeat("a", 9000): {nil, 414, "path_too_long"},
	} {
		_, status, answered, text := ask(path, want.body, http.Header{})
		if status != want.status || !strings.Contains(text, want.code) || answered.Get("X-Request-Id") == "" {
			t.Errorf("%.20s: %d %q %v", path, status, text, answered)
		}
	}
}
