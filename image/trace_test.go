package image

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// slimRig is a store with a function's image, made of parts.
type slimRig struct {
	*Builder
	t *testing.T
}

// part puts a part: "path" → content, "path@" → a link's target, "path/" → a directory, "!path" → a
// whiteout, which makes the part a layer.
func (r slimRig) part(kind, name, prefix string, files map[string]string) store.Part {
	r.t.Helper()
	w, err := r.Store.CreateLayer()
	if err != nil {
		r.t.Fatal(err)
	}
	defer w.Abort()
	p := store.Part{Kind: kind, Name: name, Prefix: prefix}
	made := map[string]bool{}
	for path, text := range files {
		clean := strings.Trim(path, "@!/")
		for dir := range parents(clean) {
			if !made[dir] {
				err = errors.Join(err, w.Directory(dir, 0o755, systemTime))
				made[dir] = true
			}
		}
		switch {
		case strings.HasPrefix(path, "!"):
			err = errors.Join(err, w.Whiteout(clean))
			p.Diff = store.Digest("sha256:" + strings.Repeat("a", 64))
		case strings.HasSuffix(path, "/"):
			err = errors.Join(err, w.Directory(clean, 0o755, systemTime))
		case strings.HasSuffix(path, "@"):
			err = errors.Join(err, w.Symlink(clean, text, systemTime))
		default:
			err = errors.Join(err, w.File(clean, 0o644, systemTime, strings.NewReader(text)))
		}
	}
	if err != nil {
		r.t.Fatal(err)
	}
	if p.Tree, err = w.Commit(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return p
}

func (r slimRig) image(config Config, parts ...store.Part) *store.Image {
	r.t.Helper()
	raw, err := json.Marshal(config)
	if err != nil {
		r.t.Fatal(err)
	}
	img, err := r.Store.PutImage(r.t.Context(), store.Manifest{Name: "f", Version: "1", Parts: parts, Config: raw})
	if err != nil {
		r.t.Fatal(err)
	}
	return img
}

// tinyELF is a program for this machine with the interpreter /lib/ld.so.
func tinyELF(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	const interp = "/lib/ld.so\x00"
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(machines[runtime.GOARCH]), Version: 1, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1}
	copy(h.Ident[:], elf.ELFMAG+"\x02\x01\x01")
	for _, v := range []any{h, elf.Prog64{Type: uint32(elf.PT_INTERP), Off: 120, Filesz: uint64(len(interp))}} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	return b.String() + interp
}

// TestSlimTraced: A slim image keeps the opened files of the base and the packages, with their
// dependencies, and all files of the code and the bootstrap.
func TestSlimTraced(t *testing.T) {
	r := slimRig{newRig(t, nil).Builder, t}
	img := r.image(Config{Runtime: "python", Keep: []string{"usr/share/keep"}, LeftOut: &LeftOut{Packages: []string{"dpkg"}}},
		r.part("base", "python", "", map[string]string{
			"bin@": "usr/bin", "usr/bin/python3@": "python3.11", "usr/bin/python3.11": tinyELF(t), "usr/bin/other": "x", "usr/bin/gone@": "other",
			"lib@": "usr/lib", "usr/lib/ld.so@": "ld-2.so", "usr/lib/ld-2.so": "loader",
			"usr/lib/liba.so.1@": "liba.so.1.2", "usr/lib/liba.so.1.2": "a", "usr/lib/libb.so": "b",
			"usr/lib/py/mod.py": "m", "usr/lib/py/__pycache__/mod.cpython-311.pyc": "c", "usr/lib/py/mod2.py": "m2", "usr/lib/py/__pycache__/mod2.cpython-311.pyc": "c2",
			"usr/lib/py/pkg/__init__.py": "i", "usr/lib/py/pkg/in.py": "in", "usr/lib/py/pkg/typed": "", "usr/lib/py/pkg/out.py": "out", "usr/lib/py/lost/__init__.py": "i",
			"etc/passwd": "root", "etc/proc@": "/proc/mounts", "usr/share/keep/a": "a", "usr/share/keep/b/c": "c", "usr/share/else/a": "a", "var/empty/": "",
		}),
		r.part("pip", "used", "opt/python", map[string]string{"used/__init__.py": "u", "used/big.so": "big", "used-1.dist-info/METADATA": "Name: used", "used-1.dist-info/RECORD": "", "same.py": "lower"}),
		r.part("pip", "unused", "opt/python", map[string]string{"unused/__init__.py": "u", "unused-1.dist-info/METADATA": "Name: unused"}),
		r.part("pip", "over", "opt/python", map[string]string{"same.py": "upper"}),
		r.part("bootstrap", "python", "opt/fre", map[string]string{"bootstrap.py": "boot", "rare.py": "rare"}),
		r.part("code", "f", "function", map[string]string{"main.py": "code", "lib/unopened.py": "x"}),
	)
	opened := []string{
		"/usr/bin/python3.11", "/usr/lib/liba.so.1.2", "/usr/lib/py/__pycache__/mod.cpython-311.pyc", "/usr/lib/py/pkg/in.py", "/opt/python/used/__init__.py", "/opt/python/same.py",
		"/etc/../../outside", "/", "", "/nosuch", "/usr",
	}
	dry, err := r.Slim(t.Context(), img, SlimOptions{Opened: opened, DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Slim(t.Context(), img, SlimOptions{Opened: opened})
	if err != nil {
		t.Fatal(err)
	}
	if dry.Image != nil || dry.After != got.After || len(dry.Gone) != len(got.Gone) {
		t.Errorf("a dry run says %+v, want as without %+v", dry, got)
	}
	var gone []string
	for _, e := range got.Gone {
		gone = append(gone, e.Path)
	}
	want := []string{
		"opt/python/unused-1.dist-info/METADATA", "opt/python/unused/__init__.py", "opt/python/used/big.so",
		"usr/bin/gone", "usr/bin/other", "usr/lib/libb.so",
		"usr/lib/py/__pycache__/mod2.cpython-311.pyc", "usr/lib/py/lost/__init__.py", "usr/lib/py/mod2.py", "usr/lib/py/pkg/out.py",
		"usr/share/else/a",
	}
	if diff := cmp.Diff(want, gone); diff != "" {
		t.Errorf("gone: -want +got:\n%s", diff)
	}
	// The report matches the files: no empty directory remains.
	all, left := list(t, r.Store.Rootfs(img.Digest)), list(t, r.Store.Rootfs(got.Image.Digest))
	want = nil
	for _, line := range all {
		path, _, _ := strings.Cut(line, " ")
		if !slices.Contains(gone, path) {
			want = append(want, line)
		}
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("root: -want +got:\n%s", diff)
	}
	entries, err := r.Store.Entries(got.Image)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		for _, dir := range []string{"usr/lib/py/lost", "opt/python/unused", "usr/share/else"} {
			if e.Path == dir {
				t.Errorf("the directory %s is there, and empty", dir)
			}
		}
	}
	config, err := ConfigOf(got.Image)
	if err != nil {
		t.Fatal(err)
	}
	if config.Labels[LabelSlimOf] != string(img.Digest) || got.Image.Built != "f:1-slim" || len(got.Image.Names) != 0 {
		t.Errorf("image %s %v with labels %v", got.Image.Built, got.Image.Names, config.Labels)
	}
	unopened := []LeftOutPart{{"base python", 7, 11}, {"pip used", 1, 3}, {"pip unused", 2, 13}}
	if diff := cmp.Diff(&LeftOut{Packages: []string{"dpkg"}, Unopened: unopened}, config.LeftOut); diff != "" {
		t.Errorf("left out: -want +got:\n%s", diff)
	}
	if _, err := r.Slim(t.Context(), got.Image, SlimOptions{}); !errors.Is(err, ErrSlimmed) {
		t.Errorf("a slimmed image again: %v, want ErrSlimmed", err)
	}
	var field *template.FieldError
	if _, err := r.Slim(t.Context(), img, SlimOptions{Keep: []string{"a/["}}); !errors.As(err, &field) {
		t.Errorf("a bad glob: %v, want a FieldError", err)
	}
	base := r.image(Config{Protocol: ProtocolNone}, img.Parts[0])
	if _, err := r.Slim(t.Context(), base, SlimOptions{}); !errors.Is(err, ErrSlimmed) {
		t.Errorf("a base: %v, want ErrSlimmed", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Slim(ended, img, SlimOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("when it is cancelled: %v", err)
	}
}

// TestSlimLayers: Layers that remove or replace files become parts without removals.
func TestSlimLayers(t *testing.T) {
	r := slimRig{newRig(t, nil).Builder, t}
	img := r.image(Config{Runtime: "python"},
		r.part("base", "lower", "", map[string]string{"usr/a": "lower a", "usr/b": "b", "usr/was/x": "x", "!none": ""}),
		r.part("base", "upper", "", map[string]string{"usr/a": "upper a", "!usr/b": "", "usr/was@": "c", "usr/c": "c"}),
		r.part("code", "f", "function", map[string]string{"main.py": "code"}),
	)
	got, err := r.Slim(t.Context(), img, SlimOptions{Opened: []string{"/usr/a", "/usr/c"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"function/main.py 644 code", "usr/a 644 upper a", "usr/c 644 c", "usr/was -> c"}
	if diff := cmp.Diff(want, list(t, r.Store.Rootfs(got.Image.Digest))); diff != "" {
		t.Errorf("root: -want +got:\n%s", diff)
	}
	for _, p := range got.Image.Parts {
		if p.Diff != "" {
			t.Errorf("%s is a layer of %s, whose archive it does not hold", p.Name, p.Diff)
		}
		tree, err := r.Store.Tree(p.Tree)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range tree.Entries {
			if e.Digest != "" && p.Name == "lower" {
				t.Errorf("the lower layer still has %s, which is hidden", e.Path)
			}
		}
	}
}
