package image

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// ErrSlimmed says that an image is not a function's, or is slimmed already.
var ErrSlimmed = failure.New(failure.NotFunction, "cannot be slimmed", "")

// LabelSlimOf has the digest of the image from which a slimmed image was made.
const LabelSlimOf = "fre.slim.of"

// Traced is a Runtime that reads some of its files only when a function fails, or only for some
// events: a trace of successful answers misses the files.
type Traced interface {
	Runtime

	// Untraced returns path globs of the files, in the syntax of [BaseSpec].Keep.
	Untraced() []string
}

// SlimOptions say what stays in an image.
type SlimOptions struct {
	Opened []string // absolute paths of files in the root, without symbolic links; missing files are ignored
	Keep   []string // path globs as in the template's keep, added to the template's
	DryRun bool     // make no image
}

// Slimmed is the result of [Builder.Slim].
type Slimmed struct {
	Image  *store.Image // without a name, until tagged; nil after a dry run
	Before SlimmedSize
	After  SlimmedSize
	Gone   []store.Entry // files and links that were removed, by path
}

// SlimmedSize is the size of an image's root.
type SlimmedSize struct {
	Files int
	Bytes int64
}

// Slim makes a smaller image from a function's image. From the base environment and the packages it
// keeps only opened files, and files that belong to them:
//
//   - the function's code, the bootstrap, /etc, and the files in keep, completely
//   - files beside an opened file with the same stem: x.py and __pycache__/x.*.pyc,
//     libx.so.1 and libx.so.1.2
//   - libraries that an ELF file lists
//   - metadata of each part with a kept file
//   - __init__ and empty files in kept directories
//   - links to kept files; directories above kept files, and directories that were empty
//   - files that the runtime reads when a function fails ([Traced])
//
// A directory without kept files is removed: a language could take it for a package. The new image
// shares contents with the old one. Errors: [ErrSlimmed], *[template.FieldError] for a bad glob,
// errors of the store.
func (b *Builder) Slim(ctx context.Context, img *store.Image, o SlimOptions) (*Slimmed, error) {
	out, err := b.slimImage(ctx, img, o)
	if err != nil {
		return nil, fmt.Errorf("slim %s: %w", cmp.Or(img.Built, string(img.Digest)), err)
	}
	return out, nil
}

func (b *Builder) slimImage(ctx context.Context, img *store.Image, o SlimOptions) (*Slimmed, error) {
	defer b.Store.Hold()()
	config, err := ConfigOf(img)
	if err != nil {
		return nil, err
	}
	if config.Runtime == "" {
		return nil, fmt.Errorf("not a function's image and %w", ErrSlimmed)
	}
	if of := config.Labels[LabelSlimOf]; of != "" {
		return nil, fmt.Errorf("the image is slimmed and %w again: slim the original image, %s", ErrSlimmed, of)
	}
	globs := slices.Concat(alwaysKept, config.Keep, o.Keep)
	if runtime, err := b.runtime(config.Runtime, config.Contract); err == nil {
		if r, ok := runtime.(Traced); ok {
			globs = append(globs, r.Untraced()...)
		}
	}
	t, err := b.newTracing(img, globs)
	if err != nil {
		return nil, err
	}
	defer unix.Close(t.dir)
	t.choose(o.Opened)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out, left := t.result()
	if o.DryRun {
		return out, nil
	}
	parts, err := t.parts(ctx, b.Store, img)
	if err != nil {
		return nil, err
	}
	also := LeftOut{}
	if config.LeftOut != nil {
		also = *config.LeftOut
	}
	also.Unopened = left
	labels := map[string]string{LabelSlimOf: string(img.Digest)}
	maps.Copy(labels, config.Labels)
	config.LeftOut, config.Labels = &also, labels
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	m := store.Manifest{Name: img.Name, Version: img.Version + SlimSuffix, Parts: parts, Config: raw}
	if img.Name == "" {
		m.Version = ""
	}
	out.Image, err = b.Store.TakeImage(ctx, m, img.Foreign)
	return out, err
}

// SlimSuffix ends the version of slimmed images.
const SlimSuffix = "-slim"

// alwaysKept are small files that are read only in rare cases: libgcc_s when a thread is cancelled
// (pthread_cancel(3)), libnss for look-ups of names.
var alwaysKept = []string{"etc", "usr/lib/*/libgcc_s.so*", "usr/lib/*/libnss_*", "lib/*/libgcc_s.so*", "lib/*/libnss_*"}

// metadataOf returns globs of files that describe a package as a whole, for programs and people.
func metadataOf(sites []Site) []string {
	globs := []string{"**/LICENSE*", "**/LICENCE*", "**/COPYING*", "**/NOTICE*", "**/copyright"}
	for _, site := range sites {
		if p, ok := site.(Packaged); ok {
			globs = append(globs, p.Packaging().Metadata...)
		}
	}
	return globs
}

// tracing chooses the files of one image that stay. One goroutine uses it.
type tracing struct {
	root  map[string]*store.Entry
	order []string       // paths of root, sorted
	from  map[string]int // index of the part with the file or link
	trees []*store.Tree  // of the parts
	all   []store.Part
	below map[string][]string // directory → paths in the directory
	dir   int                 // the image's root, opened with O_PATH

	kept     func(string) bool // reports whether a glob keeps a path
	about    func(string) bool // reports whether a path is metadata of a package
	keep     map[string]bool   // paths that stay, including directories
	siblings []string          // kept files whose stem and needs are still to be examined
}

// newTracing reads an image's entries. The caller closes dir.
func (b *Builder) newTracing(img *store.Image, globs []string) (*tracing, error) {
	t := &tracing{root: map[string]*store.Entry{}, from: map[string]int{}, below: map[string][]string{}, keep: map[string]bool{}, all: img.Parts}
	for _, g := range []struct {
		globs []string
		into  *func(string) bool
	}{{globs, &t.kept}, {metadataOf(b.Sites), &t.about}} {
		dropped, err := debian.Keep(g.globs)
		if err != nil {
			return nil, &template.FieldError{Field: "keep", Message: fmt.Sprintf("keep: %s", err)}
		}
		*g.into = func(p string) bool { return !dropped(p) }
	}
	entries, err := b.Store.Entries(img)
	if err != nil {
		return nil, err
	}
	for i := range entries {
		e := &entries[i]
		t.root[e.Path] = e
		t.order = append(t.order, e.Path)
		t.below[above(e.Path)] = append(t.below[above(e.Path)], e.Path)
	}
	for i, p := range img.Parts {
		tree, err := b.Store.Tree(p.Tree)
		if err != nil {
			return nil, err
		}
		t.trees = append(t.trees, tree)
		for _, e := range tree.Entries {
			if e.Path = path.Join(p.Prefix, e.Path); t.holds(&e) {
				t.from[e.Path] = i
			}
		}
	}
	t.dir, err = unix.Open(b.Store.Rootfs(img.Digest), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the image's root: %w", err)
	}
	return t, nil
}

// holds reports whether the root has a part's file or link, with the same kind and content.
func (t *tracing) holds(e *store.Entry) bool {
	r := t.root[e.Path]
	return r != nil && !e.Aside && e.Kind != store.KindDir && e.Kind == r.Kind && e.Digest == r.Digest && e.Link == r.Link
}

func above(p string) string {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i]
	}
	return ""
}

// add keeps a file or link, and the directories above.
func (t *tracing) add(p string) {
	e := t.root[p]
	if e == nil || e.Kind == store.KindDir || t.keep[p] {
		return
	}
	t.keep[p] = true
	for dir := above(p); dir != "" && !t.keep[dir]; dir = above(dir) {
		t.keep[dir] = true
	}
	t.siblings = append(t.siblings, p)
}

// choose fills keep.
func (t *tracing) choose(opened []string) {
	for _, p := range opened {
		t.add(strings.TrimPrefix(p, "/"))
	}
	for _, p := range t.order {
		part, ok := t.from[p]
		if ok && (t.all[part].Kind == "code" || t.all[part].Kind == "bootstrap") || t.kept(p) {
			t.add(p)
		}
		if e := t.root[p]; e.Kind == store.KindDir && len(t.below[p]) == 0 {
			for ; p != ""; p = above(p) {
				t.keep[p] = true
			}
		}
	}
	for {
		for len(t.siblings) > 0 {
			p := t.siblings[0]
			t.siblings = t.siblings[1:]
			t.addStem(p)
			t.addNeeds(p)
		}
		before := len(t.keep)
		t.addMetadata()
		t.addMarkers()
		t.addLinks()
		if len(t.keep) == before {
			return
		}
	}
}

const bytecode = "__pycache__"

// addStem keeps the files beside a file with the same stem.
func (t *tracing) addStem(p string) {
	dir, name := above(p), stem(p)
	if part, ok := t.from[p]; name == "" || ok && t.all[part].Kind == "code" {
		return
	}
	dirs := []string{dir, path.Join(dir, bytecode)}
	if path.Base(dir) == bytecode {
		dirs = []string{dir, above(dir)}
	}
	for _, d := range dirs {
		for _, other := range t.below[d] {
			if stem(other) == name {
				t.add(other)
			}
		}
	}
}

// addNeeds keeps the libraries that an ELF file needs. Unreadable files are skipped, because the
// loader could not use them either.
func (t *tracing) addNeeds(p string) {
	if t.root[p].Kind != store.KindFile || t.root[p].Size < 64 {
		return
	}
	fd, err := unix.Openat2(t.dir, p, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), p)
	defer f.Close()
	needs, err := debian.Needs(p, f)
	if err != nil {
		return
	}
	for _, places := range needs {
		for _, place := range places {
			if at, ok := t.resolve(place); ok {
				t.add(at)
				break
			}
		}
	}
}

// addMetadata keeps the metadata of all parts with a kept file.
func (t *tracing) addMetadata() {
	touched := make([]bool, len(t.all))
	for p := range t.keep {
		if part, ok := t.from[p]; ok {
			touched[part] = true
		}
	}
	for _, p := range t.order {
		if part, ok := t.from[p]; ok && touched[part] && !t.keep[p] && t.about(p) {
			t.add(p)
		}
	}
}

// addMarkers keeps files whose mere presence in a directory has a meaning: __init__ and empty
// files.
func (t *tracing) addMarkers() {
	for _, p := range t.order {
		e := t.root[p]
		if e.Kind == store.KindFile && (above(p) == "" || t.keep[above(p)]) && (e.Size == 0 || stem(p) == "__init__") {
			t.add(p)
		}
	}
}

// addLinks keeps links to kept files, and links without a target in the image.
func (t *tracing) addLinks() {
	for _, p := range t.order {
		if t.root[p].Kind != store.KindSymlink || t.keep[p] {
			continue
		}
		at, ok := t.resolve(p)
		if !ok || at == "" || t.keep[at] {
			t.add(p)
		}
	}
}

// resolve follows links inside the root, also in parent directories, and returns the final path.
func (t *tracing) resolve(p string) (at string, ok bool) {
	split := func(p string) []string { return strings.Split(strings.Trim(path.Clean("/"+p), "/"), "/") }
	rest := split(p)
	for hops := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		rest = rest[1:]
		e := t.root[next]
		switch {
		case next == "":
			continue
		case e == nil:
			return "", false
		case e.Kind != store.KindSymlink:
			at = next
			continue
		}
		if hops++; hops > 40 {
			return "", false
		}
		target := e.Link
		if !path.IsAbs(target) {
			target = path.Join("/", at, target)
		}
		at, rest = "", append(split(target), rest...)
	}
	return at, true
}

// result compares the image before and after.
func (t *tracing) result() (*Slimmed, []LeftOutPart) {
	out := &Slimmed{Gone: []store.Entry{}}
	left := make([]LeftOutPart, len(t.all))
	for _, p := range t.order {
		e := t.root[p]
		if e.Kind == store.KindFile {
			out.Before.Files++
			out.Before.Bytes += e.Size
		}
		switch {
		case e.Kind == store.KindDir:
		case !t.keep[p]:
			out.Gone = append(out.Gone, *e)
			if part, ok := t.from[p]; ok && e.Kind == store.KindFile {
				left[part].Files++
				left[part].Bytes += e.Size
			}
		case e.Kind == store.KindFile:
			out.After.Files++
			out.After.Bytes += e.Size
		}
	}
	for i, p := range t.all {
		left[i].Part = strings.Join(slices.DeleteFunc([]string{p.Kind, p.Name, p.Version}, func(s string) bool { return s == "" }), " ")
	}
	return out, slices.DeleteFunc(left, func(l LeftOutPart) bool { return l.Files == 0 })
}

// parts makes the parts of the slimmed image. The parts do not hide files of each other, and are
// layers no longer.
func (t *tracing) parts(ctx context.Context, s *store.Store, img *store.Image) ([]store.Part, error) {
	var out []store.Part
	for i, p := range img.Parts {
		tree := &store.Tree{Entries: []store.Entry{}}
		for _, e := range t.trees[i].Entries {
			full := path.Join(p.Prefix, e.Path)
			if !t.keep[full] || e.Aside {
				continue
			}
			r := *t.root[full]
			if e.Kind != r.Kind || e.Kind != store.KindDir && t.from[full] != i {
				continue
			}
			r.Path = e.Path
			r.Opaque, r.Implied = false, false
			tree.Entries = append(tree.Entries, r)
		}
		if len(tree.Entries) == 0 {
			continue
		}
		if p.Kind != "code" && p.Kind != "bootstrap" || p.Diff != "" {
			digest, err := s.PutSubset(ctx, tree)
			if err != nil {
				return nil, fmt.Errorf("part %s %s: %w", p.Kind, p.Name, err)
			}
			p.Tree, p.Diff = digest, ""
		}
		out = append(out, p)
	}
	return out, nil
}
