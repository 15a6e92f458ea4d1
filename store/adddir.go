package store

import (
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// AddDir copies the contents of root to prefix ("" for the tree's root). It drops owners,
// extended attributes and set-id bits. It does not change root. Errors: ErrFileType at a device,
// fifo or socket.
func (w *Writer) AddDir(root *os.Root, prefix string) error {
	return w.fail(w.addDir(root, prefix))
}

// addDir opens one Root per level and looks up every name in an open directory, so no name can
// lead out of root.
func (w *Writer) addDir(root *os.Root, prefix string) error {
	dir, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("read %s: %w", join(prefix, "."), err)
	}
	if prefix != "" {
		info, err := dir.Stat()
		if err == nil {
			err = w.Directory(prefix, info.Mode(), info.ModTime())
		}
		if err != nil {
			_ = dir.Close()
			return err
		}
	}
	list, err := dir.ReadDir(-1)
	_ = dir.Close()
	if err != nil {
		return fmt.Errorf("read %s: %w", join(prefix, "."), err)
	}
	for _, e := range list {
		if err := w.addEntry(root, e, join(prefix, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (w *Writer) addEntry(root *os.Root, e fs.DirEntry, path string) error {
	switch e.Type() {
	case fs.ModeDir:
		sub, err := root.OpenRoot(e.Name())
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		defer sub.Close()
		return w.addDir(sub, path)
	case fs.ModeSymlink:
		info, err := root.Lstat(e.Name())
		if err != nil {
			return fmt.Errorf("stat %s: %w", path, err)
		}
		target, err := root.Readlink(e.Name())
		if err != nil {
			return fmt.Errorf("readlink %s: %w", path, err)
		}
		return w.Symlink(path, target, info.ModTime())
	case 0:
		// O_NONBLOCK: if a fifo has replaced the file, do not wait for a writer.
		f, err := root.OpenFile(e.Name(), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return fmt.Errorf("stat %s: %w", path, err)
		}
		if info.Mode().IsRegular() {
			return w.File(path, info.Mode(), info.ModTime(), f)
		}
	}
	return fmt.Errorf("%s: %w", path, ErrFileType)
}
