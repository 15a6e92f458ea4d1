package python

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
)

var _ image.ForkServer = Runtime{}

func TestCommand(t *testing.T) {
	for handler, ok := range map[string]bool{
		"main.handle": true, "pkg.mod.handle": true, "größe.f": true, "_m._f": true,
		"": false, "main": false, "main.": false, ".handle": false, "main.py:handle": false, "a-b.c": false, "../m.f": false, "1a.b": false,
	} {
		_, _, err := Runtime{}.Command(&image.Template{Handler: handler})
		var f *image.FieldError
		if ok != (err == nil) || !ok && !errors.As(err, &f) {
			t.Errorf("%q: %v", handler, err)
		}
	}
}

func TestParseRequirements(t *testing.T) {
	got, err := parseRequirements([]byte("a==1.0 \\\n    --hash=sha256:11 \\\n    --hash=sha256:22\nb-c==2.0+x ; python_version > '3' \\\n    --hash=sha256:33\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []image.LockedPackage{
		{Name: "a", Version: "1.0", Hashes: []string{"sha256:11", "sha256:22"}},
		{Name: "b-c", Version: "2.0+x", Hashes: []string{"sha256:33"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"a==1\n", "--hash=sha256:11\n", "a @ https://h/a.whl\n", "--index-url https://h\n"} {
		if got, err := parseRequirements([]byte(bad)); err == nil {
			t.Errorf("%q: got %v", bad, got)
		}
	}
}

func FuzzParseRequirements(f *testing.F) {
	f.Add([]byte("a==1.0 \\\n    --hash=sha256:11\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		packages, err := parseRequirements(src)
		for _, p := range packages {
			if err == nil && (p.Name == "" || p.Version == "" || len(p.Hashes) == 0) {
				t.Errorf("half a package out of %q: %+v", src, p)
			}
		}
	})
}
