package image

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/store"
)

// TestInterpreterFits: A parked interpreter fits only an environment that it can adopt later.
func TestInterpreterFits(t *testing.T) {
	parked := &ParkedInterpreter{Env: []string{"LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "PATH=/bin"}}
	for _, tt := range []struct {
		name string
		env  []string
		want bool
	}{
		{"the same and more", []string{"LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "A=b", "HOME=/work"}, true},
		{"another path", []string{"LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "PATH=/opt"}, true},
		{"what is done later", []string{"LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=/x"}, true},
		{"another language", []string{"LANG=de_DE", "PYTHONDONTWRITEBYTECODE=1"}, false},
		{"one category", []string{"LANG=C.UTF-8", "LC_ALL=C", "PYTHONDONTWRITEBYTECODE=1"}, false},
		{"a missing one", []string{"LANG=C.UTF-8"}, false},
		{"the interpreter's", []string{"LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "PYTHONHASHSEED=7"}, false},
		{"the linker's", []string{"LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "LD_PRELOAD=/x.so"}, false},
		{"the allocator's", []string{"LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "GLIBC_TUNABLES=a=b"}, false},
	} {
		if got := parked.Fits(tt.env, []string{"PYTHON"}, []string{"PYTHONPATH"}); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestInterpreterHolds: A parked interpreter holds only parts below its mounts.
func TestInterpreterHolds(t *testing.T) {
	parked := &ParkedInterpreter{Mounts: []string{"/function", "/opt/python"}}
	for prefix, want := range map[string]bool{
		"function": true, "opt/python": true, "opt/python/sub": true, "opt": false, "": false, "functional": false, "opt/pythons": false,
	} {
		if got := parked.holds([]store.Part{{Kind: "base"}, {Kind: "bootstrap", Prefix: "opt/fre"}, {Kind: "code", Prefix: prefix}}); got != want {
			t.Errorf("a part below %q: %v, want %v", prefix, got, want)
		}
	}
}

// Functions on one base share the root of their parked interpreters. The root holds no file of a
// single function.
func TestInterpreterRoot(t *testing.T) {
	r := newRig(t, map[string]string{"main.py": "def handle(): pass\n"})
	build := func(id, more string) *store.Image {
		t.Helper()
		r.write(t, map[string]string{"fret.yaml": "id: " + id + "\nversion: 0.1.0\nbase: python\n" + more})
		img, _, err := r.Build(t.Context(), r.root, nil)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	one, two := build("one", ""), build("two", "packages: {pip: [lib==1.0]}\n")
	var roots []*store.Image
	for _, img := range []*store.Image{one, two} {
		config, err := ConfigOf(img)
		if err != nil || config.Parked == nil {
			t.Fatalf("%s has no parked interpreter: %v", img.Name, err)
		}
		root, err := r.ParkedRoot(t.Context(), img, &config)
		if err != nil {
			t.Fatal(err)
		}
		roots = append(roots, root)
	}
	if roots[0].Digest != roots[1].Digest || !IsParkedRoot(roots[0]) || IsParkedRoot(one) {
		t.Errorf("the roots are %s and %s", roots[0].Digest, roots[1].Digest)
	}
	config, err := ConfigOf(roots[0])
	if err != nil || config.Labels[LabelKind] != KindTools {
		t.Errorf("labels %v, %v: lists would show it", config.Labels, err)
	}
	dir := r.Store.Rootfs(roots[0].Digest)
	for name, want := range map[string][]string{"function": nil, "opt": {"fre", "python"}, "opt/python": nil} {
		entries, err := os.ReadDir(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("/%s (-want +got):\n%s", name, diff)
		}
	}
	unfit := build("three", "env: {PYTHONHASHSEED: \"7\"}\n")
	if config, err := ConfigOf(unfit); err != nil || config.Parked != nil {
		t.Errorf("a variable that the interpreter reads at its start: parked interpreter %+v, %v", config.Parked, err)
	}
}
