package oci

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fre-engine/fre/image"
)

// TestImportTolerant: Archives of tar, debootstrap, LXC and BuildKit become images: device nodes
// are left out with a warning, the last of two equal paths counts, links stay inside the root, and
// names are bytes. Save gives the same archive again.
func TestImportTolerant(t *testing.T) {
	node := func(kind byte, name string) entry {
		return entry{tar.Header{Typeflag: kind, Name: name, Mode: 0o666}, ""}
	}
	for _, c := range []struct {
		name  string
		layer []entry
		files map[string]string // "" for absent files
		warns string
	}{
		{
			"nodes",
			[]entry{dir("dev"), node(tar.TypeChar, "dev/null"), link(tar.TypeLink, "dev/zero", "dev/null"), node(tar.TypeBlock, "sda"), node(tar.TypeFifo, "run/initctl"), file("a", "1")},
			map[string]string{"a": "1", "dev/null": "", "dev/zero": "", "sda": "", "run/initctl": ""},
			"left out",
		},
		{"a file, then a node", []entry{file("a", "1"), node(tar.TypeChar, "a")}, map[string]string{"a": ""}, "left out"},
		{"a node, then a file", []entry{node(tar.TypeChar, "a"), file("a", "1")}, map[string]string{"a": "1"}, "left out"},
		{"three times", []entry{file("a", "one"), file("b", "x"), file("a", "two"), file("a", "three"), file("b", "")}, map[string]string{"a": "three"}, ""},
		{"a file, then a link", []entry{file("b", "1"), file("a", "2"), link(tar.TypeLink, "a", "b")}, map[string]string{"a": "1"}, ""},
		{"a link, then a file", []entry{file("b", "1"), link(tar.TypeLink, "a", "b"), file("a", "2"), file("a", "3")}, map[string]string{"a": "3", "b": "1"}, ""},
		{"a directory, then a file", []entry{file("a/b/c", "1"), file("a/d", "2"), file("a", "3")}, map[string]string{"a": "3"}, ""},
		{"a file, then a directory", []entry{file("a", "1"), dir("a"), file("a/b", "2")}, map[string]string{"a/b": "2"}, ""},
		{
			"below links",
			[]entry{dir("usr"), dir("usr/lib"), link(tar.TypeSymlink, "lib", "usr/lib"), file("lib/x", "1"), link(tar.TypeSymlink, "usr/lib64", "/lib"), file("usr/lib64/y", "2"), link(tar.TypeLink, "z", "lib/x")},
			map[string]string{"usr/lib/x": "1", "usr/lib/y": "2", "z": "1"},
			"",
		},
		{"out by a link", []entry{link(tar.TypeSymlink, "a", "../../etc"), file("a/x", "1")}, map[string]string{"etc/x": "1"}, ""},
		{"absolute", []entry{file("/etc/x", "1"), file("b/../c", "2"), link(tar.TypeLink, "d", "/etc/x")}, map[string]string{"etc/x": "1", "c": "2", "d": "1"}, ""},
		{"bytes", []entry{file("caf\xe9", "1"), file("d\xff/x", "2"), link(tar.TypeSymlink, "l", "caf\xe9")}, map[string]string{"caf\xe9": "1", "d\xff/x": "2", "l": "1"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openStore(t)
			layer := pack(t, c.layer...)
			var warnings []string
			img, err := Import(t.Context(), s, bytes.NewReader(layer), ImportOptions{Name: "odd:1", Options: Options{Report: func(e image.Progress) {
				if e.Step == "warning" {
					warnings = append(warnings, e.Message)
				}
			}}})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.Join(warnings, " "), c.warns) || c.warns == "" && len(warnings) > 0 {
				t.Errorf("warnings %q, want %q", warnings, c.warns)
			}
			for name, want := range c.files {
				got, err := os.ReadFile(filepath.Join(s.Rootfs(img.Digest), name))
				if want == "" != errors.Is(err, fs.ErrNotExist) || string(got) != want {
					t.Errorf("%q: %q, %v, want %q", name, got, err, want)
				}
			}
			var saved bytes.Buffer
			if err := Save(t.Context(), s, &saved, []string{"odd:1"}, Options{}); err != nil {
				t.Fatal(err)
			}
			ids, err := DiffIDs(t.Context(), s, img)
			if err != nil || len(ids) != 1 || ids[0] != digestOf(layer) || !bytes.Contains(saved.Bytes(), layer) {
				t.Errorf("saved with the layers %s, %v, want %s", ids, err, digestOf(layer))
			}
		})
	}
}

// TestImageSize: A file with several names counts once.
func TestImageSize(t *testing.T) {
	s := openStore(t)
	layer := []entry{file("a", strings.Repeat("x", 1000))}
	for _, name := range []string{"b", "c", "d"} {
		layer = append(layer, link(tar.TypeLink, name, "a"))
	}
	img, err := Import(t.Context(), s, bytes.NewReader(pack(t, slices.Concat(layer, []entry{file("e", "123")})...)), ImportOptions{Name: "linked:1"})
	if err != nil || img.Size != 1003 || img.Files != 5 {
		t.Errorf("%+v, %v, want 1003 bytes in 5 files", img, err)
	}
	steps, err := History(s, img)
	if err != nil || len(steps) != 1 || steps[0].Size != 1003 {
		t.Errorf("history %+v, %v, want one step of 1003 bytes", steps, err)
	}
}
