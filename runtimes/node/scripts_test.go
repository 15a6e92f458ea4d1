package node

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/template"
)

// TestHooks: A package's install scripts run in npm's order, and binding.gyp implies a build.
func TestHooks(t *testing.T) {
	for name, tt := range map[string]struct {
		manifest string
		gyp      bool
		want     []hook
		bad      bool
	}{
		"in npm's order":              {`{"scripts":{"postinstall":"c","install":"b","preinstall":"a","test":"x"}}`, false, []hook{{"preinstall", "a"}, {"install", "b"}, {"postinstall", "c"}}, false},
		"binding.gyp":                 {`{}`, true, []hook{{"install", "node-gyp rebuild"}}, false},
		"binding.gyp and postinstall": {`{"scripts":{"postinstall":"c"}}`, true, []hook{{"install", "node-gyp rebuild"}, {"postinstall", "c"}}, false},
		"binding.gyp and install":     {`{"scripts":{"install":"node-gyp-build"}}`, true, []hook{{"install", "node-gyp-build"}}, false},
		"binding.gyp and preinstall":  {`{"scripts":{"preinstall":"a"}}`, true, []hook{{"preinstall", "a"}}, false},
		"gypfile is false":            {`{"gypfile":false}`, true, nil, false},
		"none":                        {`{"scripts":{"test":"x","install":" "}}`, false, nil, false},
		"byte order mark":             {"\ufeff" + `{"scripts":{"install":"b"}}`, false, []hook{{"install", "b"}}, false},
		"scripts of other types":      {`{"scripts":["install"]}`, false, nil, false},
		"a script of another type":    {`{"scripts":{"install":7,"postinstall":"c"}}`, false, []hook{{"postinstall", "c"}}, false},
		"no JSON":                     {`{`, false, nil, true},
		"NUL":                         {`{"scripts":{"install":"a\u0000b"}}`, false, nil, true},
		"long":                        {`{"scripts":{"install":"` + strings.Repeat("a", maxCommand+1) + `"}}`, false, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := hooks([]byte(tt.manifest), tt.gyp)
			if (err != nil) != tt.bad {
				t.Fatalf("got %v", err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(hook{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// FuzzHooks: Any package manifest gives its install scripts without a panic.
func FuzzHooks(f *testing.F) {
	f.Add([]byte(`{"scripts":{"install":"b"},"gypfile":false}`), true)
	f.Fuzz(func(t *testing.T, manifest []byte, gyp bool) {
		list, err := hooks(manifest, gyp)
		if err != nil && len(list) > 0 || len(list) > 3 {
			t.Errorf("%v with %v", list, err)
		}
		for _, h := range list {
			if h.command == "" || len(h.command) > maxCommand || strings.ContainsRune(h.command, 0) {
				t.Errorf("%+v", h)
			}
		}
	})
}

// lockOf reads a lock with packages of version 1.0.0.
func lockOf(t *testing.T, packages string) *packageLock {
	t.Helper()
	var l packageLock
	if err := json.Unmarshal([]byte(`{"lockfileVersion":3,"packages":{`+packages+`}}`), &l); err != nil {
		t.Fatal(err)
	}
	for place, p := range l.ByPlace {
		if place != "" && !p.InBundle {
			p.Version, p.Integrity = "1.0.0", integrity([]byte(place))
			l.ByPlace[place] = p
		}
	}
	if err := l.check(); err != nil {
		t.Fatal(err)
	}
	return &l
}

const tangled = `
	"": {"dependencies":{"a":"1","x":"1"}},
	"node_modules/a": {"dependencies":{"b":"1","bundled":"1"},"optionalDependencies":{"elsewhere":"1"}},
	"node_modules/a/node_modules/b": {"dependencies":{"c":"1"}},
	"node_modules/a/node_modules/bundled": {"version":"1.0.0","inBundle":true,"dependencies":{"c":"1"}},
	"node_modules/b": {},
	"node_modules/c": {},
	"node_modules/elsewhere": {"optional":true,"os":["aix"]},
	"node_modules/user": {"dependencies":{"bundled":"1"}},
	"node_modules/user/node_modules/bundled": {"version":"1.0.0","inBundle":true},
	"node_modules/@s-node_modules/x": {"dependencies":{"c":"1","y":"1"}},
	"node_modules/y": {"peerDependencies":{"@s-node_modules/x":"1"}}`

// TestScripted: Packages with install scripts are made after their dependencies. They are made
// again if a visible package changes, and only then.
func TestScripted(t *testing.T) {
	plan := func(t *testing.T, l *packageLock, allowed ...string) []scripted {
		t.Helper()
		out, err := l.scripted(l.places(), allowed, "18")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	l := lockOf(t, tangled)
	got := map[string][]string{}
	var order []string
	for _, p := range plan(t, l, "a", "c", "y", "@s-node_modules/x") {
		order = append(order, p.place)
		for _, d := range p.sees {
			word := d.place
			if d.made {
				word += " made"
			}
			got[p.place] = append(got[p.place], word)
		}
	}
	// x and y need each other.
	if diff := cmp.Diff([]string{"node_modules/c", "node_modules/y", "node_modules/@s-node_modules/x", "node_modules/a"}, order); diff != "" {
		t.Errorf("order, -want +got:\n%s", diff)
	}
	want := map[string][]string{
		"node_modules/y":                 {"node_modules/@s-node_modules/x", "node_modules/c made"},
		"node_modules/@s-node_modules/x": {"node_modules/c made", "node_modules/y made"},
		"node_modules/a":                 {"node_modules/a/node_modules/b", "node_modules/c made"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sees, -want +got:\n%s", diff)
	}

	key := func(l *packageLock, version string, allowed ...string) string {
		out, err := l.scripted(l.places(), allowed, version)
		if err != nil {
			t.Fatal(err)
		}
		return out[len(out)-1].key
	}
	before := key(l, "18", "a")
	other := func(place string) *packageLock {
		changed := &packageLock{Version: 3, ByPlace: maps.Clone(l.ByPlace)}
		p := changed.ByPlace[place]
		p.Integrity = integrity([]byte("another"))
		changed.ByPlace[place] = p
		return changed
	}
	bin := func(place, bin string) *packageLock {
		changed := &packageLock{Version: 3, ByPlace: maps.Clone(l.ByPlace)}
		p := changed.ByPlace[place]
		p.Bin = json.RawMessage(bin)
		changed.ByPlace[place] = p
		return changed
	}
	nested := &packageLock{Version: 3, ByPlace: maps.Clone(l.ByPlace)}
	nested.ByPlace["node_modules/a/node_modules/own"] = l.ByPlace["node_modules/b"]
	for name, tt := range map[string]struct {
		key  string
		same bool
	}{
		"its own programs":          {key(bin("node_modules/a", `{"gcc": "true.js"}`), "18", "a"), false},
		"programs of what it sees":  {key(bin("node_modules/a/node_modules/b", `{"gcc": "true.js"}`), "18", "a"), false},
		"programs that it sees not": {key(bin("node_modules/b", `{"gcc": "true.js"}`), "18", "a"), true},
		"a place below it":          {key(nested, "18", "a"), false},
		"the same":                  {key(lockOf(t, tangled), "18", "a"), true},
		"a package it needs not":    {key(other("node_modules/b"), "18", "a"), true},
		"itself":                    {key(other("node_modules/a"), "18", "a"), false},
		"a package it needs":        {key(other("node_modules/a/node_modules/b"), "18", "a"), false},
		"one that this needs":       {key(other("node_modules/c"), "18", "a"), false},
		"scripts of what it sees":   {key(l, "18", "c", "a"), false},
		"Node":                      {key(l, "20", "a"), false},
	} {
		if (tt.key == before) != tt.same {
			t.Errorf("%s: the key is the same: %v, want %v", name, tt.key == before, tt.same)
		}
	}

	if key(bin("node_modules/a/node_modules/b", `{"gcc": "true.js"}`), "18", "a") == key(bin("node_modules/a/node_modules/b", `{"cc": "true.js"}`), "18", "a") {
		t.Error("the names of programs are not in the key")
	}
	if p := l.ByPlace["node_modules/b"]; p.key("node_modules/b") == bin("node_modules/b", `{"gcc": "true.js"}`).ByPlace["node_modules/b"].key("node_modules/b") {
		t.Error("which files can be executed is not in the key of a package's part")
	}

	var field *template.FieldError
	for _, name := range []string{"nobody", "elsewhere", "bundled", "node_modules/a", ""} {
		if _, err := l.scripted(l.places(), []string{name}, "18"); !errors.As(err, &field) || field.Field != "packages.npm_scripts" {
			t.Errorf("npm_scripts: %q: %v", name, err)
		}
	}
	sees := plan(t, l, "user")[0].sees
	if len(sees) != 0 {
		t.Errorf("a bundled package is beside its package: %v", sees)
	}
}

// FuzzScripted: Any lock gives an order of install scripts without a panic.
func FuzzScripted(f *testing.F) {
	f.Add([]byte(`{"lockfileVersion":3,"packages":{`+tangled+`}}`), "a", "c")
	f.Add([]byte(`{"lockfileVersion":3,"packages":{"":{"inBundle":true},"node_modules/a":{"inBundle":true,"dependencies":{"..":"","a":"","":""}}}}`), "a", "")
	f.Fuzz(func(t *testing.T, raw []byte, one, two string) {
		var l packageLock
		if json.Unmarshal(raw, &l) != nil {
			return
		}
		for place, p := range l.ByPlace {
			if !p.InBundle && p.Integrity == "" {
				p.Integrity = integrity([]byte(place))
				l.ByPlace[place] = p
			}
		}
		if l.check() != nil {
			return
		}
		places := l.places()
		plan, err := l.scripted(places, []string{one, two}, "18")
		if err != nil {
			return
		}
		made := map[string]bool{}
		keys := map[string]bool{}
		for _, p := range plan {
			if !slices.Contains(places, p.place) || made[p.place] || keys[p.key] {
				t.Errorf("made twice, or not asked for: %+v", p)
			}
			for _, d := range p.sees {
				if d.place == p.place || !slices.Contains(places, d.place) || d.made != made[d.place] {
					t.Errorf("%s sees %+v", p.place, d)
				}
			}
			made[p.place], keys[p.key] = true, true
		}
	})
}
