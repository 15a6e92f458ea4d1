package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fre-engine/fre/failure"
)

// mountPoints are directories of every image, on which a sandbox mounts.
var mountPoints = [...]string{"dev", "etc", "function", "opt", "proc", "run", "sys", "tmp", "work"}

const hiddenName = "hidden"

// ErrConflict: a path is a directory in one part or entry and a file or symlink in another.
var ErrConflict = failure.New(failure.BuildFailed, "path is a directory in one part and no directory in another", "rename the path in the code, or leave out one of the packages")

// ErrNotLayer: a whiteout or an opaque directory in a tree that is not a layer's.
var ErrNotLayer = errors.New("only a layer may remove files of lower layers")

// merge lays the parts over each other. It returns the entries of the root, sorted by path, and
// hidden: the keys of objects that the root does not show, because a later part replaces or
// removes the file or because the file is aside. If two parts hold the same directory, the first
// part's entry stays, unless the second part is a layer. merge does not change the trees that
// tree returns.
func merge(m Manifest, tree func(Digest) (*Tree, error)) (entries []Entry, hidden map[string]bool, err error) {
	type placed struct {
		Entry
		part int
	}
	all := make(map[string]placed)
	hidden = make(map[string]bool)
	nameOf := func(part int) string {
		if part < 0 {
			return "the mount points of every image"
		}
		p := m.Parts[part]
		return fmt.Sprintf("part %s %s", p.Kind, p.Name)
	}
	put := func(e Entry, part int) error {
		old, ok := all[e.Path]
		switch {
		case !ok || old.Kind != KindDir && e.Kind != KindDir:
			all[e.Path] = placed{e, part}
		case old.Kind != e.Kind:
			return fmt.Errorf("%s: %w: a %s in %s, a %s in %s", e.Path, ErrConflict, old.Kind, nameOf(old.part), e.Kind, nameOf(part))
		}
		return nil
	}
	for i, p := range m.Parts {
		t, err := tree(p.Tree)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", nameOf(i), err)
		}
		for i := range t.Entries {
			if e := &t.Entries[i]; e.hasObject() {
				hidden[e.key()] = true
			}
		}
		if p.Diff != "" {
			if p.Prefix != "" {
				return nil, nil, fmt.Errorf("%s: a layer has no prefix", nameOf(i))
			}
			removeBelow(all, func(x placed) Kind { return x.Kind }, t.Entries)
			for _, e := range t.Entries {
				old, ok := all[e.Path]
				if e.Kind != KindWhiteout && (!e.Implied || !ok || old.Kind != KindDir) && !e.Aside {
					e.Opaque, e.Implied = false, false
					all[e.Path] = placed{e, i}
				}
			}
			continue
		}
		if p.Prefix != "" {
			if err := checkPath(p.Prefix); err != nil {
				return nil, nil, fmt.Errorf("prefix of %s: %w", nameOf(i), err)
			}
			for dir := p.Prefix; dir != ""; dir = parent(dir) {
				if err := put(Entry{Path: dir, Kind: KindDir, Mode: 0o755}, i); err != nil {
					return nil, nil, err
				}
			}
		}
		for _, e := range t.Entries {
			if e.Aside {
				continue
			}
			if e.Path = join(p.Prefix, e.Path); len(e.Path) > maxPath {
				return nil, nil, fmt.Errorf("%s: %w", nameOf(i), checkPath(e.Path))
			}
			if e.Kind == KindWhiteout || e.Opaque || e.Implied {
				return nil, nil, fmt.Errorf("%s: %s: %w", nameOf(i), e.Path, ErrNotLayer)
			}
			if err := put(e, i); err != nil {
				return nil, nil, err
			}
		}
	}
	for _, p := range mountPoints {
		if err := put(Entry{Path: p, Kind: KindDir, Mode: 0o755}, -1); err != nil {
			return nil, nil, err
		}
	}
	entries = make([]Entry, 0, len(all))
	for _, e := range all {
		entries = append(entries, e.Entry)
		if e.hasObject() {
			delete(hidden, e.key())
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return entries, hidden, nil
}

// removeBelow deletes from all, keyed by path, the entries that a layer hides: whiteouts with
// all below them, the content of opaque directories, and the content of directories that the
// layer replaces by a file or symlink.
func removeBelow[T any](all map[string]T, kindOf func(T) Kind, layer []Entry) {
	gone := make(map[string]bool) // value: whether the path itself goes, too
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

// keptTrees caches decoded trees while many images are read, which mostly share a few trees. The
// cache starts again when it holds too many entries (maxKept, maxRecent).
type keptTrees struct {
	read    func(Digest) (*Tree, error)
	trees   map[Digest]*Tree
	entries int // in all of trees
}

// maxKept entries take some 50 MB.
const maxKept = 100_000

func (k *keptTrees) tree(d Digest) (*Tree, error) {
	if t := k.trees[d]; t != nil {
		return t, nil
	}
	t, err := k.read(d)
	if err != nil {
		return nil, err
	}
	k.keep(d, t, maxKept)
	return t, nil
}

func (k *keptTrees) keep(d Digest, t *Tree, most int) {
	if k.entries += len(t.Entries); k.trees == nil || k.entries > most {
		k.trees, k.entries = make(map[Digest]*Tree), len(t.Entries)
	}
	k.trees[d] = t
}
