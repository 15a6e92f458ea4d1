package client

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/template"
)

// .freignore decides which files are sent; files that the build reads besides the code are always
// sent.
func TestPack(t *testing.T) {
	const beginning = "id: f\nbase: python\nhandler: main.handle\n"
	for _, c := range []struct {
		name, fret string
		files      map[string]string // a name with / at the end is a directory, with | a fifo
		want       []string
		err        string
	}{
		{"all", beginning, map[string]string{"main.py": "", ".git/config": "", "a/.git/x": ""}, []string{"a/", "fret.yaml", "main.py"}, ""},
		{
			"ignored", beginning,
			map[string]string{".freignore": "\ufeffrun/\n*.bin\n!keep.bin\n", "run/agent.sock|": "", "a.bin": "", "keep.bin": "", "main.py": "", "fret.lock": ""},
			[]string{".freignore", "fret.lock", "fret.yaml", "keep.bin", "main.py"},
			"",
		},
		{"ignored template", beginning, map[string]string{".freignore": "*\n", "main.py": ""}, []string{".freignore", "fret.yaml"}, ""},
		{
			"code elsewhere", beginning + "code: {path: src}\n",
			map[string]string{".freignore": "*\n", "src/.freignore": "data/\n", "src/main.py": "", "src/data/x": "", "data/y": ""},
			[]string{".freignore", "data/", "data/y", "fret.yaml", "src/", "src/.freignore", "src/main.py"},
			"",
		},
		{"requests", beginning + "packages: {pip: need/requirements.txt}\n", map[string]string{
			".freignore": "need/\n*.txt\n", "need/requirements.txt": "-r ../more.txt\n-c=limits.txt\n-r ../../out.txt\n", "more.txt": "six\n", "need/limits.txt": "", "need/other.txt": "", "main.py": "",
		}, []string{".freignore", "fret.yaml", "main.py", "more.txt", "need/", "need/limits.txt", "need/requirements.txt"}, ""},
		{
			"lock beside", "id: f\nbase: node\nhandler: main.handle\npackages: {npm: package.json}\n",
			map[string]string{".freignore": "*.json\nnode_modules/\n", "package.json": "{}", "package-lock.json": "{}", "other.json": "", "main.js": "", "node_modules/a/b": ""},
			[]string{".freignore", "fret.yaml", "main.js", "package-lock.json", "package.json"},
			"",
		},
		{"base", "id: f\nbase: dir:root\nruntime: python\nhandler: main.handle\n", map[string]string{".freignore": "root\n", "root/bin/x": "", "main.py": ""}, []string{".freignore", "fret.yaml", "main.py", "root/", "root/bin/", "root/bin/x"}, ""},
		{"fifo", beginning, map[string]string{"main.py": "", "pipe|": ""}, nil, "pipe: is a fifo: only files, directories and links can be sent; list the path in .freignore"},
		{"bad pattern", beginning, map[string]string{"main.py": "", ".freignore": "a\n[\n"}, nil, ".freignore: line 2"},
		{"bad template", "id: [\n", map[string]string{"main.py": ""}, []string{"fret.yaml", "main.py"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				name, fifo := strings.CutSuffix(name, "|")
				p := filepath.Join(dir, name)
				err := os.MkdirAll(filepath.Dir(p), 0o755)
				if fifo {
					err = errors.Join(err, unix.Mkfifo(p, 0o600))
				} else {
					err = errors.Join(err, os.WriteFile(p, []byte(text), 0o600))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "fret.yaml"), []byte(c.fret), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := packed(t, dir)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want %q", err, c.err)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v; sent (-want +got):\n%s", err, diff)
			}
		})
	}
}

// packed returns the sent names of dir, sorted. The engine uses the real parser of templates.
func packed(t *testing.T, dir string) ([]string, error) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		src, err := io.ReadAll(r.Body)
		if err == nil {
			var tmpl *template.Template
			if tmpl, err = runtimes.Dialect().Parse("fret.yaml", src); err == nil {
				_, err = w.Write([]byte(`{"code":"` + tmpl.Code.Path + `","reads":["` + strings.Join(tmpl.Reads(), `","`) + `"]}`))
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		}
	}))
	engine.Listener = l
	engine.Start()
	defer engine.Close()
	c := New(socket)
	defer c.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	files, err := c.selected(t.Context(), root)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := pack(&out, root, files); err != nil {
		return nil, err
	}
	var names []string
	for in := tar.NewReader(&out); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return slices.DeleteFunc(names, func(n string) bool { return n == "./" || !fs.ValidPath(strings.TrimSuffix(n, "/")) }), nil
		}
		if err != nil {
			return nil, err
		}
		names = append(names, h.Name)
	}
}
