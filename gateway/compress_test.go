package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/fre-engine/fre/engine"
)

func compressing(c *Config) { c.Compress = true }

// decoded decodes a body in one of the codings.
func decoded(t *testing.T, coding, body string) string {
	t.Helper()
	var r io.Reader = strings.NewReader(body)
	switch coding {
	case "gzip":
		z, err := gzip.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		r = z
	case "zstd":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		r = z
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Errorf("%s: %v", coding, err)
	}
	return string(b)
}

// Complete bodies, files and answers to HEAD use the client's preferred coding, with a length, a
// weak tag and Vary.
func TestCompressed(t *testing.T) {
	content := strings.Repeat(`{"name": "Ada"}`, 10_000)
	file, offset := fileOf(t, content)
	header := [][2]string{{"content-type", "application/json; charset=utf-8"}, {"etag", `"v1"`}, {"vary", "Origin"}}
	r := serveFake(t, func(_ context.Context, name string, _ *engine.Request) (*engine.Response, error) {
		if name == "file" {
			return &engine.Response{Status: 200, Size: int64(len(content)), File: file, Offset: offset, Body: io.NopCloser(broken{}), Header: header}, nil
		}
		return text(200, content, header...), nil
	}, compressing)
	for accept, coding := range map[string]string{
		"": "", "gzip": "gzip", "gzip, deflate, br, zstd": "zstd", "gzip;q=1.0, zstd;q=0.5": "gzip", "x-gzip": "gzip", "*": "zstd", "*;q=0.1, zstd;q=0": "gzip",
		"br": "", "gzip;q=0": "", "identity": "", "GZIP ; Q=0.8": "gzip", "gzip;q=what": "", "gzip;q=1.5": "gzip",
	} {
		for _, name := range []string{"text", "file"} {
			var lines []string
			if accept != "" {
				lines = append(lines, "Accept-Encoding: "+accept)
			}
			for _, method := range []string{"GET", "HEAD"} {
				a, body := r.ask(method, "/function/"+name, lines...)
				tag := `"v1"`
				if coding != "" {
					tag = "W/" + tag
				}
				if a.StatusCode != 200 || a.Header.Get("Content-Encoding") != coding || a.Header.Get("Etag") != tag ||
					!slices.Equal(a.Header["Vary"], []string{"Origin", "Accept-Encoding"}) || (a.Header.Get("Accept-Ranges") != "") != (coding == "") {
					t.Errorf("%s %s, %q: %d %v", method, name, accept, a.StatusCode, a.Header)
				}
				if method == "HEAD" {
					continue
				}
				if got := decoded(t, coding, body); got != content || coding != "" && len(body) > len(content)/10 || a.Header.Get("Content-Length") != fmt.Sprint(len(body)) {
					t.Errorf("%s, %q: %d bytes that are %d, %v", name, accept, len(body), len(got), a.Header)
				}
			}
		}
	}
	if a, body := r.ask("GET", "/function/file", "Accept-Encoding: gzip", "Range: bytes=0-4"); a.StatusCode != 206 || body != content[:5] || a.Header.Get("Etag") != `"v1"` {
		t.Errorf("range: %d %q %v", a.StatusCode, body, a.Header)
	}
	if a, _ := r.ask("GET", "/function/file", "Accept-Encoding: gzip", `If-None-Match: W/"v1"`); a.StatusCode != 304 || !slices.Contains(a.Header["Vary"], "Accept-Encoding") {
		t.Errorf("condition: %d %v", a.StatusCode, a.Header)
	}
}

// An answer is not compressed if compression saves little or must not change the answer.
func TestNotCompressed(t *testing.T) {
	content := strings.Repeat("0123456789abcdef", 1000)
	large, offset := fileOf(t, strings.Repeat(content, 80))
	kind := func(k string) [2]string { return [2]string{"Content-Type", k} }
	var resp *engine.Response
	r := serveFake(t, func(context.Context, string, *engine.Request) (*engine.Response, error) { return resp, nil }, compressing)
	for name, of := range map[string]*engine.Response{
		"small":         text(200, content[:1023], kind("text/plain")),
		"no type":       text(200, content),
		"picture":       text(200, content, kind("image/png")),
		"archive":       text(200, content, kind("application/zip")),
		"events":        text(200, content, kind("text/event-stream")),
		"coded already": text(200, content, kind("text/plain"), [2]string{"content-encoding", "br"}),
		"no transform":  text(200, content, kind("text/plain"), [2]string{"Cache-Control", "public, No-Transform"}),
		"a part":        text(206, content, kind("text/plain"), [2]string{"Content-Range", "bytes 0-15999/20000"}),
		"an error":      text(404, content, kind("text/plain")),
		"a large file":  {Status: 200, Size: int64(80 * len(content)), File: large, Offset: offset, Body: io.NopCloser(broken{}), Header: [][2]string{kind("text/plain")}},
	} {
		resp = of
		status, size := of.Status, of.Size
		a, body := r.ask("GET", "/function/f", "Accept-Encoding: gzip, zstd")
		if coding := a.Header.Get("Content-Encoding"); a.StatusCode != status || int64(len(body)) != size || coding != "" && coding != "br" {
			t.Errorf("%s: %d, %d bytes, %v", name, a.StatusCode, len(body), a.Header)
		}
	}
	off := serveFake(t, func(context.Context, string, *engine.Request) (*engine.Response, error) {
		return text(200, content, kind("text/plain")), nil
	}, nil)
	if a, body := off.ask("GET", "/function/f", "Accept-Encoding: gzip"); body != content || a.Header["Vary"] != nil {
		t.Errorf("turned off: %d bytes, %v", len(body), a.Header)
	}
}

// The client can decode each piece of a stream at once. A stream that breaks off does not look
// complete.
func TestCompressedStream(t *testing.T) {
	for _, coding := range []string{"gzip", "zstd"} {
		read, write := io.Pipe()
		r := serveFake(t, func(context.Context, string, *engine.Request) (*engine.Response, error) {
			return &engine.Response{Status: 200, Size: -1, Body: read, Header: [][2]string{{"Content-Type", "text/plain"}}}, nil
		}, compressing)
		c := r.dial()
		c.send("GET /function/f HTTP/1.1\r\nHost: h\r\nAccept-Encoding: %s\r\n\r\n", coding)
		resp, err := http.ReadResponse(c.Reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		var plain io.Reader
		for i, piece := range []string{"one\n", "two\n"} {
			if _, err := io.WriteString(write, piece); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				if plain, err = gzipOrZstd(coding, resp.Body); err != nil {
					t.Fatal(err)
				}
			}
			got := make([]byte, len(piece))
			if _, err := io.ReadFull(plain, got); err != nil || string(got) != piece {
				t.Fatalf("%s: %q, %v, want %q", coding, got, err, piece)
			}
		}
		_ = write.CloseWithError(fmt.Errorf("broken"))
		if _, err := io.Copy(io.Discard, plain); err == nil {
			t.Errorf("%s: broken off, and taken for whole", coding)
		}
		if z, ok := plain.(*zstd.Decoder); ok {
			z.Close()
		}
		_ = resp.Body.Close()
		_ = c.Close()
	}
}

func gzipOrZstd(coding string, r io.Reader) (io.Reader, error) {
	if coding == "gzip" {
		return gzip.NewReader(r)
	}
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
}
