package image

import (
	"slices"
	"testing"

	"github.com/fre-engine/fre/store"
)

// TestProgramDirs: The programs of packages are on PATH in each contract.
func TestProgramDirs(t *testing.T) {
	for _, c := range []struct{ path, want string }{
		{"PATH=/usr/bin:/bin", "PATH=/opt/python/bin:/usr/bin:/bin"},
		{"PATH=/x:/opt/python/bin:/bin", "PATH=/x:/opt/python/bin:/bin"},
		{"LANG=C", "LANG=C"},
	} {
		env := []string{"A=b", c.path}
		if got := withProgramDirs(env, []string{"/opt/python/bin"}); !slices.Equal(got, []string{"A=b", c.want}) {
			t.Errorf("%q: %q, want %q", c.path, got, c.want)
		}
	}
}

// TestOfPackage: The warning about a missing library names the Debian package with the library.
func TestOfPackage(t *testing.T) {
	for library, want := range map[string]string{
		"libatomic.so.1": " (Debian's package libatomic1)", "libxml2.so.2": " (Debian's package libxml2-2)", "libGL.so.1": " (Debian's package libgl1)",
		"libstdc++.so.6": " (Debian's package libstdc++6)", "libfoo-1.2.so": "",
	} {
		if got := ofPackage(library); got != want {
			t.Errorf("%s: %q, want %q", library, got, want)
		}
	}
	for name, want := range map[string]bool{"a/driver/run": true, "b/x.toy": true, "b/x.duck": false, "b/lib.so.1.2": true, "b/x.py": false} {
		mode := uint32(0o644)
		if name == "a/driver/run" {
			mode = 0o755
		}
		if got := maybeELF(&store.Entry{Path: name, Kind: store.KindFile, Size: 100, Mode: mode}, []string{".toy"}); got != want {
			t.Errorf("maybeELF(%s) = %v", name, got)
		}
	}
}
