package image

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/lazyregexp"
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
