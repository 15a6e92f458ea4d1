package service

import (
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/video/asset"
)

// TestOpenAPI: the OpenAPI description names exactly the served routes.
func TestOpenAPI(t *testing.T) {
	var described struct {
		Paths map[string]map[string]any `yaml:"paths"`
	}
	if err := yaml.Unmarshal(openAPI, &described); err != nil {
		t.Fatal(err)
	}
	var want []string
	for path, methods := range described.Paths {
		for method := range methods {
			if method != "parameters" {
				want = append(want, strings.ToUpper(method)+" "+path)
			}
		}
	}
	routes := (&rest{}).routes()
	maps.Copy(routes, (&liveAPI{}).routes())
	got := slices.Sorted(maps.Keys(routes))
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("routes %q\nopenapi.yaml %q", got, want)
	}
}

// TestTemplate: the template directory is complete, or the error gives the next step.
func TestTemplate(t *testing.T) {
	dir := t.TempDir()
	if err := Template(dir, 61*time.Minute); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "code", "transcoder"))
	if err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("%v, %v", info, err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "fret.yaml"))
	var template struct{ Resources struct{ Timeout string } }
	if err := errors.Join(err, yaml.Unmarshal(b, &template)); err != nil || template.Resources.Timeout != "1h1m0s" {
		t.Errorf("%v, %+v", err, template)
	}
}

// TestFileNames: a client's file name is shown as one line, without directories.
func TestFileNames(t *testing.T) {
	for name, want := range map[string]string{
		"a.mp4": "a.mp4", "../../etc/passwd": "passwd", `C:\films\a.mp4`: "a.mp4", "a\nb\x00\x1b[2J": "ab[2J", "": "video", "/": "video", "\xff\xfe": "video",
		strings.Repeat("é", 300): strings.Repeat("é", 200), "ä ö.mov": "ä ö.mov",
	} {
		if got := fileName(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// TestNoRoute: an unknown path gets an error in the usual JSON form.
func TestNoRoute(t *testing.T) {
	h := &rest{}
	w := httptest.NewRecorder()
	h.fail(w, httptest.NewRequest(http.MethodGet, "/v1/x", nil), os.ErrNotExist)
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), `"code":"not_found"`) || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
	}
}

// TestBodies: a video is the body or a file of a form. A form without a file is 415. An empty video
// is refused at once, in every form of upload.
func TestBodies(t *testing.T) {
	library, _, err := asset.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	engine := client.New(filepath.Join(t.TempDir(), "none.sock"))
	s := New(Config{Library: library, Engine: engine, Log: slog.New(slog.DiscardHandler), Template: Template})
	h, closing, err := s.Handler(HTTPConfig{Uploads: t.TempDir(), Log: slog.New(slog.DiscardHandler), Address: func(*asset.Asset) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		s.Close()
		engine.Close()
		if err := errors.Join(closing(), library.Close()); err != nil {
			t.Error(err)
		}
	}()
	const form = "multipart/form-data; boundary=x"
	field := "--x\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\nholiday\r\n"
	file := func(body string) string {
		return "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a/film.mp4\"\r\nContent-Type: video/mp4\r\n\r\n" + body + "\r\n--x--\r\n"
	}
	for _, tt := range []struct {
		name, path, kind, body string
		length                 string // of tus
		status                 int
		words                  string // of the answer
	}{
		{"the body", "/v1/assets?name=b.mp4", "video/mp4", "abc", "", 201, `"name":"b.mp4"`},
		{"curl's default", "/v1/assets", "application/x-www-form-urlencoded", "abc", "", 201, `"size":3`},
		{"no type", "/v1/assets", "", "abc", "", 201, `"size":3`},
		{"a form", "/v1/assets", form, field + file("abcd"), "", 201, `"name":"film.mp4"`},
		{"a form with a name beside it", "/v1/assets?name=other", form, file("abcd"), "", 201, `"size":4`},
		{"a form without a file", "/v1/assets", form, field + "--x--\r\n", "", 415, "has no file"},
		{"a form that is none", "/v1/assets", form, "abcd", "", 415, "has no file"},
		{"a form without a boundary", "/v1/assets", "multipart/form-data", file("abcd"), "", 415, "no form"},
		{"no byte", "/v1/assets", "video/mp4", "", "", 422, "0 bytes"},
		{"no byte in a form", "/v1/assets", form, file(""), "", 422, "0 bytes"},
		{"no byte by tus", "/v1/uploads/", "", "", "0", 422, "0 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := len(library.List())
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, tt.path, strings.NewReader(tt.body))
			if tt.length != "" {
				r.Header.Set("Tus-Resumable", "1.0.0")
				r.Header.Set("Upload-Length", tt.length)
			}
			if tt.kind != "" {
				r.Header.Set("Content-Type", tt.kind)
			}
			h.ServeHTTP(w, r)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.words) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if made := len(library.List()) - before; (tt.status == 201) != (made == 1) {
				t.Errorf("%d assets more", made)
			}
		})
	}
}

// TestRefusedBodies: while memory is short, large bodies are refused with Retry-After. All else
// continues, and the status reports the shortage.
func TestRefusedBodies(t *testing.T) {
	library, _, err := asset.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	engine := client.New(filepath.Join(t.TempDir(), "none.sock"))
	s := New(Config{Library: library, Engine: engine, Log: slog.New(slog.DiscardHandler), Template: Template})
	var short atomic.Bool
	h, closing, err := s.Handler(HTTPConfig{
		Uploads: t.TempDir(), Log: slog.New(slog.DiscardHandler), Address: func(*asset.Asset) string { return "" },
		Admit: func() error {
			if short.Load() {
				return &api.Error{Status: http.StatusServiceUnavailable, Code: "degraded", Message: "short"}
			}
			return nil
		},
		Pressure: func() (string, string, time.Time) { return "degraded", "memory", time.Unix(1, 0) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		s.Close()
		engine.Close()
		if err := errors.Join(closing(), library.Close()); err != nil {
			t.Error(err)
		}
	}()
	ask := func(method, path string, size int, fields ...string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, path, strings.NewReader(strings.Repeat("x", size)))
		r.Header.Set("Tus-Resumable", "1.0.0")
		r.Header.Set("Content-Type", "application/offset+octet-stream")
		for i := 0; i < len(fields); i += 2 {
			r.Header.Set(fields[i], fields[i+1])
		}
		h.ServeHTTP(w, r)
		return w
	}
	at := ask("POST", "/v1/uploads/", 0, "Upload-Length", "100000").Header().Get("Location")
	short.Store(true)
	for _, w := range []*httptest.ResponseRecorder{ask("POST", "/v1/assets", 100_000), ask("PATCH", at, 100_000, "Upload-Offset", "0")} {
		if w.Code != 503 || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), `"code":"degraded"`) {
			t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
		}
	}
	if w := ask("PATCH", at, 1000, "Upload-Offset", "0"); w.Code != 204 {
		t.Errorf("a small piece: %d %s", w.Code, w.Body)
	}
	if w := ask("GET", "/v1/status", 0); w.Code != 200 || !strings.Contains(w.Body.String(), `"state":"degraded","reason":"memory"`) || !strings.Contains(w.Body.String(), `"assets":{"uploading":1}`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	short.Store(false)
	if w := ask("PATCH", at, 99_000, "Upload-Offset", "1000"); w.Code != 204 {
		t.Errorf("there is memory again: %d %s", w.Code, w.Body)
	}
}
