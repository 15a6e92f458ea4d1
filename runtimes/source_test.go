package runtimes_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/python"
)

// sdist makes a source distribution.
func sdist(t *testing.T, top string, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: top + "/" + name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestBuildSource installs packages without wheels: pure Python, a compiled module, and a dependent
// package.
func TestBuildSource(t *testing.T) {
	w := newWorkshop(t)
	const template = "id: f\nbase: python\npackages:\n  pip: [%s]\n"
	for _, tt := range []struct {
		request, part, file, code, want string
	}{
		{"num2words==0.5.13", "docopt 0.6.2 at opt/python", "docopt-0.6.2.tar.gz", "import num2words; print(num2words.num2words(42))", "forty-two"},
		{"netifaces==0.11.0", "netifaces 0.11.0 at opt/python", "netifaces-0.11.0.tar.gz", "import netifaces; print('lo' in netifaces.interfaces())", "True"},
	} {
		t.Run(tt.request, func(t *testing.T) {
			img, lock, err := w.build(t, fmt.Sprintf(template, tt.request), "main.py", nil)
			if err != nil {
				t.Fatal(err)
			}
			noHosts(t, lock)
			if got := partNames(img, "pip"); !slices.Contains(got, tt.part) {
				t.Errorf("parts: %q", got)
			}
			locked := func(l *image.Lock) *image.LockedPackage {
				i := slices.IndexFunc(section[*python.Locked](l, "pip").Packages, func(p image.LockedPackage) bool { return p.Source == tt.file })
				if i < 0 || len(section[*python.Locked](l, "pip").Packages[i].Hashes) != 1 {
					t.Fatalf("locked: %+v", section[*python.Locked](l, "pip").Packages)
				}
				return &section[*python.Locked](l, "pip").Packages[i]
			}
			pinned := locked(lock).Requires
			if !slices.ContainsFunc(pinned, func(p image.LockedPackage) bool { return p.Name == "setuptools" && len(p.Hashes) > 0 }) {
				t.Errorf("built with %+v", pinned)
			}
			if out := w.inside(t, img, []string{"PYTHONPATH=/opt/python"}, "/usr/bin/python3", "-S", "-c", tt.code); out != tt.want {
				t.Errorf("printed %q, want %q", out, tt.want)
			}
			w.options = image.BuildOptions{Locked: true, Offline: true}
			again, _, err := w.build(t, fmt.Sprintf(template, tt.request), "main.py", lock)
			w.options = image.BuildOptions{}
			if err != nil || !slices.Equal(partNames(again, "pip"), partNames(img, "pip")) || len(w.runner.runs) != 0 {
				t.Errorf("with the lock: %v, ran %q", err, w.runner.runs)
			}
			if tt.file != "docopt-0.6.2.tar.gz" {
				return
			}
			// The store has no result of another run.
			for _, img := range w.Store.Images() {
				if slices.Contains(partNames(img, "pip"), tt.part) {
					if err := w.Store.RemoveImage(t.Context(), img.Digest); err != nil {
						t.Fatal(err)
					}
				}
			}
			// The build uses the pinned tools, without a resolver, and no other file of the same
			// name.
			none := "sha256:" + strings.Repeat("0", 64)
			other := slices.Clone(pinned)
			other[0].Hashes = append(slices.Clone(pinned[0].Hashes), none)
			locked(lock).Requires = other
			_, _, err = w.build(t, fmt.Sprintf(template, tt.request), "main.py", lock)
			tools := slices.DeleteFunc(slices.Clone(w.runner.runs), func(run string) bool { return run != "uv pip" })
			if err != nil || len(tools) != 2 { // they install the pinned tools and the built package
				t.Errorf("with others pinned: %v, ran %q", err, w.runner.runs)
			}
			other = slices.Clone(pinned)
			other[0].Hashes = []string{none}
			locked(lock).Requires = other
			var changed *image.PackageError
			if _, _, err := w.build(t, fmt.Sprintf(template, tt.request), "main.py", lock); !errors.As(err, &changed) || changed.Cause != image.PackageChanged {
				t.Errorf("built with unpinned tools: %v", err)
			}
			// A lock without pinned build tools holds. A build completes the lock, unless the lock
			// must not change.
			locked(lock).Requires = nil
			_, completed, err := w.build(t, fmt.Sprintf(template, tt.request), "main.py", lock)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(pinned, locked(completed).Requires); diff != "" {
				t.Errorf("completed, -want +got:\n%s", diff)
			}
			w.options = image.BuildOptions{Locked: true}
			defer func() { w.options = image.BuildOptions{} }()
			_, kept, err := w.build(t, fmt.Sprintf(template, tt.request), "main.py", lock)
			if err != nil || locked(kept).Requires != nil {
				t.Errorf("locked, with an older lock: %v, %+v", err, kept)
			}
			if _, _, err = w.build(t, fmt.Sprintf(template, tt.request), "main.py", lock); err != nil || len(w.runner.runs) != 0 {
				t.Errorf("once more: %v, ran %q", err, w.runner.runs)
			}
		})
	}
}
