package image

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestHostSettings: The settings come from the host's configuration files and environment, and
// FRE's own configuration takes precedence.
func TestHostSettings(t *testing.T) {
	bundle := "/etc/ssl/certs/ca-certificates.crt"
	for _, c := range []struct {
		name  string
		files map[string]string // below the root; the home directory is /home/u
		env   map[string]string
		over  func(*SettingsOverride)
		want  Settings // paths below the root
	}{
		{name: "nothing set"},
		{
			name: "go",
			files: map[string]string{
				"/home/u/.config/go/env": "GOPROXY=https://user:secret@file.example,direct\nGOPRIVATE=file.example\nGOFLAGS=-toolexec=/bin/sh\nGOSUMDB=off\n",
				"/home/u/.netrc":         "machine file.example login u password p\n",
			},
			env:  map[string]string{"GOPRIVATE": "env.example/*", "GOINSECURE": "env.example"},
			over: func(o *SettingsOverride) { o.Go.SumDB = "sum.over.example" },
			want: Settings{
				GoEnv: []string{"GOPROXY=https://user:secret@file.example,direct", "GOPRIVATE=env.example/*", "GOSUMDB=sum.over.example", "GOINSECURE=env.example"},
				Netrc: "/home/u/.netrc",
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
			want: Settings{
				PipEnv: []string{
					"PIP_INDEX_URL=https://user:secret@own.example/simple",
					"UV_DEFAULT_INDEX=https://user:secret@own.example/simple",
					"PIP_EXTRA_INDEX_URL=https://two.example/simple https://three.example/simple",
					"UV_INDEX=https://two.example/simple https://three.example/simple",
					"PIP_TRUSTED_HOST=a.example b.example",
					"UV_INSECURE_HOST=a.example b.example",
				},
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
			over: func(o *SettingsOverride) { o.Pip.ExtraIndexes = []string{"https://over.example/"} },
			want: Settings{
				PipEnv: []string{
					"PIP_INDEX_URL=https://env.example/", "UV_DEFAULT_INDEX=https://uv.example/",
					"PIP_EXTRA_INDEX_URL=https://over.example/", "UV_INDEX=https://over.example/",
				},
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
			want: Settings{NpmRC: "/home/u/.npmrc", Env: []string{"npm_config_registry=https://r.example/"}},
		},
		{
			name:  "npm: only the host's file",
			files: map[string]string{"/etc/npmrc": "registry=https://r.example/\n"},
			want:  Settings{NpmRC: "/etc/npmrc"},
		},
		{
			name:  "npm: environment, in lower case too",
			files: map[string]string{"/etc/npmrc": "registry=https://r.example/\n"},
			env:   map[string]string{"npm_config_registry": "https://env.example/"},
			want:  Settings{NpmRC: "/etc/npmrc", Env: []string{"npm_config_registry=https://env.example/"}},
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
			var over SettingsOverride
			if c.over != nil {
				c.over(&over)
			}
			host := Host{Getenv: func(name string) string { return c.env[name] }, Root: root, Home: filepath.Join(root, "home/u")}
			got, err := HostSettings(host, over)
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range []*string{&c.want.NpmRC, &c.want.CACerts, &c.want.Netrc} {
				if *path != "" {
					*path = root + *path
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
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
	host := Host{Root: root, Home: filepath.Join(root, "home"), Getenv: func(name string) string {
		return map[string]string{"GEMRC": filepath.Join(root, "none") + ":" + filepath.Join(root, "own")}[name]
	}}
	want := func(what string, over SettingsOverride, sources ...string) {
		t.Helper()
		s, err := HostSettings(host, over)
		if diff := cmp.Diff(sources, s.GemSources); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got:\n%s", what, err, diff)
		}
	}
	want("nothing", SettingsOverride{})
	write("etc/gemrc", "---\n:sources:\n- https://site.example/\n:verbose: false\n")
	write("home/.gemrc", "gem: --no-document\n")
	want("the host's", SettingsOverride{}, "https://site.example/")
	write("home/.gemrc", "sources: [https://me:secret@home.example/, https://two.example/]\n")
	want("the user's", SettingsOverride{}, "https://me:secret@home.example/", "https://two.example/")
	write("own", ":sources: [https://own.example/]\n")
	want("GEMRC's", SettingsOverride{}, "https://own.example/")
	var over SettingsOverride
	over.Gem.Sources = []string{"https://over.example/"}
	want("FRE's", over, "https://over.example/")
	write("own", ": : secret")
	if _, err := HostSettings(host, SettingsOverride{}); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "own") {
		t.Errorf("no YAML: %v", err)
	}
}

// TestPipIndexes: An index that no template can name or no tool can reach is refused. The error
// does not repeat the URL, which may hold a password.
func TestPipIndexes(t *testing.T) {
	var over SettingsOverride
	for name, address := range map[string]string{
		"Team": "https://h.example/", "": "https://h.example/", "a b": "https://h.example/",
		"path": "/secret", "file": "file:///secret", "word": "secret", "port": "https://secret:x/", "host": "https:///secret",
	} {
		over.Pip.Indexes = map[string]string{"good": "https://user:secret@h.example/simple", name: address}
		_, err := HostSettings(Host{}, over)
		if err == nil || !strings.Contains(err.Error(), "packages.pip.indexes") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %q: %v", name, address, err)
		}
	}
	over.Pip.Indexes = map[string]string{"good": "https://user:secret@h.example/simple"}
	if s, err := HostSettings(Host{}, over); err != nil || s.PipIndexes["good"] != over.Pip.Indexes["good"] {
		t.Errorf("got %v, %v", s.PipIndexes, err)
	}
}

func TestHostSettingsNamesMissingBundle(t *testing.T) {
	var over SettingsOverride
	over.CACerts = filepath.Join(t.TempDir(), "none.pem")
	if _, err := HostSettings(Host{}, over); err == nil {
		t.Error("no error")
	}
}
