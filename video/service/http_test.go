package service

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestOpenAPI: the description names the routes that there are.
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
	var got []string
	for pattern := range (&rest{}).routes() {
		got = append(got, pattern)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("routes %q\nopenapi.yaml %q", got, want)
	}
}

// TestTemplate: the template directory is whole, or the error says what to do.
func TestTemplate(t *testing.T) {
	dir := t.TempDir()
	if err := Template(dir); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "code", "transcoder"))
	if err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "fret.yaml")); err != nil {
		t.Error(err)
	}
}

// TestFileNames: names of other people's are shown as one line, without directories.
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

// TestNoRoute: what is not there is told of in the errors' one shape.
func TestNoRoute(t *testing.T) {
	h := &rest{}
	w := httptest.NewRecorder()
	h.fail(w, httptest.NewRequest(http.MethodGet, "/v1/x", nil), os.ErrNotExist)
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), `"code":"not_found"`) || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
	}
}
