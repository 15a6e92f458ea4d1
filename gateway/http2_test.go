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

// TestHTTP2: over HTTP/2 events and answers are those of HTTP/1.1.
func TestHTTP2(t *testing.T) {
	var got [][2]string
	var body []byte
	r := serveFake(t, func(_ context.Context, _ string, r *engine.Request) (*engine.Response, error) {
		got = r.Header
		var err error
		body, err = io.ReadAll(r.Body)
		return text(200, "answer", [2]string{"x-mine", "yes"}, [2]string{"connection", "close"}), err
	}, nil)
	tr := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	ask := func(path string, body io.Reader, header http.Header) (*http.Response, string) {
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
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp, string(text)
	}
	resp, text := ask("/function/f", strings.NewReader("question"), http.Header{
		"User-Agent": {"test"}, "X-Forwarded-For": {"203.0.113.9"}, "X-Request-Id": {"abc-1"}, "Cookie": {"a=b; c=d"},
	})
	if resp.Proto != "HTTP/2.0" || resp.StatusCode != 200 || text != "answer" || string(body) != "question" || resp.Header.Get("X-Mine") != "yes" || resp.Header.Get("X-Request-Id") != "abc-1" {
		t.Errorf("%s %s %q to %q, %v", resp.Proto, resp.Status, text, body, resp.Header)
	}
	want := [][2]string{
		{"Host", "shop.example"},
		{"Content-Length", "8"},
		{"Cookie", "a=b; c=d"},
		{"Forwarded", `for=127.0.0.1;host="shop.example";proto=http`},
		{"User-Agent", "test"},
		{"X-Forwarded-For", "127.0.0.1"},
		{"X-Forwarded-Host", "shop.example"},
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
		resp, text := ask(path, want.body, http.Header{})
		if resp.StatusCode != want.status || !strings.Contains(text, want.code) || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("%.20s: %s %q %v", path, resp.Status, text, resp.Header)
		}
	}
}
