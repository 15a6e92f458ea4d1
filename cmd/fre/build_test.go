package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A written file has its whole new content or its old content. A special file such as /dev/null
// stays special.
func TestWriteWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	say := func(text string) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		}
	}
	if err := writeWhole(path, 0o640, say("first")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := writeWhole(path, 0o644, func(w io.Writer) error { return errors.Join(say("half")(w), broken) }); !errors.Is(err, broken) {
		t.Errorf("a writer that breaks off: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "first" || info.Mode() != 0o640 {
		t.Errorf("%q, %v, %v", content, info.Mode(), err)
	}

	link := filepath.Join(dir, "null")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	if err := writeWhole(link, 0o644, say("nothing")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("a device was replaced: %v, %v", info, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
