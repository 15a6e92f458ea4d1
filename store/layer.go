package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// CreateLayer starts the tree of a layer ([Part].Diff): it may also hold
// whiteouts and opaque directories, and knows which directories it only
// implies.
func (s *Store) CreateLayer() (*Writer, error) {
	w, err := s.Create()
	if err == nil {
		w.layer = true
	}
	return w, err
}

// ErrNotLayer: a whiteout or an opaque directory in a tree that is no layer's.
var ErrNotLayer = errors.New("only a layer removes what is below it")

// Whiteout removes path, and all below it, from what the parts before this
// layer hold. Where the layer holds the path itself it says nothing new: what
// the layer holds counts.
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
	case old.Kind == KindDir: // as if it were new
		old.Opaque, old.Implied = true, false
		w.entries[path] = old
	}
	return nil
}

// Opaque removes everything below the directory path from what the parts
// before this layer hold.
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

// Link adds path as a second name of the file or symlink target, which this
// tree holds: fs.ErrNotExist if it does not.
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

// Aside adds a file that is kept with the tree and is in no image's root. Its
// path is a name of the tree's own: nothing else may have it.
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

// KeepAside keeps the content of the file path under another name, which is that of no
// entry: in no image's root, as with Aside.
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

// Remove takes back what was entered at path; below it there is nothing.
func (w *Writer) Remove(path string) { delete(w.entries, path) }

// Below returns what was entered below a directory. It looks at every entry there is.
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

// Lookup returns the entry of a path, as it is so far.
func (w *Writer) Lookup(path string) (Entry, bool) {
	e, ok := w.entries[path]
	return e, ok
}

// removeBelow takes from all, by path, what a layer of these entries hides:
// what it whites out, what lies in a directory that is opaque, and what lies in
// one that is something else now.
func removeBelow[T any](all map[string]T, kindOf func(T) Kind, layer []Entry) {
	gone := make(map[string]bool) // whether the path itself goes, too
	for i := range layer {
		switch e := &layer[i]; {
		case e.Kind == KindWhiteout:
			gone[e.Path] = true
		case e.Opaque:
			gone[e.Path] = false
		case e.Kind != KindDir:
			if old, ok := all[e.Path]; ok && kindOf(old) == KindDir {
				gone[e.Path] = false
			}
		}
	}
	if len(gone) == 0 {
		return
	}
	for path := range all {
		if gone[path] {
			delete(all, path)
			continue
		}
		for dir := parent(path); dir != ""; dir = parent(dir) {
			if _, ok := gone[dir]; ok {
				delete(all, path)
				break
			}
		}
	}
}
