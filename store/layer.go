package store

import (
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// Whiteout removes path, and all below it, from the files of the parts before this layer. If the
// layer itself holds the path, the layer's entry stays.
func (w *Writer) Whiteout(path string) error {
	if !w.layer {
		return w.fail(fmt.Errorf("%s: %w", path, ErrNotLayer))
	}
	if err := checkPath(path); err != nil {
		return w.fail(err)
	}
	old, ok := w.entries[path]
	switch {
	case !ok:
		return w.fail(w.place(Entry{Path: path, Kind: KindWhiteout}))
	case old.Kind == KindDir: // hides the directory of earlier parts
		old.Opaque, old.Implied = true, false
		w.entries[path] = old
	}
	return nil
}

// Opaque removes all entries below the directory path from the files of the parts before this
// layer.
func (w *Writer) Opaque(path string) error {
	if !w.layer {
		return w.fail(fmt.Errorf("%s: %w", path, ErrNotLayer))
	}
	old, ok := w.entries[path]
	if !ok || old.Kind != KindDir {
		old = Entry{Path: path, Kind: KindDir, Mode: 0o755}
	}
	old.Opaque, old.Implied = true, false
	return w.fail(w.place(old))
}

// Link adds path as a second name of target, a file or symlink of this tree. Errors:
// fs.ErrNotExist if the tree has no target.
func (w *Writer) Link(path, target string) error {
	e, ok := w.entries[target]
	if !ok || e.Kind != KindFile && e.Kind != KindSymlink {
		return w.fail(fmt.Errorf("link %s: target %s: %w", path, target, fs.ErrNotExist))
	}
	e.Path = path
	if err := w.place(e); err != nil {
		return w.fail(err)
	}
	w.entries[path] = e
	return nil
}

// Aside adds a file that lives as long as the tree and is in no image's root. No other entry may
// have its path. Errors: fs.ErrExist.
func (w *Writer) Aside(path string, r io.Reader) error {
	if w.err != nil {
		return w.err
	}
	if _, ok := w.entries[path]; ok {
		return w.fail(fmt.Errorf("%s: %w", path, fs.ErrExist))
	}
	e := Entry{Path: path, Kind: KindFile, Mode: 0o600, Aside: true}
	if err := w.place(e); err != nil {
		return w.fail(err)
	}
	if err := w.stage(&e, r); err != nil {
		return w.fail(fmt.Errorf("store %s: %w", path, err))
	}
	w.entries[path] = e
	return nil
}

// KeepAside keeps the content of the file path under the unused name as, in no image's root,
// like Aside.
func (w *Writer) KeepAside(path, as string) error {
	e, ok := w.entries[path]
	if !ok || e.Kind != KindFile {
		return w.fail(fmt.Errorf("keep %s: %w", path, fs.ErrNotExist))
	}
	e.Path, e.Aside = as, true
	if err := w.place(e); err != nil {
		return w.fail(err)
	}
	w.entries[as] = e
	return nil
}

// Remove takes back the entry at path, which has no entries below it.
func (w *Writer) Remove(path string) { delete(w.entries, path) }

// Below returns the paths entered below a directory, sorted. It visits every entry of the tree.
func (w *Writer) Below(dir string) []string {
	var below []string
	for p := range w.entries {
		if strings.HasPrefix(p, dir+"/") {
			below = append(below, p)
		}
	}
	slices.Sort(below)
	return below
}

// Lookup returns the current entry of a path.
func (w *Writer) Lookup(path string) (Entry, bool) {
	e, ok := w.entries[path]
	return e, ok
}
