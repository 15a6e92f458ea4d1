package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// The bench lays out a stored tree unchanged, and a link in one tree leads a second tree nowhere.
func TestBenchLay(t *testing.T) {
	s, err := store.Open(filepath.Join(t.TempDir(), "store"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	defer s.Hold()()
	host := t.TempDir()
	w, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for _, err := range []error{
		w.Directory("lib", 0o755, Time), w.File("lib/a.js", 0o644, Time, strings.NewReader("a")),
		w.File("lib/run", 0o755, Time, strings.NewReader("#!")), w.File("empty", 0o644, Time, strings.NewReader("")),
		w.Symlink("out", host, Time), w.Symlink("near", "lib/a.js", Time),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tree, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBench(&image.Step{Scratch: t.TempDir(), Store: s})
	if err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{"node_modules/one", "node_modules/@s/other"} {
		if err := b.Lay(t.Context(), tree, place); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(b.Dir, place, "lib/a.js"))
		if err != nil || info.Mode() != 0o644 || !info.ModTime().Equal(Time) {
			t.Errorf("%s: %v, %v, want mode 0644", place, info, err)
		}
		again, err := b.Import(t.Context(), place, func(string) bool { return false })
		if err != nil || again != tree {
			t.Errorf("%s: imported as %s, %v, want %s", place, again, err, tree)
		}
	}
	if err := b.Lay(t.Context(), tree, "node_modules/one/out/x"); err == nil {
		t.Error("laid through a link that leads out")
	}
	if entries, err := os.ReadDir(host); err != nil || len(entries) > 0 {
		t.Errorf("on the host: %v, %v", entries, err)
	}
}

// The engine, which is root, follows no link that a tool left on its bench.
func TestBenchLinks(t *testing.T) {
	host := t.TempDir()
	secret := filepath.Join(host, "secret")
	if err := os.WriteFile(secret, []byte("the host's"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := NewBench(&image.Step{Scratch: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"jobs.json": secret, "dir": host, "near": "other"} {
		if err := os.Symlink(target, filepath.Join(b.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := b.Read("jobs.json"); err == nil {
		t.Errorf("read %q through a link", text)
	}
	if root, err := b.Open("dir"); err == nil {
		t.Errorf("opened %s through a link", root.Name())
	}
	for _, name := range []string{"jobs.json", "near"} {
		for _, want := range []string{"ours, first", "ours"} {
			if err := b.Write(name, []byte(want)); err != nil {
				t.Fatal(err)
			}
			if got, err := b.Read(name); string(got) != want {
				t.Errorf("%s: %q, %v, want %q", name, got, err, want)
			}
		}
	}
	if err := b.Write("dir/secret", []byte("ours")); err == nil {
		t.Error("wrote through a linked directory")
	}
	if got, err := os.ReadFile(secret); err != nil || string(got) != "the host's" {
		t.Errorf("the host's file: %q, %v", got, err)
	}
	if _, err := os.Lstat(filepath.Join(b.Dir, "other")); err == nil {
		t.Error("wrote to where a link of the bench leads")
	}
}
