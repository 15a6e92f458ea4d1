package runtimes_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/golang"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// buildGo builds a function from these files. Without a fret.yaml it writes one.
func (w *workshop) buildGo(t *testing.T, files map[string]string) (*store.Image, error) {
	t.Helper()
	dir := t.TempDir()
	if files["fret.yaml"] == "" {
		files["fret.yaml"] = "id: f\nruntime: go\n"
	}
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	w.runner.runs = nil
	img, _, err := w.Build(t.Context(), root, nil)
	return img, err
}

const goMath = `package hello

import (
	"context"

	"github.com/fre-engine/fre/function"
)

func Handle(_ context.Context, e function.Event) (any, error) {
	b, err := e.Bytes()
	return "hello " + string(b), err
}
`

// TestBuildGo: A Go function in source becomes a static program, for each form of handler.
func TestBuildGo(t *testing.T) {
	w := newWorkshop(t)
	const uuid = "module example.org/ids\n\ngo 1.24\n\nrequire (\n\tgithub.com/fre-engine/fre v0.1.0\n\tgithub.com/google/uuid v1.6.0\n)\n"
	const uuidSum = "github.com/google/uuid v1.6.0 h1:NIvaJDMOsjHA8n1jAhLSgzrAzy1Hgr+hNrb57e+94F0=\ngithub.com/google/uuid v1.6.0/go.mod h1:TIyPZe4MgqvfeYDBFedMoGGpEw/LqOeaOT+nhxU+yHo=\n"
	const ids = `package main

import (
	"io"
	"net/http"

	"github.com/google/uuid"
)

var Site = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	io.WriteString(w, uuid.NewSHA1(uuid.NameSpaceDNS, []byte(r.URL.Path)).String())
})
`
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string   // answer to "x" at /p
		left  []string // files of the image's /function
	}{
		{"function", map[string]string{"hello.go": goMath, "hello_test.go": "package hello\n", "pages/a.html": "a", "inner/b.go": "package inner\n"}, "hello x", []string{".bin/f", "fret.yaml", "pages/a.html"}},
		{"handler with modules", map[string]string{
			"go.mod": uuid, "go.sum": uuidSum, "main.go": ids, "fret.yaml": "id: f\nruntime: go\nhandler: Site\n",
		}, "383321ca-11b5-5d9f-b9b8-6bfddc49be9a", []string{".bin/f", "fret.yaml"}},
		{"package below", map[string]string{
			"go.mod": "module example.org/m\n\ngo 1.24\n", "internal/api/a.go": `package api

import "net/http"

func New() http.Handler { return http.RedirectHandler("/q", 308) }
`, "fret.yaml": "id: f\nruntime: go\nhandler: internal/api.New\n",
		}, "", []string{".bin/f", "fret.yaml"}},
		{"program", map[string]string{"main.go": strings.Replace(goMath, "package hello", "package main", 1) + "\nfunc main() { function.Handle(Handle) }\n"}, "hello x", []string{".bin/f", "fret.yaml"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			img, err := w.buildGo(t, tt.files)
			if err != nil {
				t.Fatal(err)
			}
			dir := path.Join(w.Store.Rootfs(img.Digest), "function")
			var left []string
			err = fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					left = append(left, p)
				}
				return err
			})
			if diff := cmp.Diff(tt.left, left); err != nil || diff != "" {
				t.Error(err, diff)
			}
			program, err := os.ReadFile(path.Join(dir, ".bin/f"))
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d bytes", len(program))
			if bytes.Contains(program, []byte("/work/src")) {
				t.Error("the program says where it was built")
			}
			l := language{name: "go", command: func(string) ([]string, []string) { return []string{path.Join(dir, ".bin/f")}, nil }}
			got, err := l.start(t, "").invoke(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == "" {
				if got.Status != 308 {
					t.Errorf("got %+v", got)
				}
			} else if got.Body != tt.want {
				t.Errorf("got %+v, want %s", got, tt.want)
			}
		})
	}

	t.Run("again", func(t *testing.T) {
		settings := w.Settings
		defer func() { w.Settings = settings }()
		w.Settings = settings.With(golang.Settings{Env: []string{"GOPROXY=off"}})
		if _, err := w.buildGo(t, map[string]string{"hello.go": goMath + "// changed\n"}); err != nil {
			t.Errorf("without a way to any site: %v", err)
		}
		if _, err := w.buildGo(t, map[string]string{"hello.go": goMath + "// changed\n"}); err != nil || len(w.runner.runs) > 0 {
			t.Errorf("the same once more: %v, ran %q", err, w.runner.runs)
		}
	})

	// The credentials of module sites are present during the fetch and absent during compilation,
	// because the assembler includes any named file.
	t.Run("passwords", func(t *testing.T) {
		settings := w.Settings
		defer func() { w.Settings, w.runner.look = settings, nil }()
		netrc := filepath.Join(t.TempDir(), "netrc")
		env := append(slices.Clone(image.SettingsOf[golang.Settings](settings).Env), "GONOPROXY=hunter2.example.org")
		w.Settings = settings.With(golang.Settings{Env: env, Netrc: netrc})
		if err := os.WriteFile(netrc, []byte("machine example.org login bob password hunter2\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(filepath.Dir(w.Store.Dir()), "cache/go/mod")); err != nil {
			t.Fatal(err)
		}
		var saw []string
		w.runner.look = func(c image.Command) {
			text, err := os.ReadFile(filepath.Join(c.Binds[0].Source, ".netrc"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
			saw = append(saw, fmt.Sprintf("%s %t %t %t", c.Args[1], c.Network, bytes.Contains(text, []byte("hunter2")), strings.Contains(fmt.Sprint(c.Env), "hunter2")))
		}
		files := map[string]string{
			"go.mod": uuid, "go.sum": uuidSum, "main.go": ids + "// " + rand.Text(), "fret.yaml": "id: f\nruntime: go\nhandler: Site\n",
		}
		if _, err := w.buildGo(t, files); err != nil {
			t.Error(err)
		}
		const compile = "build false false false"
		if diff := cmp.Diff([]string{compile, "list true true true", compile}, saw); diff != "" {
			t.Errorf("step, network, password in its home, in its environment: %s", diff)
		}
	})

	t.Run("proxy", func(t *testing.T) { buildGoProxy(t, w) })

	for _, tt := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"syntax", map[string]string{"a.go": "package a\n\nfunc Handle( {\n"}, []string{"a.go:3:", "expected"}},
		{"types", map[string]string{"a.go": strings.Replace(goMath, "string(b)", "b", 1)}, []string{"./a.go:11:", "mismatched types"}},
		{"no module", map[string]string{"a.go": strings.Replace(goMath, `"context"`, "\"context\"\n\t_ \"example.org/nothing\"", 1)}, []string{"a.go:5:", "example.org/nothing"}},
		{"no sum", map[string]string{"go.mod": uuid, "main.go": ids, "fret.yaml": "id: f\nruntime: go\nhandler: Site\n"}, []string{"go.sum lacks github.com/google/uuid v1.6.0", "go get github.com/google/uuid@v1.6.0"}},
		{"wrong sum", map[string]string{
			"go.mod": uuid, "main.go": ids, "fret.yaml": "id: f\nruntime: go\nhandler: Site\n",
			"go.sum": strings.Replace(uuidSum, "h1:NIv", "h1:MIv", 1),
		}, []string{"go.mod: github.com/google/uuid v1.6.0: ", "checksum mismatch", "h1:MIv"}},
		{"handler's types", map[string]string{"a.go": "package a\n\nfunc Handle(a, b int) (int, error) { return 0, nil }\n"}, []string{"fret.yaml", "must be func(context.Context, function.Event)"}},
		{"handler's shape", map[string]string{"a.go": "package a\n\nfunc Handle(a int) {}\n"}, []string{"must be func(context.Context, function.Event)"}},
		{"no handler", map[string]string{"a.go": "package a\n\nfunc Other() {}\n\nfunc (x T) Handle() {}\n\ntype T int\n"}, []string{"no function or variable Handle (found: Other)"}},
		{"not exported", map[string]string{"a.go": "package a\n\nfunc handle() any\n", "fret.yaml": "id: f\nruntime: go\nhandler: handle\n"}, []string{"fret.yaml:3:", "not exported"}},
		{"no package", map[string]string{"README": "x"}, []string{"no Go package"}},
		{"no directory", map[string]string{"a.go": "package a\n", "fret.yaml": "id: f\nruntime: go\nhandler: api.Handle\n"}, []string{"no directory api"}},
		{"cgo", map[string]string{"a.go": "package a\n\nimport \"C\"\n\nfunc Handle() any { return nil }\n"}, []string{"cgo"}},
		{"ours", map[string]string{"a.go": "package function\n", "go.mod": "module github.com/fre-engine/fre/function\n"}, []string{"choose another module name"}},
		{"newer", map[string]string{"a.go": goMath, "go.mod": "module m\n\ngo 1.99\n"}, []string{"needs Go 1.99", "FRE compiles with Go 1."}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := w.buildGo(t, tt.files)
			if err == nil {
				t.Fatal("built")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in: %v", want, err)
				}
			}
			t.Log(err)
		})
	}
}

// buildGoProxy builds with a misbehaving module proxy (go.dev/ref/mod#goproxy-protocol); the
// module's name selects the fault. No message repeats the password in the host's configuration.
func buildGoProxy(t *testing.T, w *workshop) {
	t.Helper()
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		name, file, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/fretest.example/"), "/@v/v1.0.0.")
		status := map[string]int{"login": http.StatusUnauthorized, "forbidden": http.StatusForbidden, "busy": http.StatusTooManyRequests, "down": http.StatusBadGateway}[name]
		switch {
		case status != 0:
			http.Error(rw, "no", status)
		case name == "short":
			rw.Header().Set("Content-Length", "100")
		case name == "broken" && file == "zip":
			_, _ = io.WriteString(rw, "not a zip")
		case (name == "broken" || name == "changed") && file == "mod":
			_, _ = io.WriteString(rw, "module fretest.example/"+name+"\n")
		default:
			http.NotFound(rw, r)
		}
	}))
	defer proxy.Close()
	settings := w.Settings
	defer func() { w.Settings = settings }()
	address := proxy.URL
	for name, tt := range map[string]struct {
		proxy string
		want  string
		cause image.PackageCause
	}{
		"gone":      {address, "404 Not Found", image.PackageGone},
		"forbidden": {address, "403 Forbidden", image.SiteRefused},
		"login":     {address, "401 Unauthorized", image.SiteRefused},
		"busy":      {address, "429 Too Many Requests", image.SiteBusy},
		"down":      {address, "502 Bad Gateway", image.SiteDown},
		"short":     {address, "EOF", image.SiteDown},
		"broken":    {address, "the module that a.go:5:2 imports: zip: not a valid zip file", image.PackageBad},
		"changed":   {address, "checksum mismatch", image.PackageChanged},
		"nobody":    {"http://127.0.0.1:1", "connection refused", image.SiteDown},
		"plain":     {"http://me:" + password + "@127.0.0.1:1", "refusing to pass credentials", image.SiteRefused},
		"none":      {"off", "GOPROXY=off", image.SiteDown},
	} {
		t.Run(name, func(t *testing.T) {
			w.Settings = settings.With(golang.Settings{Env: []string{"GOPROXY=" + tt.proxy, "GOSUMDB=off"}})
			module := "fretest.example/" + name
			files := map[string]string{
				"go.mod": "module example.org/m\n\ngo 1.24\n\nrequire " + module + " v1.0.0\n",
				"a.go":   strings.Replace(goMath, `"context"`, "\"context\"\n\t_ \""+module+"\"", 1),
			}
			if name == "changed" {
				files["go.sum"] = module + " v1.0.0/go.mod h1:" + strings.Repeat("A", 43) + "=\n"
			}
			named := module + " v1.0.0"
			if name == "broken" { // here the go command names only the importer
				named = ""
			}
			_, err := w.buildGo(t, files)
			var e *image.PackageError
			if !errors.As(err, &e) || e.Cause != tt.cause || e.Site != "go" || e.Package != named || !strings.Contains(err.Error(), tt.want) || e.Next() == "" {
				t.Errorf("got %+v: %v, want the cause %d and %q", e, err, tt.cause, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), password) {
				t.Errorf("the password was said: %v", err)
			}
			t.Log(err)
		})
	}
}

// TestGoHandlerNames: A handler in Go is a function's name after a directory within the code.
func TestGoHandlerNames(t *testing.T) {
	for handler, good := range map[string]bool{
		"Handle": true, "api.Handle": true, "internal/x.y.New": true, "main": true, "übung": true, "./api.Handle": true,
		"": false, "../x.Handle": false, "/x.Handle": false, "a b": false, "x.": false, "9a": false, "-x": false, "a\\b.H": false,
	} {
		_, _, err := golang.Runtime{}.Command(&template.Template{ID: "f", Handler: handler})
		if (err == nil) != good {
			t.Errorf("%q: %v", handler, err)
		}
	}
	args, env, err := golang.Runtime{}.Command(&template.Template{ID: "f", Handler: "Handle", Instances: template.Instances{Concurrency: 4}})
	if err != nil || !slices.Contains(env, "FRE_CONCURRENCY=4") || args[0] != "/function/.bin/f" {
		t.Errorf("%q, %q, %v", args, env, err)
	}
}
