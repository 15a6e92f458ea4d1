package node

import (
	"encoding/json"
	"errors"
	"io/fs"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/template"
)

// TestCommand: A handler is a function's name after a file within the code.
func TestCommand(t *testing.T) {
	for handler, ok := range map[string]bool{
		"index.handle": true, "lib/index.handle": true, "my-file.min.handle": true, "index.$h": true,
		"": false, "index": false, "index.": false, ".handle": false, "../index.handle": false,
		"a/../../b.handle": false, "/index.handle": false, "index.a-b": false,
	} {
		_, _, err := Runtime{}.Command(&template.Template{Handler: handler})
		var f *template.FieldError
		if ok != (err == nil) || !ok && !errors.As(err, &f) {
			t.Errorf("%q: %v", handler, err)
		}
	}
}

// TestPlaces: Of a package's variants only those for this system and processor are installed.
func TestPlaces(t *testing.T) {
	other := map[string]string{"amd64": "arm64", "arm64": "x64"}[runtime.GOARCH]
	raw := `{"lockfileVersion":3,"packages":{
		"":{"name":"function"},
		"node_modules/a":{"version":"1.0.0","integrity":"sha512-a"},
		"node_modules/a/node_modules/b":{"version":"2.0.0","integrity":"sha512-b"},
		"node_modules/a/node_modules/c":{"version":"2.0.0","inBundle":true},
		"node_modules/@s/d":{"version":"1.0.0","integrity":"sha512-d","optional":true,"cpu":["` + other + `"]},
		"node_modules/e":{"version":"1.0.0","integrity":"sha512-e","optional":true,"os":["darwin"]},
		"node_modules/f":{"version":"1.0.0","integrity":"sha512-f","optional":true,"os":["!win32"]},
		"node_modules/g":{"version":"1.0.0","integrity":"sha512-g","dev":true}}}`
	raw = regexp.MustCompile(`sha512-[a-g]`).ReplaceAllStringFunc(raw, func(s string) string { return integrity([]byte(s)) })
	var l packageLock
	if err := json.Unmarshal([]byte(raw), &l); err != nil {
		t.Fatal(err)
	}
	if err := l.check(); err != nil {
		t.Fatal(err)
	}
	want := []string{"node_modules/a", "node_modules/a/node_modules/b", "node_modules/f"}
	if diff := cmp.Diff(want, l.places()); diff != "" {
		t.Error(diff)
	}
}

// TestBadLock: A lock with a place outside of node_modules, a weak hash or no hash is refused.
func TestBadLock(t *testing.T) {
	for name, raw := range map[string]string{
		"version":        `{"lockfileVersion":2,"packages":{}}`,
		"place outside":  `{"lockfileVersion":3,"packages":{"../../etc":{"version":"1","integrity":"x"}}}`,
		"place below":    `{"lockfileVersion":3,"packages":{"node_modules/../x":{"version":"1","integrity":"x"}}}`,
		"place dots":     `{"lockfileVersion":3,"packages":{"node_modules/..":{"version":"1","integrity":"x"}}}`,
		"place absolute": `{"lockfileVersion":3,"packages":{"/node_modules/a":{"version":"1","integrity":"x"}}}`,
		"bad integrity":  `{"lockfileVersion":3,"packages":{"node_modules/a":{"version":"1","integrity":"md5-AAAA"}}}`,
		"link":           `{"lockfileVersion":3,"packages":{"node_modules/a":{"link":true}}}`,
		"no integrity":   `{"lockfileVersion":3,"packages":{"node_modules/a":{"version":"1"}}}`,
	} {
		var l packageLock
		if err := json.Unmarshal([]byte(raw), &l); err != nil {
			t.Fatal(err)
		}
		if err := l.check(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestWithoutHosts: The lock is kept without URLs.
func TestWithoutHosts(t *testing.T) {
	got, err := withoutHosts([]byte(`{"lockfileVersion":3,"packages":{"node_modules/a":{"version":"1","resolved":"https://h/a.tgz","funding":{"url":"https://f"},"integrity":"x"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "://") || !strings.Contains(string(got), "integrity") {
		t.Errorf("got %s", got)
	}
	for _, bad := range []string{"", "[]", "{}", `{"packages":7}`} {
		if got, err := withoutHosts([]byte(bad)); err == nil && bad != "{}" {
			t.Errorf("%q: got %s", bad, got)
		}
	}
}

// TestHeap: Node's heap size follows the memory limit, unless the template sets it.
func TestHeap(t *testing.T) {
	for _, test := range []struct{ memory, want int64 }{{32, 16}, {128, 64}, {192, 128}, {256, 192}, {4096, 3072}} {
		if got := heapMiB(test.memory << 20); got != test.want {
			t.Errorf("heap of %d MiB in %d, want %d", got, test.memory, test.want)
		}
	}
	tmpl := &template.Template{Handler: "index.handle", Resources: template.Resources{MemoryBytes: 256 << 20}}
	args, _, err := Runtime{}.Command(tmpl)
	if err != nil || args[1] != "--max-old-space-size=192" {
		t.Errorf("arguments %q, %v", args, err)
	}
	for _, own := range []string{"--max-old-space-size=99", "--trace-gc --max_old_space_size=99"} {
		tmpl.Env = map[string]string{"NODE_OPTIONS": own}
		if args, _, err := (Runtime{}).Command(tmpl); err != nil || args[1] != "/opt/fre/bootstrap.js" {
			t.Errorf("with NODE_OPTIONS=%q: arguments %q, %v", own, args, err)
		}
	}
}

// TestReadRequests: npm packages come from package.json with its lock; an outdated lock is refused.
func TestReadRequests(t *testing.T) {
	const lock = `{"lockfileVersion":3,"packages":{"":{"dependencies":{"a":"^1"}},"node_modules/a":{"version":"1.0.0","resolved":"https://h/a.tgz","integrity":"sha512-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="}}}`
	for name, tt := range map[string]struct {
		file, text string
		beside     map[string]string
		want       string // of the error
	}{
		"list":             {"package.json", `{"dependencies":{"a":"^1","@s/b":"npm:@s/c@2","d":"latest"}}`, nil, ""},
		"with a lock":      {"sub/package.json", `{"dependencies":{"a":"^1"}}`, map[string]string{"sub/package-lock.json": lock}, ""},
		"the lock":         {"package-lock.json", lock, map[string]string{"package.json": `{"dependencies":{"a":"^1"}}`}, ""},
		"the lock alone":   {"package-lock.json", lock, nil, "not exist"},
		"changed":          {"package.json", `{"dependencies":{"a":"^2"}}`, map[string]string{"package-lock.json": lock}, "npm install --package-lock-only"},
		"more":             {"package.json", `{"dependencies":{"a":"^1","b":"1"}}`, map[string]string{"package-lock.json": lock}, `"b"`},
		"less":             {"package.json", `{}`, map[string]string{"package-lock.json": lock}, `"a"`},
		"old lock":         {"package.json", `{}`, map[string]string{"package-lock.json": `{"lockfileVersion":1}`}, "lockfileVersion 1"},
		"no root":          {"package.json", `{}`, map[string]string{"package-lock.json": `{"lockfileVersion":3,"packages":{}}`}, "no entry"},
		"from git":         {"package.json", `{"dependencies":{"a":"git+https://h/a.git"}}`, nil, "only packages from a registry"},
		"from GitHub":      {"package.json", `{"dependencies":{"a":"user/repo"}}`, nil, "only packages from a registry"},
		"from a directory": {"package.json", `{"optionalDependencies":{"a":"file:../a"}}`, nil, "only packages from a registry"},
		"bad name":         {"package.json", `{"dependencies":{"../a":"1"}}`, nil, "only packages from a registry"},
		"override":         {"package.json", `{"overrides":{"a":"https://h/a.tgz"}}`, nil, "overrides"},
		"no JSON":          {"package.json", `{`, nil, "package.json: "},
		"wrong type":       {"package.json", `{"dependencies":["a"]}`, nil, "package.json: "},
		"other name":       {"packages.txt", ``, nil, "is not named package.json"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &template.Requests{File: tt.file, Text: []byte(tt.text)}
			err := Site{}.ReadRequests(r, func(name string) ([]byte, error) {
				if text, ok := tt.beside[name]; ok {
					return []byte(text), nil
				}
				return nil, fs.ErrNotExist
			})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// FuzzProjectLock: A project's lock installs packages only below node_modules.
func FuzzProjectLock(f *testing.F) {
	f.Add([]byte(`{"dependencies":{"a":"^1"}}`), []byte(`{"lockfileVersion":2,"packages":{"":{"dependencies":{"a":"^1"}},"node_modules/a":{"version":"1.0.0","resolved":"https://h/a.tgz","integrity":"sha512-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="}},"dependencies":{}}`))
	f.Fuzz(func(t *testing.T, manifest, lock []byte) {
		m, err := parseManifest("package.json", manifest)
		if err != nil {
			return
		}
		raw, err := projectLock("package-lock.json", lock, m)
		if err != nil {
			return
		}
		var l packageLock
		if err := json.Unmarshal(raw, &l); err != nil {
			t.Fatal(err)
		}
		for _, place := range l.places() {
			if strings.Contains(place, "..") || !strings.HasPrefix(place, "node_modules/") {
				t.Errorf("place %q", place)
			}
		}
	})
}
