package node

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
)

func TestCommand(t *testing.T) {
	for handler, ok := range map[string]bool{
		"index.handle": true, "lib/index.handle": true, "my-file.min.handle": true, "index.$h": true,
		"": false, "index": false, "index.": false, ".handle": false, "../index.handle": false,
		"a/../../b.handle": false, "/index.handle": false, "index.a-b": false,
	} {
		_, _, err := Runtime{}.Command(&image.Template{Handler: handler})
		var f *image.FieldError
		if ok != (err == nil) || !ok && !errors.As(err, &f) {
			t.Errorf("%q: %v", handler, err)
		}
	}
}

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
	for rel, elsewhere := range map[string]bool{
		"index.js": false, "node_modules/b": true, "node_modules/c": false, "node_modules/.bin": true,
	} {
		if got := l.elsewhere("node_modules/a", rel); got != elsewhere {
			t.Errorf("elsewhere(%s) = %v", rel, got)
		}
	}
}

func TestBadLock(t *testing.T) {
	for name, raw := range map[string]string{
		"version":        `{"lockfileVersion":2,"packages":{}}`,
		"place outside":  `{"lockfileVersion":3,"packages":{"../../etc":{"version":"1","integrity":"x"}}}`,
		"place below":    `{"lockfileVersion":3,"packages":{"node_modules/../x":{"version":"1","integrity":"x"}}}`,
		"place dots":     `{"lockfileVersion":3,"packages":{"node_modules/..":{"version":"1","integrity":"x"}}}`,
		"place absolute": `{"lockfileVersion":3,"packages":{"/node_modules/a":{"version":"1","integrity":"x"}}}`,
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

func TestHeap(t *testing.T) {
	for _, test := range []struct{ memory, want int64 }{{32, 16}, {128, 64}, {192, 128}, {256, 192}, {4096, 3072}} {
		if got := heapMiB(test.memory << 20); got != test.want {
			t.Errorf("heap of %d MiB in %d, want %d", got, test.memory, test.want)
		}
	}
	tmpl := &image.Template{Handler: "index.handle", Resources: image.Resources{MemoryBytes: 256 << 20}}
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
