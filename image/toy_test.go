package image

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// toy is a language known only to this test.
type toy struct{ tinyPython }

func (toy) Name() string                 { return "toy" }
func (toy) Bases() []string              { return []string{"toy"} }
func (toy) Bootstrap() map[string][]byte { return map[string][]byte{"toy": []byte("play()")} }

func (toy) Describe() template.Runtime {
	return template.Runtime{Handler: "a toy (default box.bear)", Handlers: map[template.Contract]string{template.ContractFRE: "box.bear"}}
}

func (toy) CheckHandler(t *template.Template, code CodeFiles) error {
	box, _, _ := strings.Cut(t.Handler, ".")
	return code.CheckFile(t.Handler, box+".toy")
}

// toyShop is the package site of toy.
type toyShop struct{ emptySite }

func (toyShop) Syntax() template.Site {
	return template.Site{About: "Toys.", Request: template.Pattern{Pattern: lazyregexp.New(`^[a-z]+$`), Want: "write a toy"}}
}

// TestToyLanguage: A language and a package site from a test alone work in full: their templates
// are parsed, described in the schema, checked and built.
func TestToyLanguage(t *testing.T) {
	r := newRig(t, map[string]string{"fret.yaml": "id: f\nbase: toy\npackages: {shop: [bear]}\n", "box.toy": "bear"})
	base := tinyBase()
	base.Name = "toy"
	r.Bases, r.Runtimes, r.Sites = append(r.Bases, base), append(r.Runtimes, toy{}), append(r.Sites, toyShop{emptySite{"shop", "toy"}})
	schema, err := Dialect(r.Bases, r.Runtimes, r.Sites).Schema()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"shop": {`, "toy: a toy (default box.bear)", `"Toys."`} {
		if !strings.Contains(string(schema), want) {
			t.Errorf("the schema has no %s", want)
		}
	}
	img, _, err := r.Build(t.Context(), r.root, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ConfigOf(img)
	if err != nil || c.Runtime != "toy" || c.Handler != "box.bear" {
		t.Errorf("the image has %+v, %v", c, err)
	}
	for _, file := range []string{"function/box.toy", "opt/fre/toy"} {
		if _, err := os.Stat(filepath.Join(r.Store.Rootfs(img.Digest), file)); err != nil {
			t.Error(err)
		}
	}
	for text, want := range map[string]string{
		"id: f\nbase: toy\nhandler: bag.bear\n":              "no bag.toy in the code",
		"id: f\nbase: toy\npackages: {shop: [Bear]}\n":       `bad requirement "Bear": write a toy`,
		"id: f\nbase: python\npackages: {shop: [bear]}\n":    "packages.shop needs the base toy",
		"id: f\nbase: native\nruntime: toy\n":                "the runtime toy needs the base toy",
		"id: f\nbase: toy\ncontract: lambda\n":               "runtime toy has the contracts fre",
		"id: f\nbase: toy\npackages: {shop: [a], shp: []}\n": `did you mean "shop"?`,
	} {
		r.write(t, map[string]string{"fret.yaml": text})
		_, _, err := r.Build(t.Context(), r.root, nil)
		var faults template.Errors
		if !errors.As(err, &faults) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// depot is an ecosystem that only this test knows: it resolves names to versions and locks these in
// a section of its own form.
type depot struct {
	emptySite
	latest   string // version of every package
	resolved *int   // counts resolutions
}

// depotLock is the section of depot.
type depotLock struct {
	Asked  []string          `json:"asked"`
	Pinned map[string]string `json:"pinned"` // name → version
}

func (depotLock) Check() error                         { return nil }
func (l *depotLock) Answers(r *template.Requests) bool { return slices.Equal(l.Asked, r.Key()) }
func (depot) Section() Section                         { return &depotLock{} }

func (d depot) Packages(ctx context.Context, s *Step, t *template.Template, lock *Lock) ([]store.Part, error) {
	section, ok := lock.Sites[d.Name()].(*depotLock)
	if !ok {
		*d.resolved++
		section = &depotLock{Asked: t.Packages.Of(d.Name()).Key(), Pinned: map[string]string{}}
		for _, name := range section.Asked {
			section.Pinned[name] = d.latest
		}
		lock.Sites[d.Name()] = section
	}
	var parts []store.Part
	for _, name := range slices.Sorted(maps.Keys(section.Pinned)) {
		w, err := s.Store.Create()
		if err != nil {
			return nil, err
		}
		defer w.Abort()
		if err := w.File("version", 0o644, time.Time{}, strings.NewReader(section.Pinned[name])); err != nil {
			return nil, err
		}
		tree, err := w.Commit(ctx)
		if err != nil {
			return nil, err
		}
		parts = append(parts, store.Part{Kind: "package", Name: name, Version: section.Pinned[name], Prefix: "opt/depot/" + name, Tree: tree})
	}
	return parts, nil
}

// TestToyEcosystem: a package site, added by a test alone, resolves packages and locks them in a
// section of its own: a build with the lock installs the locked versions, another request resolves
// again.
func TestToyEcosystem(t *testing.T) {
	r := newRig(t, map[string]string{"fret.yaml": "id: f\nbase: native\nhandler: run\npackages: {depot: [bear, duck]}\n", "run": "#!/bin/sh\n"})
	resolved := 0
	sites := r.Sites
	build := func(latest, want string) *Lock {
		t.Helper()
		r.Sites = append(slices.Clone(sites), depot{emptySite{"depot", "native"}, latest, &resolved})
		img, lock, err := r.Build(t.Context(), r.root, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(r.Store.Rootfs(img.Digest), "opt/depot/bear/version"))
		if err != nil || string(got) != want {
			t.Errorf("with %s the image has the bear %q, %v; want %s", latest, got, err, want)
		}
		if err := WriteLock(r.root, lock); err != nil {
			t.Fatal(err)
		}
		return lock
	}
	build("1", "1")
	text, err := os.ReadFile(filepath.Join(r.dir, LockFile))
	if want := `"depot": {
    "asked": [
      "bear",
      "duck"
    ],
    "pinned": {
      "bear": "1",
      "duck": "1"
    }
  }`; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("the lock file is %s, %v; want %s", text, err, want)
	}
	build("2", "1")
	if resolved != 1 {
		t.Errorf("%d resolutions with the lock, want 1", resolved)
	}
	r.write(t, map[string]string{"fret.yaml": "id: f\nbase: native\nhandler: run\npackages: {depot: [bear]}\n"})
	if lock := build("2", "2"); resolved != 2 || len(lock.Sites) != 1 {
		t.Errorf("%d resolutions of another request, want 2; sections %v", resolved, lock.Sites)
	}
	r.write(t, map[string]string{"fret.yaml": "id: f\nbase: native\nhandler: run\n", LockFile: `{"version":1,"depot":{"oops":1}}`})
	if _, _, err := r.Build(t.Context(), r.root, nil); err == nil || !strings.Contains(err.Error(), `depot: json: unknown field "oops"`) {
		t.Errorf("an unknown member: %v", err)
	}
}
