package runtimes_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha1"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/runtimes/php"
	"github.com/fre-engine/fre/store"
)

// composerRepository serves packages as a Composer repository ("composer" type, packages.json), and
// makes it the only one in the host's configuration.
func composerRepository(t *testing.T, w *workshop, greeting *string) {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	archive := func(files map[string]string) []byte {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for _, file := range slices.Sorted(maps.Keys(files)) {
			f, err := z.Create("top/" + file)
			if err == nil {
				_, err = f.Write([]byte(files[file]))
			}
			if err != nil {
				t.Error(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Error(err)
		}
		return b.Bytes()
	}
	words := func() []byte {
		return archive(map[string]string{"words.php": fmt.Sprintf(`<?php function acme_word() { return %q; }`, *greeting)})
	}
	mux.HandleFunc("/packages.json", func(rw http.ResponseWriter, _ *http.Request) {
		pkg := func(name, version string, require map[string]string, autoload map[string]any) map[string]any {
			return map[string]any{
				"name": name, "version": version, "require": require, "autoload": autoload,
				"dist": map[string]any{"type": "zip", "url": fmt.Sprintf("%s/%s-%s.zip", server.URL, strings.ReplaceAll(name, "/", "-"), version)},
			}
		}
		hashed := pkg("acme/words", "2.0.1", map[string]string{}, map[string]any{"files": []string{"words.php"}})
		hashed["dist"].(map[string]any)["shasum"] = fmt.Sprintf("%x", sha1.Sum(words()))
		_ = json.NewEncoder(rw).Encode(map[string]any{"packages": map[string]any{
			"acme/greet": map[string]any{"1.2.0": pkg("acme/greet", "1.2.0", map[string]string{"acme/words": "^2", "php": ">=8.0", "ext-intl": "*", "ext-zip": "*"}, map[string]any{"psr-4": map[string]string{`Acme\Greet\`: "src/"}})},
			// A hostile repository would pack Composer's own directory, with its credentials, into
			// an image.
			"evil/path":  map[string]any{"1.0.0": map[string]any{"name": "evil/path", "version": "1.0.0", "dist": map[string]any{"type": "path", "url": "/work/.composer"}}},
			"evil/file":  map[string]any{"1.0.0": map[string]any{"name": "evil/file", "version": "1.0.0", "dist": map[string]any{"type": "file", "url": "file:///work/.composer/config.json"}}},
			"acme/words": map[string]any{"2.0.1": hashed},
		}})
	})
	mux.HandleFunc("/acme-greet-1.2.0.zip", func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write(archive(map[string]string{
			"composer.json": `{"name":"acme/greet","scripts":{"post-install-cmd":"touch /work/ran"}}`,
			"src/Hello.php": `<?php namespace Acme\Greet; class Hello { static function to($n) { return \acme_word() . " $n"; } }`,
		}))
	})
	mux.HandleFunc("/acme-words-2.0.1.zip", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(words()) })
	home := t.TempDir()
	config, err := json.Marshal(map[string]any{
		"config":       map[string]any{"secure-http": false},
		"repositories": []any{map[string]any{"type": "composer", "url": server.URL}, map[string]any{"packagist.org": false}},
	})
	if err := errors.Join(err, os.WriteFile(filepath.Join(home, "config.json"), config, 0o600)); err != nil {
		t.Fatal(err)
	}
	w.Settings = w.Settings.With(php.Settings{Home: home})
}

// TestComposer: Composer resolves and installs from the host's repositories and from directories
// beside the template. Each package version is one part, and builds follow the lock.
func TestComposer(t *testing.T) {
	w := newWorkshop(t)
	greeting := "hello"
	composerRepository(t, w, &greeting)
	const template = "id: c\nbase: php\npackages: {composer: [\"acme/greet:^1\"]}\n"
	const code = `<?php require __DIR__ . "/vendor/autoload.php"; function handle($e, $c) { return Acme\Greet\Hello::to("you"); }`
	files := map[string]string{"fret.yaml": template, "index.php": code}
	img, lock, err := w.buildFiles(t, files, nil)
	if err != nil {
		t.Fatal(err)
	}
	run := []string{"/usr/bin/php", "-r", `require "index.php"; echo handle(null, null);`}
	if got := w.inside(t, img, nil, run...); got != "hello you" {
		t.Errorf("got %q", got)
	}
	var names []string
	for _, p := range section[*php.Locked](lock, "composer").Packages {
		names = append(names, p.Name+" "+p.Version)
	}
	if diff := cmp.Diff([]string{"acme/greet 1.2.0", "acme/words 2.0.1"}, names); diff != "" {
		t.Error(diff)
	}
	text, err := lock.Encode()
	if err != nil || strings.Contains(string(text), "127.0.0.1") {
		t.Errorf("the lock names a host, or %v:\n%s", err, text)
	}

	again, _, err := w.buildFiles(t, files, lock)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.runner.runs; len(got) > 0 {
		t.Errorf("a second build ran %q", got)
	}
	if got := w.inside(t, again, nil, run...); got != "hello you" {
		t.Errorf("a second build: got %q", got)
	}
	// The hashes of archives, if the repository names them.
	for _, img := range []*store.Image{img, again} {
		hashes := hashesOf(img, "package")
		if h := hashes["function/vendor/acme/words acme/words"]; !strings.HasPrefix(h, "sha1:") || hashes["function/vendor/acme/greet acme/greet"] != "" {
			t.Errorf("verified by %q", hashes)
		}
	}

	// The lock does not match the repository's changed files.
	greeting = "goodbye"
	forged := &php.Locked{}
	for _, p := range section[*php.Locked](lock, "composer").Packages {
		p.Hashes = []string{"sha256:" + strings.Repeat("0", 64)}
		forged.Packages = append(forged.Packages, p)
	}
	forged.Request = section[*php.Locked](lock, "composer").Request
	if _, _, err := w.buildFiles(t, files, lockOf("composer", forged)); err == nil || !strings.Contains(err.Error(), "the files were changed since") {
		t.Errorf("changed files: %v", err)
	}

	// A directory beside the template, and the project's own classes.
	project := map[string]string{
		"fret.yaml": "id: d\nbase: php\npackages: {composer: composer.json}\n",
		"composer.json": `{"require":{"own/lib":"*"},"repositories":[{"type":"path","url":"lib"}],"autoload":{"psr-4":{"App\\":"app/"}},
			"scripts":{"post-install-cmd":"exit 1"}}`,
		"lib/composer.json": `{"name":"own/lib","version":"1.0.0","autoload":{"psr-4":{"Own\\":""}}}`,
		"lib/Lib.php":       `<?php namespace Own; class Lib { const X = "lib"; }`,
		"app/App.php":       `<?php namespace App; class App { const X = "app"; }`,
		"index.php":         `<?php require __DIR__ . "/vendor/autoload.php"; function handle($e, $c) { return Own\Lib::X . App\App::X; }`,
	}
	img, _, err = w.buildFiles(t, project, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.inside(t, img, nil, run...); got != "libapp" {
		t.Errorf("got %q", got)
	}

	for name, test := range map[string]struct{ packages, want string }{
		"path":            {`["evil/path"]`, "/work/.composer"},
		"file":            {`["evil/file"]`, "/work/.composer/config.json"},
		"unknown package": {`["acme/missing"]`, "acme/missing"},
		"unknown version": {`["acme/greet:^9"]`, "acme/greet"},
		"conflict":        {`["acme/greet:^1", "acme/words:^1"]`, "acme/words"},
	} {
		_, _, err := w.buildFiles(t, map[string]string{"fret.yaml": "id: c\nbase: php\npackages: {composer: " + test.packages + "}\n", "index.php": ""}, nil)
		if err == nil || !strings.Contains(err.Error(), "fret.yaml:3:") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q at packages.composer", name, err, test.want)
		}
	}
}
