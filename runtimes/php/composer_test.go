package php

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// TestRoot: Composer's project for a function takes the requirements and repositories of
// composer.json, with directories below /function, and without plugins.
func TestRoot(t *testing.T) {
	base := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(base, "usr/lib/php/20220829"), 0o755), os.WriteFile(filepath.Join(base, "usr/lib/php/20220829/intl.so"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	s := &site{step: &image.Step{Rootfs: base}, tools: []string{"composer", "php-intl", "php-zip"}, requests: &template.Requests{File: "app/composer.json", Text: []byte(`{"require":{"a/b":"^1","php":">=8"},"scripts":{"x":"y"},"config":{"vendor-dir":"/x"},
		"repositories":[{"type":"path","url":"../lib"},{"type":"composer","url":"https://h"},{"type":"artifact","url":"/abs"}],"require-dev":{"c/d":"*"}}`)}}
	got, err := s.root()
	if err != nil {
		t.Fatal(err)
	}
	pin(got, []image.LockedPackage{{Name: "a/b", Version: "v1.2.0"}})
	want := map[string]any{
		"name": "fre/function", "version": "1.0.0", "minimum-stability": "dev", "prefer-stable": true,
		"require": map[string]any{"a/b": "v1.2.0", "php": ">=8"},
		"repositories": []any{
			map[string]any{"type": "path", "url": "/function/lib"}, map[string]any{"type": "composer", "url": "https://h"}, map[string]any{"type": "artifact", "url": "/abs"},
		},
		"config": map[string]any{"allow-plugins": false, "platform": map[string]any{"ext-zip": false}, "optimize-autoloader": true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	s.requests = &template.Requests{List: []string{"a/b", "c/d:^2 || ^3"}}
	if got, err = s.root(); err != nil || !cmp.Equal(got["require"], any(map[string]any{"a/b": "*", "c/d": "^2 || ^3"})) {
		t.Errorf("of a list: %v, %v", got["require"], err)
	}
	s.requests = &template.Requests{File: "composer.json", Text: []byte("[")}
	if _, err := s.root(); err == nil {
		t.Error("broken JSON is accepted")
	}
}

// TestCompare: A build refuses packages that differ from the lock.
func TestCompare(t *testing.T) {
	a := image.LockedPackage{Name: "a/a", Version: "1", Hashes: []string{"sha256:1"}}
	b := image.LockedPackage{Name: "b/b", Version: "1", Hashes: []string{"sha256:2"}}
	other := image.LockedPackage{Name: "a/a", Version: "1", Hashes: []string{"sha256:3"}}
	for name, test := range map[string]struct {
		locked, found []image.LockedPackage
		ok            bool
	}{
		"same":    {[]image.LockedPackage{a, b}, []image.LockedPackage{a, b}, true},
		"changed": {[]image.LockedPackage{a, b}, []image.LockedPackage{other, b}, false},
		"more":    {[]image.LockedPackage{a}, []image.LockedPackage{a, b}, false},
		"less":    {[]image.LockedPackage{a, b}, []image.LockedPackage{a}, false},
	} {
		if err := compare(test.locked, test.found); (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Packages come only from servers and from beside the template, whatever a repository claims.
func TestPlaces(t *testing.T) {
	for dist, ok := range map[string]bool{
		`null`: true,
		`{"type":"zip","url":"https://example.org/a.zip"}`:                                                     true,
		`{"type":"path","url":"/function/lib"}`:                                                                true,
		`{"type":"path","url":"/function/../work/.composer"}`:                                                  false,
		`{"type":"path","url":"/functions"}`:                                                                   false,
		`{"type":"path","url":"/work/.composer"}`:                                                              false,
		`{"type":"path","url":".composer"}`:                                                                    false,
		`{"type":"path","url":""}`:                                                                             false,
		`{"type":"file","url":"file:///proc/self/environ"}`:                                                    false,
		`{"type":"file","url":"https:/proc/self/environ"}`:                                                     false,
		`{"type":"zip","url":"https://example.org/a.zip","mirrors":[{"url":"/work/.composer/auth.json"}]}`:     false,
		`{"type":"zip","url":"https://example.org/a.zip","mirrors":[{"url":"https://mirror.example.org/%p"}]}`: true,
	} {
		_, _, err := parseLock([]byte(`{"packages":[{"name":"a/b","version":"1","dist":` + dist + `}]}`))
		if (err == nil) != ok {
			t.Errorf("%s: %v", dist, err)
		}
	}
}

// The recorded hashes are those that Composer compares, and none for a copied directory.
func TestArchives(t *testing.T) {
	const sum = "da39a3ee5e6b4b0d3255bfef95601890afd80709"
	_, got, err := parseLock([]byte(`{"packages":[
		{"name":"a/zip","version":"1","dist":{"type":"zip","url":"https://example.org/a.zip","shasum":"` + sum + `"}},
		{"name":"a/none","version":"1","dist":{"type":"zip","url":"https://example.org/a.zip","shasum":""}},
		{"name":"a/null","version":"1","dist":{"type":"zip","url":"https://example.org/a.zip","shasum":null}},
		{"name":"a/bad","version":"1","dist":{"type":"zip","url":"https://example.org/a.zip","shasum":"sha1:x"}},
		{"name":"a/path","version":"1","dist":{"type":"path","url":"/function/lib","shasum":"` + sum + `"}}]}`))
	if diff := cmp.Diff(map[string]string{"a/zip": "sha1:" + sum}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// FuzzParseLock: Any composer.lock is read or refused without a panic.
func FuzzParseLock(f *testing.F) {
	f.Add([]byte(`{"packages":[{"name":"a/b","version":"v1.0.0"}]}`))
	f.Add([]byte(`{"packages":[{"name":"../b","version":"1"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		packages, archives, err := parseLock(text)
		for _, p := range packages {
			if err == nil && (!namePattern.MatchString(p.Name) || p.Version == "") {
				t.Errorf("bad package out of %q: %+v", text, p)
			}
		}
		for name, hash := range archives {
			if !namePattern.MatchString(name) || len(hash) != len("sha1:")+40 {
				t.Errorf("bad hash out of %q: %s %s", text, name, hash)
			}
		}
	})
}
