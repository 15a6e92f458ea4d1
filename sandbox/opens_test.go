package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/fretest"
)

// TestOpens: Opens notes the files that a watched sandbox opens in its root, by their paths in the
// sandbox. Files opened by other processes or on other mounts stay out.
func TestOpens(t *testing.T) {
	h := openHost(t)
	root := fretest.Rootfs(t)
	for name, text := range map[string]string{"opened": "x", "seen": "x", "beside": "x"} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("opened", filepath.Join(root, "etc/link")); err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	o, err := NewOpens()
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			_ = o.Close()
		}
	}()
	watched := func(args ...string) Spec {
		s := prog(root, args...)
		s.Opens, s.Work, s.Repeats = o, work, true
		return s
	}
	for _, args := range [][]string{{"cat", "/etc/link", "/work/mine", "/proc/self/status", "/dev/null"}, {"stat", "/etc/seen"}, {"cat", "/etc/opened"}} {
		run(t, h, watched(args...))
	}
	run(t, h, prog(root, "cat", "/etc/beside")) // another mount of the same directory
	if _, err := os.ReadFile(filepath.Join(root, "etc/seen")); err != nil {
		t.Fatal(err)
	}
	got, err := o.Paths()
	if err != nil {
		t.Fatal(err)
	}
	program := prog(root).Args[0]
	want := []string{program, "/etc/opened"}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("opened: -want +got:\n%s", diff)
	}
	closed = true
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Paths(); err == nil {
		t.Error("paths after Close: no error")
	}
}
