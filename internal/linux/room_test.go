package linux_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/linux"
)

// TestHasRoom: a twentieth of a small disk's bytes and inodes stays free, including bytes yet to be
// written.
func TestHasRoom(t *testing.T) {
	fretest.RequireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("fre-linux-test", dir, "tmpfs", 0, "size=20m,nr_inodes=100"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	check := func(when string, more int64, want error) {
		t.Helper()
		if err := linux.HasRoom(dir, more); !errors.Is(err, want) {
			t.Errorf("%s, %d bytes more: %v, want %v", when, more, err, want)
		}
	}
	check("empty", 0, nil)
	check("empty", 19<<20, nil)
	check("empty", 20<<20, unix.ENOSPC)
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 10<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	check("half full", 9<<20, nil)
	check("half full", 10<<20, unix.ENOSPC)
	if err := os.WriteFile(filler, make([]byte, 19<<20+4096), 0o600); err != nil {
		t.Fatal(err)
	}
	check("the reserve is left", 0, unix.ENOSPC)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := os.CreateTemp(dir, "")
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	check("no inode is left", 0, unix.ENOSPC)
}
