package runtimes_test

import (
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/runtimes/node"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// scriptedPackages are the packages of the test's own registry: name → file → text. PORT is the
// registry's port.
var scriptedPackages = map[string]map[string]string{
	"fretest-tool": {
		"package.json": `{"name":"fretest-tool","version":"1.0.0","bin":"tool.js","scripts":{"postinstall":"chmod 755 tool.js && touch -t 200001010000 tool.js && echo 42 > answer"}}`,
		"tool.js":      "#!/usr/bin/env node\nconsole.log('by the tool')\n",
		"index.js":     "module.exports = require('fs').readFileSync(__dirname + '/answer', 'utf8').trim()",
	},
	"fretest-made": {
		"package.json": `{"name":"fretest-made","version":"1.0.0","dependencies":{"fretest-tool":"1"},"scripts":{
			"preinstall":"test \"$npm_lifecycle_event\" = preinstall && fretest-tool > made.txt","install":"node install.js"}}`,
		"install.js": "require('fs').appendFileSync('made.txt', require('fretest-tool') + ' ' + process.env.npm_package_name)",
		"index.js":   "module.exports = require('fs').readFileSync(__dirname + '/made.txt', 'utf8')",
	},
	"fretest-addon": {
		"package.json": `{"name":"fretest-addon","version":"1.0.0","gypfile":true}`,
		"binding.gyp":  `{"targets":[{"target_name":"addon","sources":["addon.cc"]}]}`,
		"addon.cc": `#include <node_api.h>
#include <string>
static napi_value init(napi_env env, napi_value exports) {
  std::string s = "native";
  napi_value out;
  napi_create_string_utf8(env, s.c_str(), s.size(), &out);
  return out;
}
NAPI_MODULE(NODE_GYP_MODULE_NAME, init)
`,
		"index.js": "module.exports = require('./build/Release/addon.node')",
	},
	"fretest-curious": {
		"package.json": `{"name":"fretest-curious","version":"1.0.0","dependencies":{"fretest-tool":"1"},"scripts":{"install":"node install.js"}}`,
		"install.js": `const fs = require('fs'), path = require('path')
const seen = Object.keys(process.env).filter(k => process.env[k].includes('s3cret' + '-of-the-registry'))
const walk = top => { for (const name of fs.readdirSync(top)) {
  const at = path.join(top, name)
  try {
    const s = fs.lstatSync(at)
    if (s.isDirectory()) walk(at)
    else if (s.isFile() && fs.readFileSync(at, 'utf8').includes('s3cret' + '-of-the-registry')) seen.push(at)
  } catch (e) {}
} }
for (const top of ['/work', '/run', '/tmp', '/function', '/etc', '/root', '/home']) try { walk(top) } catch (e) {}
for (const file of ['/etc/passwd', '/usr/bin/node', '/usr/fretest', '/fretest', '../fretest-tool/index.js', '../fretest-tool/new', '/proc/sys/kernel/core_pattern']) {
  try { fs.writeFileSync(file, 'x'); seen.push('wrote ' + file) } catch (e) {}
}
fs.symlinkSync('/etc/shadow', 'shadow')
fs.symlinkSync('../../../../../../../../tmp', 'up')
const done = () => fs.writeFileSync('seen.json', JSON.stringify(seen))
const s = require('net').connect(PORT, '127.0.0.1')
s.on('connect', () => { seen.push('the network'); done(); s.destroy() })
s.on('error', done)
`,
		"index.js": "module.exports = require('./seen.json')",
	},
	"fretest-broken": {"package.json": `{"name":"fretest-broken","version":"1.0.0","scripts":{"install":"echo no header of fretest.h >&2; exit 3"}}`},
	"fretest-loop":   {"package.json": `{"name":"fretest-loop","version":"1.0.0","scripts":{"install":"while :; do :; done"}}`},
	"fretest-fifo":   {"package.json": `{"name":"fretest-fifo","version":"1.0.0","scripts":{"install":"mkfifo x"}}`},
	"fretest-bad":    {"package.json": `{"name":`},
	"fretest-quiet":  {"package.json": `{"name":"fretest-quiet","version":"1.0.0"}`, "index.js": "module.exports = 1"},
}

func npmParts(img *store.Image) []store.Part {
	return slices.DeleteFunc(slices.Clone(img.Parts), func(p store.Part) bool { return p.Kind != "npm" })
}

// TestBuildNodeScripts: The install scripts of allowed packages run with the files that npm gives
// them, without network and credentials.
func TestBuildNodeScripts(t *testing.T) {
	w := newWorkshop(t)
	const password = "s3cret-of-the-registry"
	archives := map[string][]byte{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+password {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		_, _ = w.Write(archives[r.URL.Path])
	}))
	defer server.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	packages := map[string]map[string]any{}
	for name, files := range scriptedPackages {
		own := map[string]string{"unlike": port} // differs from other runs' packages in the store
		for file, text := range files {
			own[file] = strings.ReplaceAll(text, "PORT", port)
		}
		archive := sdist(t, "package", own)
		archives["/"+name+"/-/"+name+"-1.0.0.tgz"] = archive
		sum := sha512.Sum512(archive)
		locked := map[string]any{}
		_ = json.Unmarshal([]byte(files["package.json"]), &locked) // one file is invalid
		delete(locked, "scripts")
		locked["version"], locked["hasInstallScript"] = "1.0.0", true
		locked["integrity"] = "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
		packages[name] = locked
	}
	rc := filepath.Join(t.TempDir(), "npmrc")
	if err := os.WriteFile(rc, fmt.Appendf(nil, "registry=%s\n%s/:_authToken=%s\n", server.URL, strings.TrimPrefix(server.URL, "http:"), password), 0o600); err != nil {
		t.Fatal(err)
	}
	hosts := w.Settings
	w.Settings = image.Settings{}.With(node.Settings{RC: rc})
	defer func() { w.Settings = hosts }()
	w.Sites = runtimes.Sites()
	npm := slices.IndexFunc(w.Sites, func(s image.Site) bool { return s.Name() == "npm" })
	w.runner.look = func(c image.Command) {
		if c.Args[0] != "/bin/sh" {
			return
		}
		if c.Network || slices.ContainsFunc(c.Env, func(v string) bool { return strings.Contains(v, password) }) || len(c.Binds) != 1 {
			t.Errorf("an install script got network %v, %q, %v", c.Network, c.Env, c.Binds)
		}
	}
	var mu sync.Mutex
	var said []string
	w.report = func(e image.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if e.Step == "warning" {
			said = append(said, e.Name+" "+e.Message)
		}
	}
	// locked pins these names with their dependencies.
	locked := func(t *testing.T, names ...string) *image.Lock {
		t.Helper()
		all := map[string]any{"": map[string]any{"name": "function"}}
		for _, name := range names {
			all["node_modules/"+name] = packages[name]
		}
		raw, err := json.Marshal(map[string]any{"lockfileVersion": 3, "packages": all})
		if err != nil {
			t.Fatal(err)
		}
		return lockOf("npm", &node.Locked{Request: names, PackageLock: raw})
	}
	fret := func(allowed string, names ...string) string {
		return fmt.Sprintf("id: f\nbase: node\npackages:\n  npm: [%s]\n  npm_scripts: [%s]\n", strings.Join(names, ", "), allowed)
	}
	scripts := func() (n int) {
		for _, run := range w.runner.runs {
			if run == "sh -c" {
				n++
			}
		}
		return n
	}
	show := func(name string) string { return "console.log(require('" + name + "'))" }

	t.Run("not allowed", func(t *testing.T) {
		img, _, err := w.build(t, fret("", "fretest-made", "fretest-tool"), "index.js", locked(t, "fretest-made", "fretest-tool"))
		if err != nil || scripts() != 0 {
			t.Fatalf("ran %d scripts: %v", scripts(), err)
		}
		if _, err := os.Lstat(filepath.Join(w.Store.Rootfs(img.Digest), "node_modules/fretest-made/made.txt")); err == nil {
			t.Error("a script has run")
		}
		if i := slices.IndexFunc(said, func(s string) bool {
			return strings.HasPrefix(s, "fretest-made ") && strings.Contains(s, "packages.npm_scripts")
		}); i < 0 {
			t.Errorf("said %q", said)
		}
	})
	t.Run("allowed", func(t *testing.T) {
		names := []string{"fretest-made", "fretest-tool"}
		img, lock, err := w.build(t, fret("fretest-made, fretest-tool", names...), "index.js", locked(t, names...))
		if err != nil {
			t.Fatal(err)
		}
		noHosts(t, lock)
		if out := w.inside(t, img, nil, "/usr/bin/node", "-e", show("fretest-made")); out != "by the tool\n42 fretest-made" {
			t.Errorf("printed %q", out)
		}
		for _, name := range []string{"node_modules/fretest-made/node_modules", "node_modules/fretest-tool/node_modules"} {
			if _, err := os.Lstat(filepath.Join(w.Store.Rootfs(img.Digest), name)); err == nil {
				t.Errorf("%s is in the image", name)
			}
		}
		w.options = image.BuildOptions{Locked: true, Offline: true}
		defer func() { w.options = image.BuildOptions{} }()
		if again, _, err := w.build(t, fret("fretest-made, fretest-tool", names...), "index.js", lock); err != nil || !slices.Equal(npmParts(again), npmParts(img)) || len(w.runner.runs) != 0 {
			t.Errorf("locked and offline: %v, ran %q", err, w.runner.runs)
		}
		// Another package beside them changes nothing.
		names = append(names, "fretest-quiet")
		w.options = image.BuildOptions{}
		if _, _, err := w.build(t, fret("fretest-made, fretest-tool, fretest-quiet", names...), "index.js", locked(t, names...)); err != nil || scripts() != 0 {
			t.Errorf("with another package: %v, ran %q", err, w.runner.runs)
		}
		if !slices.Contains(said, "fretest-quiet is named in packages.npm_scripts and has no install script") {
			t.Errorf("said %q", said)
		}
		// Without the scripts of a dependency the result differs.
		names = names[:2]
		if _, _, err := w.build(t, fret("fretest-made", names...), "index.js", locked(t, names...)); err == nil || !strings.Contains(err.Error(), "answer") || scripts() != 2 {
			t.Errorf("without a tool's script: %v, ran %q", err, w.runner.runs)
		}
	})
	t.Run("native add-on", func(t *testing.T) {
		img, _, err := w.build(t, fret("fretest-addon", "fretest-addon"), "index.js", locked(t, "fretest-addon"))
		if err != nil {
			t.Fatal(err)
		}
		if out := w.inside(t, img, nil, "/usr/bin/node", "-e", show("fretest-addon")); out != "native" {
			t.Errorf("printed %q", out)
		}
		built := filepath.Join(w.Store.Rootfs(img.Digest), "node_modules/fretest-addon/build")
		if out, err := os.ReadDir(filepath.Join(built, "Release")); err != nil || len(out) != 1 {
			t.Errorf("build/Release holds %v, %v", out, err)
		}
		if out, err := os.ReadDir(built); err != nil || len(out) != 1 {
			t.Errorf("build holds %v, %v", out, err)
		}
	})
	t.Run("native add-on from npm", func(t *testing.T) {
		own := w.Settings
		w.Settings = hosts
		defer func() { w.Settings = own }()
		img, lock, err := w.build(t, fret("diskusage", "diskusage@1.2.0"), "index.js", nil)
		if err != nil {
			t.Fatal(err)
		}
		noHosts(t, lock)
		if out := w.inside(t, img, nil, "/usr/bin/node", "-e", "console.log(require('diskusage').checkSync('/').total > 0)"); out != "true" {
			t.Errorf("printed %q", out)
		}
	})
	t.Run("hostile", func(t *testing.T) {
		names := []string{"fretest-curious", "fretest-tool"}
		img, _, err := w.build(t, fret("fretest-curious", names...), "index.js", locked(t, names...))
		if err != nil {
			t.Fatal(err)
		}
		if out := w.inside(t, img, nil, "/usr/bin/node", "-e", show("fretest-curious")); out != "[]" {
			t.Errorf("its script saw %s", out)
		}
		for name, want := range map[string]string{"shadow": "/etc/shadow", "up": "../../../../../../../../tmp"} {
			if got, err := os.Readlink(filepath.Join(w.Store.Rootfs(img.Digest), "node_modules/fretest-curious", name)); got != want {
				t.Errorf("its link %s: %q, %v", name, got, err)
			}
		}
	})
	for name, tt := range map[string]struct {
		cause image.PackageCause
		want  []string
	}{
		"fretest-broken": {image.PackageUnbuilt, []string{"install script (echo no header", "status 3", "\nno header of fretest.h"}},
		"fretest-loop":   {image.PackageUnbuilt, []string{"install script (while", "took more than 2s"}},
		"fretest-fifo":   {image.PackageBad, []string{"not a regular file"}},
		"fretest-bad":    {image.PackageBad, []string{"package.json: "}},
	} {
		t.Run(name, func(t *testing.T) {
			patient := w.Sites[npm].(node.Site)
			defer func() { w.Sites[npm] = patient }()
			if name == "fretest-loop" {
				w.Sites[npm] = node.Site{Tools: patient.Tools, Compilers: patient.Compilers, Patience: 2 * time.Second}
			}
			_, _, err := w.build(t, fret(name, name), "index.js", locked(t, name))
			var e *image.PackageError
			if !errors.As(err, &e) || e.Cause != tt.cause || e.Package != name+" 1.0.0" || !strings.Contains(e.Next(), "packages.md") && tt.cause == image.PackageUnbuilt {
				t.Fatalf("got %v", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q in it", err, want)
				}
			}
		})
	}
	t.Run("not installed", func(t *testing.T) {
		_, _, err := w.build(t, fret("fretest-tol", "fretest-tool"), "index.js", locked(t, "fretest-tool"))
		var errs template.Errors
		if !errors.As(err, &errs) || !strings.Contains(err.Error(), `"fretest-tol"`) || !strings.Contains(err.Error(), "fret.yaml:5:") {
			t.Errorf("got %v", err)
		}
	})
}
