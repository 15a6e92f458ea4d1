package live

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/template"
)

// own changes the owner of a directory from the other layout, and does not follow links.
func TestOwn(t *testing.T) {
	fretest.RequireRoot(t)
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	err := errors.Join(os.WriteFile(outside, nil, 0o600), os.Mkdir(filepath.Join(dir, "sub"), 0o700),
		os.WriteFile(filepath.Join(dir, "sub/file"), nil, 0o600), os.Symlink(outside, filepath.Join(dir, "link")))
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []int{1000, 0x10000000 + 1000, 1000} {
		if err := own(dir, id); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", "sub", "sub/file", "link"} {
			st, err := os.Lstat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if sys := st.Sys().(*syscall.Stat_t); int(sys.Uid) != id || int(sys.Gid) != id {
				t.Errorf("%q belongs to %d:%d, want %d", name, sys.Uid, sys.Gid, id)
			}
		}
	}
	st, err := os.Stat(outside)
	if err != nil || st.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("a file outside was given away: %v", err)
	}
}

// TestLimitsOf: every limit of an image reaches its sandboxes.
func TestLimitsOf(t *testing.T) {
	got := LimitsOf(template.Resources{MemoryBytes: 1, CPUMillis: 2, Pids: 3, TmpBytes: 4, Files: 5})
	if want := (sandbox.Limits{MemoryBytes: 1, CPUMillis: 2, Pids: 3, TmpBytes: 4, Files: 5}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
