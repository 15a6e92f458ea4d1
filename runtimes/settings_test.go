package runtimes_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/runtimes/golang"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/runtimes/java"
	"github.com/fre-engine/fre/runtimes/node"
	"github.com/fre-engine/fre/runtimes/php"
	"github.com/fre-engine/fre/runtimes/ruby"
)

// TestHostSettings: The settings come from the host's configuration files and environment, and
// FRE's own configuration takes precedence.
func TestHostSettings(t *testing.T) {
	bundle := "/etc/ssl/certs/ca-certificates.crt"
	for _, c := range []struct {
		name  string
		files map[string]string // below the root; the home directory is /home/u
		env   map[string]string
		over  func(*runtimes.PackagesConfig)
		want  image.Settings // paths below the root; without tools that have no settings
	}{
		{name: "nothing set"},
		{
			name: "go",
			files: map[string]string{
				"/home/u/.config/go/env": "GOPROXY=https://user:secret@file.example,direct\nGOPRIVATE=file.example\nGOFLAGS=-toolexec=/bin/sh\nGOSUMDB=off\n",
				"/home/u/.netrc":         "machine file.example login u password p\n",
			},
			env:  map[string]string{"GOPRIVATE": "env.example/*", "GOINSECURE": "env.example"},
			over: func(o *runtimes.PackagesConfig) { o.Go.SumDB = "sum.over.example" },
			want: image.Settings{
				Tools: []any{golang.Settings{
					Env:   []string{"GOPROXY=https://user:secret@file.example,direct", "GOPRIVATE=env.example/*", "GOSUMDB=sum.over.example", "GOINSECURE=env.example"},
					Netrc: "/home/u/.netrc",
				}},
			},
		},
		{
			name: "pip files, the user's winning",
			files: map[string]string{
				"/etc/pip.conf":                      "[global]\nindex-url = https://site.example/simple\ntrusted-host: a.example\n    b.example\n",
				"/home/u/.config/pip/pip.conf":       "# mine\n[install]\nextra_index_url = https://two.example/simple\n  https://three.example/simple\n",
				"/home/u/.pip/pip.conf":              "[global]\nindex-url = \"https://user:secret@own.example/simple\"\n",
				"/etc/ssl/certs/ca-certificates.crt": "PEM",
			},
			want: image.Settings{
				Tools: []any{install.PipSettings{Env: []string{
					"PIP_INDEX_URL=https://user:secret@own.example/simple",
					"UV_DEFAULT_INDEX=https://user:secret@own.example/simple",
					"PIP_EXTRA_INDEX_URL=https://two.example/simple https://three.example/simple",
					"UV_INDEX=https://two.example/simple https://three.example/simple",
					"PIP_TRUSTED_HOST=a.example b.example",
					"UV_INSECURE_HOST=a.example b.example",
				}}},
				CACerts: bundle,
			},
		},
		{
			name:  "environment above files, configuration above both",
			files: map[string]string{"/etc/pip.conf": "[global]\nindex-url=https://file.example/\n"},
			env: map[string]string{
				"PIP_INDEX_URL": "https://env.example/", "UV_DEFAULT_INDEX": "https://uv.example/",
				"PIP_EXTRA_INDEX_URL": "https://extra.example/", "HTTPS_PROXY": "http://proxy.example:3128", "no_proxy": "localhost",
			},
			over: func(o *runtimes.PackagesConfig) { o.Pip.ExtraIndexes = []string{"https://over.example/"} },
			want: image.Settings{
				Tools: []any{install.PipSettings{Env: []string{
					"PIP_INDEX_URL=https://env.example/", "UV_DEFAULT_INDEX=https://uv.example/",
					"PIP_EXTRA_INDEX_URL=https://over.example/", "UV_INDEX=https://over.example/",
				}}},
				Env: []string{
					"https_proxy=http://proxy.example:3128", "HTTPS_PROXY=http://proxy.example:3128",
					"no_proxy=localhost", "NO_PROXY=localhost",
				},
			},
		},
		{
			name:  "pip told to read no file",
			files: map[string]string{"/etc/pip.conf": "[global]\nindex-url=https://file.example/\n"},
			env:   map[string]string{"PIP_CONFIG_FILE": "/dev/null"},
		},
		{
			name: "npm: the user's file is bound, the host's goes by environment",
			files: map[string]string{
				"/home/u/.npmrc": "//r.example/:_authToken=secret\nstrict-ssl=true\n",
				"/etc/npmrc":     "registry=https://r.example/\nstrict-ssl=false\n",
			},
			want: image.Settings{Tools: []any{node.Settings{RC: "/home/u/.npmrc"}}, Env: []string{"npm_config_registry=https://r.example/"}},
		},
		{
			name:  "npm: only the host's file",
			files: map[string]string{"/etc/npmrc": "registry=https://r.example/\n"},
			want:  image.Settings{Tools: []any{node.Settings{RC: "/etc/npmrc"}}},
		},
		{
			name:  "npm: environment, in lower case too",
			files: map[string]string{"/etc/npmrc": "registry=https://r.example/\n"},
			env:   map[string]string{"npm_config_registry": "https://env.example/"},
			want:  image.Settings{Tools: []any{node.Settings{RC: "/etc/npmrc"}}, Env: []string{"npm_config_registry=https://env.example/"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for path, content := range c.files {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var over runtimes.PackagesConfig
			if c.over != nil {
				c.over(&over)
			}
			host := image.Host{Getenv: func(name string) string { return c.env[name] }, Root: root, Home: filepath.Join(root, "home/u")}
			got, err := over.Settings(host)
			if err != nil {
				t.Fatal(err)
			}
			want := image.Settings{CACerts: c.want.CACerts, Env: c.want.Env}
			if want.CACerts != "" {
				want.CACerts = root + want.CACerts
			}
			for _, none := range []any{install.PipSettings{}, node.Settings{}, ruby.Settings{}, php.Settings{}, golang.Settings{}, java.Settings{}} {
				want = want.With(none)
			}
			for _, tool := range c.want.Tools {
				switch own := tool.(type) {
				case node.Settings:
					own.RC = root + own.RC
					tool = own
				case golang.Settings:
					own.Netrc = root + own.Netrc
					tool = own
				}
				want = want.With(tool)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestGemSources: The sources are those of the last RubyGems file with sources; FRE's own
// configuration comes first.
func TestGemSources(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(root, name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	host := image.Host{Root: root, Home: filepath.Join(root, "home"), Getenv: func(name string) string {
		return map[string]string{"GEMRC": filepath.Join(root, "none") + ":" + filepath.Join(root, "own")}[name]
	}}
	want := func(what string, over runtimes.PackagesConfig, sources ...string) {
		t.Helper()
		s, err := over.Settings(host)
		if diff := cmp.Diff(sources, image.SettingsOf[ruby.Settings](s).Sources); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got:\n%s", what, err, diff)
		}
	}
	want("nothing", runtimes.PackagesConfig{})
	write("etc/gemrc", "---\n:sources:\n- https://site.example/\n:verbose: false\n")
	write("home/.gemrc", "gem: --no-document\n")
	want("the host's", runtimes.PackagesConfig{}, "https://site.example/")
	write("home/.gemrc", "sources: [https://me:secret@home.example/, https://two.example/]\n")
	want("the user's", runtimes.PackagesConfig{}, "https://me:secret@home.example/", "https://two.example/")
	write("own", ":sources: [https://own.example/]\n")
	want("GEMRC's", runtimes.PackagesConfig{}, "https://own.example/")
	var over runtimes.PackagesConfig
	over.Gem.Sources = []string{"https://over.example/"}
	want("FRE's", over, "https://over.example/")
	write("own", ": : secret")
	if _, err := new(runtimes.PackagesConfig).Settings(host); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "own") {
		t.Errorf("no YAML: %v", err)
	}
}

// TestPipIndexes: An index that no template can name or no tool can reach is refused. The error
// does not repeat the URL, which may hold a password.
func TestPipIndexes(t *testing.T) {
	var over runtimes.PackagesConfig
	for name, address := range map[string]string{
		"Team": "https://h.example/", "": "https://h.example/", "a b": "https://h.example/",
		"path": "/secret", "file": "file:///secret", "word": "secret", "port": "https://secret:x/", "host": "https:///secret",
	} {
		over.Pip.Indexes = map[string]string{"good": "https://user:secret@h.example/simple", name: address}
		_, err := over.Settings(image.Host{})
		if err == nil || !strings.Contains(err.Error(), "packages.pip.indexes") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %q: %v", name, address, err)
		}
	}
	over.Pip.Indexes = map[string]string{"good": "https://user:secret@h.example/simple"}
	s, err := over.Settings(image.Host{})
	if got := image.SettingsOf[install.PipSettings](s).Indexes["good"]; err != nil || got != over.Pip.Indexes["good"] {
		t.Errorf("got %v, %v", got, err)
	}
}
