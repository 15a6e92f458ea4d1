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
	r := &mergedRoot{all: make(map[string]placedEntry), hidden: make(map[string]bool)}
	for i := range m.Parts {
		p := &m.Parts[i]
		t, err := tree(p.Tree)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.describe(), err)
		}
		if err := r.addPart(p, t.Entries); err != nil {
			return nil, nil, err
		}
	}
	for _, p := range mountPoints {
		if err := r.put(Entry{Path: p, Kind: KindDir, Mode: 0o755}, nil); err != nil {
			return nil, nil, err
		}
	}
	entries = make([]Entry, 0, len(r.all))
	for _, e := range r.all {
		entries = append(entries, e.Entry)
		if e.hasObject() {
			delete(r.hidden, e.key())
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	return entries, r.hidden, nil
}

// mergedRoot is the root of an image while merge adds the parts.
type mergedRoot struct {
	all    map[string]placedEntry // by path
	hidden map[string]bool        // keys of the objects of all parts
}

type placedEntry struct {
	Entry
	part *Part // nil for a mount point
}

func (r *mergedRoot) addPart(p *Part, entries []Entry) error {
	for i := range entries {
		if e := &entries[i]; e.hasObject() {
			r.hidden[e.key()] = true
		}
	}
	if p.Diff == "" {
		return r.addTree(p, entries)
	}
	if p.Prefix != "" {
		return fmt.Errorf("%s: a layer has no prefix", p.describe())
	}
	r.addLayer(p, entries)
	return nil
}

// addLayer replaces and removes entries of earlier parts.
func (r *mergedRoot) addLayer(p *Part, entries []Entry) {
	removeBelow(r.all, entries)
	for _, e := range entries {
		if e.Kind == KindWhiteout || e.Aside || e.Implied && r.all[e.Path].Kind == KindDir {
			continue
		}
		e.Opaque, e.Implied = false, false
		r.all[e.Path] = placedEntry{e, p}
	}
}

// addTree adds entries below the prefix of the part.
func (r *mergedRoot) addTree(p *Part, entries []Entry) error {
	if p.Prefix != "" {
		if err := checkPath(p.Prefix); err != nil {
			return fmt.Errorf("prefix of %s: %w", p.describe(), err)
		}
	}
	for dir := p.Prefix; dir != ""; dir = parent(dir) {
		if err := r.put(Entry{Path: dir, Kind: KindDir, Mode: 0o755}, p); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if e.Aside {
			continue
		}
		if err := r.addEntry(p, e); err != nil {
			return err
		}
	}
	return nil
}

func (r *mergedRoot) addEntry(p *Part, e Entry) error {
	if e.Path = join(p.Prefix, e.Path); len(e.Path) > maxPath {
		return fmt.Errorf("%s: %w", p.describe(), checkPath(e.Path))
	}
	if e.Kind == KindWhiteout || e.Opaque || e.Implied {
		return fmt.Errorf("%s: %s: %w", p.describe(), e.Path, ErrNotLayer)
	}
	return r.put(e, p)
}

// put enters e, unless e and the entry before it are directories. p is nil for a mount point.
func (r *mergedRoot) put(e Entry, p *Part) error {
	old, ok := r.all[e.Path]
	switch {
	case !ok || old.Kind != KindDir && e.Kind != KindDir:
		r.all[e.Path] = placedEntry{e, p}
	case old.Kind != e.Kind:
		return fmt.Errorf("%s: %w: a %s in %s, a %s in %s", e.Path, ErrConflict, old.Kind, old.part.describe(), e.Kind, p.describe())
	}
	return nil
}

func (p *Part) describe() string {
	if p == nil {
		return "the mount points of every image"
	}
	return fmt.Sprintf("part %s %s", p.Kind, p.Name)
}

// removeBelow deletes from all, keyed by path, the entries that a layer hides: whiteouts with
// all below them, the content of opaque directories, and the content of directories that the
// layer replaces by a file or symlink.
func removeBelow(all map[string]placedEntry, layer []Entry) {
	gone := make(map[string]bool) // value: whether the path itself goes, too
	for i := range layer {
		switch e := &layer[i]; {
		case e.Kind == KindWhiteout:
			gone[e.Path] = true
		case e.Opaque:
			gone[e.Path] = false
		case e.Kind != KindDir:
			if all[e.Path].Kind == KindDir {
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
