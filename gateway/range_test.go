package gateway

import (
	"context"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/engine"
)

// fileOf returns an open file with this text between other bytes.
func fileOf(t *testing.T, text string) (file *os.File, offset int64) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(path, []byte("before"+text+"behind"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file, int64(len("before"))
}

// selected returns the fields that conditions and ranges affect.
func selected(h http.Header) http.Header {
	out := http.Header{}
	for _, name := range []string{"Content-Type", "Content-Range", "Content-Length", "Etag", "Last-Modified"} {
		if v := h[name]; v != nil {
			out[name] = v
		}
	}
	return out
}

// Conditions and ranges select the same bytes as net/http's file server, for every relevant
// combination.
func TestConditionsBesidePeer(t *testing.T) {
	const content = "0123456789abcdefghijklmnopqrstuvwxyz"
	modified := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	earlier, same, later := modified.Add(-time.Hour).Format(http.TimeFormat), modified.Format(http.TimeFormat), modified.Add(time.Hour).Format(http.TimeFormat)
	file, offset := fileOf(t, content)
	validators := map[string]http.Header{
		"both":    {"Etag": {`"v1"`}, "Last-Modified": {same}},
		"weak":    {"Etag": {`W/"v1"`}, "Last-Modified": {same}},
		"dated":   {"Last-Modified": {same}},
		"neither": {},
	}
	var says http.Header
	var kind string
	r := serveFake(t, func(context.Context, string, *engine.Request) (*engine.Response, error) {
		resp := &engine.Response{Status: 200, Size: int64(len(content)), Body: io.NopCloser(broken{}), Header: [][2]string{{"content-type", "text/x"}}}
		switch kind {
		case "file":
			resp.File, resp.Offset = file, offset
		case "bytes":
			resp.Bytes = []byte(content)
		case "reader":
			resp.Body = io.NopCloser(strings.NewReader(content))
		}
		for name, v := range says {
			resp.Header = append(resp.Header, [2]string{name, v[0]})
		}
		return resp, nil
	}, nil)
	for _, kind = range []string{"file", "bytes", "reader"} {
		for name, of := range validators {
			if name == "neither" && kind != "file" {
				continue // TestNoRanges
			}
			says = of
			for _, lines := range [][]string{
				{},
				{`If-None-Match: "v1"`},
				{`If-None-Match: W/"v1"`},
				{`If-None-Match: "v2", "v1"`},
				{`If-None-Match: "v2"`},
				{"If-None-Match: *"},
				{`If-None-Match: v1, "v1"`},
				{"If-Modified-Since: " + earlier},
				{"If-Modified-Since: " + same},
				{"If-Modified-Since: " + later},
				{"If-Modified-Since: yesterday"},
				{`If-None-Match: "v2"`, "If-Modified-Since: " + later},
				{`If-None-Match: "v1"`, "If-Modified-Since: " + earlier},
				{`If-Match: "v1"`},
				{`If-Match: W/"v1"`},
				{`If-Match: "v2" , "v1"`},
				{`If-Match: "v2"`},
				{"If-Match: *"},
				{"If-Unmodified-Since: " + earlier},
				{"If-Unmodified-Since: " + same},
				{"If-Unmodified-Since: " + later},
				{"If-Unmodified-Since: soon"},
				{`If-Match: "v1"`, "If-Unmodified-Since: " + earlier},
				{`If-Match: "v1"`, `If-None-Match: "v1"`},
				{"Range: bytes=0-0"},
				{"Range: bytes=10-"},
				{"Range: bytes=-5"},
				{"Range: bytes=-500"},
				{"Range: bytes=5-500"},
				{"Range: bytes=35-35"},
				{"Range: bytes= 1-2 , "},
				{"Range: bytes=36-"},
				{"Range: bytes=99-100"},
				{"Range: bytes=0-1", `If-Range: "v1"`},
				{"Range: bytes=0-1", `If-Range: W/"v1"`},
				{"Range: bytes=0-1", `If-Range: "v2"`},
				{"Range: bytes=0-1", "If-Range: " + same},
				{"Range: bytes=0-1", "If-Range: " + later},
				{"Range: bytes=0-1", "If-Range: " + earlier},
				{"Range: bytes=99-", `If-Range: "v2"`},
				{"Range: bytes=0-1", `If-None-Match: "v1"`},
				{"Range: bytes=0-1", `If-Match: "v2"`},
			} {
				for _, method := range []string{"GET", "HEAD"} {
					if method == "HEAD" && strings.Contains(strings.Join(lines, " "), "Range") {
						continue // net/http answers HEAD with 206; RFC 9110 section 14.2 defines ranges for GET only
					}
					got, body := r.ask(method, "/function/f", lines...)
					w := httptest.NewRecorder()
					peer := httptest.NewRequest(method, "/", nil)
					for _, line := range lines {
						name, value, _ := strings.Cut(line, ": ")
						peer.Header.Add(name, value)
					}
					w.Header().Set("Content-Type", "text/x")
					maps.Copy(w.Header(), of)
					date := modified
					if of["Last-Modified"] == nil {
						date = time.Time{}
					}
					http.ServeContent(w, peer, "", date, strings.NewReader(content))
					status, want, wantBody := w.Code, selected(w.Header()), w.Body.String()
					if status >= 400 { // FRE reports errors as JSON
						for _, h := range []http.Header{want, got.Header} {
							for _, name := range []string{"Content-Type", "Content-Length", "Etag", "Last-Modified"} {
								h.Del(name)
							}
						}
						if method == "GET" && !strings.HasPrefix(body, `{"error":{"code":"`) {
							t.Errorf("%s, %s, %s %q: %q", kind, name, method, lines, body)
						}
						body, wantBody = "", ""
					}
					if diff := cmp.Diff(want, selected(got.Header)); got.StatusCode != status || body != wantBody || diff != "" {
						t.Errorf("%s, %s, %s %q: %d %q, want %d %q\n%s", kind, name, method, lines, got.StatusCode, body, status, wantBody, diff)
					}
					if got.StatusCode == 200 && got.Header.Get("Accept-Ranges") != "bytes" {
						t.Errorf("%s, %s, %s %q: Accept-Ranges %q", kind, name, method, lines, got.Header["Accept-Ranges"])
					}
				}
			}
		}
	}
}

// Several ranges arrive as parts of one answer.
func TestSeveralRanges(t *testing.T) {
	content := strings.Repeat("0123456789abcdef", 20_000)
	file, offset := fileOf(t, content)
	r := serveFake(t, func(context.Context, string, *engine.Request) (*engine.Response, error) {
		return &engine.Response{Status: 200, Size: int64(len(content)), File: file, Offset: offset, Body: io.NopCloser(broken{}), Header: [][2]string{{"content-type", "text/x"}}}, nil
	}, nil)
	a, body := r.ask("GET", "/function/f", "Range: bytes=2-5,-3, 999999999-, 100-200099")
	kind, params, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if err != nil || a.StatusCode != 206 || kind != "multipart/byteranges" {
		t.Fatalf("%d %v, %v", a.StatusCode, a.Header, err)
	}
	parts := multipart.NewReader(strings.NewReader(body), params["boundary"])
	for _, want := range []struct{ contentRange, body string }{
		{"bytes 2-5/320000", content[2:6]}, {"bytes 319997-319999/320000", "def"}, {"bytes 100-200099/320000", content[100:200100]},
	} {
		p, err := parts.NextPart()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(p)
		if err != nil || string(got) != want.body || p.Header.Get("Content-Range") != want.contentRange || p.Header.Get("Content-Type") != "text/x" {
			t.Errorf("%v, %d bytes, %v; want %s, %d bytes", p.Header, len(got), err, want.contentRange, len(want.body))
		}
	}
	if _, err := parts.NextPart(); err == nil {
		t.Error("one part too many")
	}
	// net/http answers 206 without a part here.
	if a, _ := r.ask("GET", "/function/f", "Range: bytes=-0"); a.StatusCode != 416 || a.Header.Get("Content-Range") != "bytes */320000" {
		t.Errorf("no bytes at all: %d %v", a.StatusCode, a.Header)
	}
	// Unknown units are ignored; net/http answers 416.
	if a, body := r.ask("GET", "/function/f", "Range: lines=1-2"); a.StatusCode != 200 || body != content {
		t.Errorf("lines: %d, %d bytes", a.StatusCode, len(body))
	}
	// Too many, overlapping or malformed ranges give the whole.
	for _, ranges := range []string{"0-,0-", strings.Repeat("0-0,", 65) + "1-1", "5-2", "a-", "--", "1", "0-1;2-3"} {
		if a, body := r.ask("GET", "/function/f", "Range: bytes="+ranges); a.StatusCode != 200 || body != content {
			t.Errorf("%.20s: %d, %d bytes", ranges, a.StatusCode, len(body))
		}
	}
}

// An answer has no ranges if it is not a file, not 200, not to GET, or if the function refuses
// ranges.
func TestNoRanges(t *testing.T) {
	const content = "0123456789"
	file, offset := fileOf(t, content)
	var resp func() *engine.Response
	r := serveFake(t, func(context.Context, string, *engine.Request) (*engine.Response, error) { return resp(), nil }, nil)
	whole := func(status int, header ...[2]string) func() *engine.Response {
		return func() *engine.Response {
			return &engine.Response{Status: status, Size: int64(len(content)), File: file, Offset: offset, Body: io.NopCloser(broken{}), Header: header}
		}
	}
	for name, tt := range map[string]struct {
		method string
		resp   func() *engine.Response
		status int
		body   string
	}{
		"stream": {"GET", func() *engine.Response {
			r := text(200, content, [2]string{"Etag", `"v1"`})
			r.Size = -1
			return r
		}, 200, content},
		"neither tag nor date": {"GET", func() *engine.Response { return text(200, content) }, 200, content},
		"partial by itself":    {"GET", whole(206, [2]string{"Content-Range", "bytes 0-9/100"}), 206, content},
		"another status":       {"GET", whole(404), 404, content},
		"another method":       {"POST", whole(200), 200, content},
		"HEAD":                 {"HEAD", whole(200), 200, ""},
		"function wants none":  {"GET", whole(200, [2]string{"Accept-Ranges", "none"}), 200, content},
		"empty": {"GET", func() *engine.Response {
			r := whole(200)()
			r.Size = 0
			return r
		}, 200, ""},
	} {
		resp = tt.resp
		if a, body := r.ask(tt.method, "/function/f", "Range: bytes=1-2"); a.StatusCode != tt.status || body != tt.body {
			t.Errorf("%s: %d %q %v", name, a.StatusCode, body, a.Header)
		}
	}
}
