package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// mountPoints are directories of every image, on which a sandbox mounts.
var mountPoints = [...]string{"dev", "etc", "function", "opt", "proc", "run", "sys", "tmp", "work"}

// minPrefix is the minimal length of a digest prefix, in digits.
const minPrefix = 6

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

// maxRecent entries take some 10 MB: the base environments in use and a few packages.
const maxRecent = 20_000

// PutImage links the parts of m together and makes the image durable under its digest. The tag
// (Name, Version) then means this image; the image that had the tag keeps its data and loses the
// name. Without Name and Version the image gets no name. An existing image is not made again.
//
// Errors: ErrConflict if parts disagree, fs.ErrNotExist for an unknown tree, and any errno. An
// error leaves no files behind.
func (s *Store) PutImage(ctx context.Context, m Manifest) (*Image, error) {
	return s.putImages(ctx, m, incoming{name: tag{m.Name, m.Version}})
}

// TakeImage is PutImage for an image from elsewhere. Name and Version of its manifest give it no
// name here, because another image may have that name. If foreign, the maker is not trusted: the
// image is Foreign until a PutImage, or a TakeImage without foreign, of the same manifest.
func (s *Store) TakeImage(ctx context.Context, m Manifest, foreign bool) (*Image, error) {
	return s.putImages(ctx, m, incoming{foreign: foreign})
}

// incoming says how to enter an image.
type incoming struct {
	name    tag // the name to give; zero for no name
	foreign bool
}

func (s *Store) putImages(ctx context.Context, m Manifest, in incoming) (*Image, error) {
	for {
		img, err := s.putImage(ctx, m, in)
		if err != nil {
			return nil, fmt.Errorf("image %s:%s: %w", m.Name, m.Version, err)
		}
		leaving := s.uses.note(img.Digest, 1)
		if leaving == nil {
			return img, nil
		}
		select { // wait for the removal, then make the image again
		case <-leaving:
		case <-ctx.Done():
			return nil, fmt.Errorf("image %s:%s: %w", m.Name, m.Version, ctx.Err())
		}
	}
}

func (s *Store) putImage(ctx context.Context, m Manifest, in incoming) (*Image, error) {
	k := in.name
	if m.Name != "" || m.Version != "" {
		if err := errors.Join(checkName("image name", m.Name), checkName("image version", m.Version)); err != nil {
			return nil, err
		}
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	// Decode into a new Manifest: json would write Config into the caller's bytes. The result
	// has Config in its canonical form.
	m = Manifest{}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, err
	}
	d := sumDigest(manifest)
	release := s.Hold()
	defer release()

	snap := s.meta.snap.Load()
	if old := snap.byDigest[d]; old != nil && (k == tag{} || snap.tags[k] == d) && (in.foreign || !old.Foreign) {
		return old, nil
	}
	img := &Image{Manifest: m, Built: tag{m.Name, m.Version}.String(), Foreign: in.foreign, Digest: d, Created: time.Now().UTC().Round(0)}
	img.setNames(nil) // until the image is tagged
	var staged string
	var own sized
	if snap.byDigest[d] == nil {
		entries, hidden, err := merge(img.Manifest, s.recentTree)
		if err != nil {
			return nil, err
		}
		img.count(entries)
		done, err := admitted(ctx, img)
		if err != nil {
			return nil, err
		}
		defer done()
		staged = "image-" + strconv.FormatUint(s.disk.serial.Add(1), 10)
		defer s.disk.removeTmp(staged)
		if own, err = s.disk.stageImage(ctx, entries, hidden, manifest, staged); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(ctx.Err(), s.disk.failpoint("image synced")); err != nil {
		return nil, err
	}
	return s.publishImage(ctx, img, manifest, k, staged, own)
}

// stageImage builds the image's directory below tmp/, syncs, and returns the size of the
// directory without the objects, like ownSize.
func (k *disk) stageImage(ctx context.Context, entries []Entry, hidden map[string]bool, manifest []byte, name string) (own sized, err error) {
	dir, err := k.mkdirTmp(name)
	if err != nil {
		return own, err
	}
	defer dir.Close()
	if err := k.linkTree(ctx, int(dir.Fd()), entries); err != nil {
		return own, err
	}
	if err := k.linkHidden(int(dir.Fd()), hidden); err != nil {
		return own, err
	}
	if err := writeFileAt(int(dir.Fd()), "manifest.json", manifest); err != nil {
		return own, err
	}
	if err := k.syncfs(); err != nil {
		return own, err
	}
	return ownSizeOf(int(dir.Fd()), entries, len(hidden) > 0)
}

// publishImage gives a staged image its final directory, row and tag. staged is "" if only the
// tag moves.
func (s *Store) publishImage(ctx context.Context, img *Image, manifest []byte, k tag, staged string, own sized) (*Image, error) {
	s.meta.mu.Lock()
	defer s.meta.mu.Unlock()
	d := img.Digest
	if s.meta.snap.Load().byDigest[d] != nil {
		staged = "" // another call was faster
	} else if staged == "" {
		return nil, fmt.Errorf("%s was removed meanwhile: build the image again", d)
	}
	var err error
	if staged != "" {
		err = s.disk.renameImage(staged, d)
	}
	if err == nil {
		err = s.meta.updateLocked(true, func(t *tx) error {
			if staged != "" {
				if err := t.putImage(img, manifest, own); err != nil {
					return err
				}
			}
			if !img.Foreign {
				if err := t.trustImage(d); err != nil {
					return err
				}
			}
			if k == (tag{}) {
				return nil
			}
			return t.nameTag(ctx, k, d)
		})
	}
	if err != nil {
		if staged != "" && s.meta.snap.Load().byDigest[d] == nil {
			if err := s.disk.moveToTmp(d.hex()); err == nil {
				s.disk.removeTmp(d.hex())
			}
		}
		return nil, err
	}
	return s.meta.snap.Load().byDigest[d], nil
}

const hiddenName = "hidden"

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

// setDirs sets the metadata of directories, last and deepest first: adding entries changes the
// mtime of a directory.
func setDirs(fd int, entries []Entry) error {
	for i := len(entries) - 1; i >= 0; i-- {
		e := &entries[i]
		if e.Kind != KindDir {
			continue
		}
		if err := e.chown(fd, e.Path); err != nil {
			return fmt.Errorf("chown %s: %w", e.Path, err)
		}
		if err := unix.Fchmodat(fd, e.Path, e.Mode, 0); err != nil {
			return fmt.Errorf("chmod %s: %w", e.Path, err)
		}
		if err := setMTime(fd, e.Path, e.MTime); err != nil {
			return fmt.Errorf("set mtime of %s: %w", e.Path, err)
		}
	}
	return nil
}

// Images returns all images, newest first, without disk access.
func (s *Store) Images() []*Image { return s.meta.snap.Load().images }

// ImageList is Images with the generation of the last change of images. While the generation is
// the same, so is the list ([Changes]).
func (s *Store) ImageList() (images []*Image, generation uint64) {
	n := s.meta.snap.Load()
	return n.images, n.imagesGen
}

// Image finds an image by "name" (version "latest", else the newest), "name:version", digest, a
// digest prefix of at least 6 digits with or without "sha256:", or "name@sha256:…". The last
// form holds the digest of an image with that name, or the digest that a registry has for the
// image. Errors: fs.ErrNotExist, ErrAmbiguous, ErrName.
func (s *Store) Image(ref string) (*Image, error) {
	img, _, err := s.Find(ref)
	return img, err
}

// Rootfs returns the directory of an image's tree. Mount it read-only: a write would reach every
// image that shares the file.
func (s *Store) Rootfs(d Digest) string {
	return filepath.Join(s.disk.dir, "images", d.hex(), "rootfs")
}

// RemoveImage removes the image, then the content that only this image used. Sandboxes that have
// mounted the image keep running. Errors: fs.ErrNotExist, ErrInUse.
func (s *Store) RemoveImage(ctx context.Context, d Digest) error {
	_, err := s.remove(ctx, d, nil)
	return err
}

// remove is RemoveImage with a last check: it calls may, unless nil, under mu, when the answer
// cannot become outdated.
func (s *Store) remove(ctx context.Context, d Digest, may func(*Image) error) (done Swept, err error) {
	if err := ctx.Err(); err != nil {
		return done, err
	}
	img := s.meta.snap.Load().byDigest[d]
	if img == nil {
		return done, fmt.Errorf("remove image %s: %w", d, fs.ErrNotExist)
	}
	s.leases.leave(&img.Manifest)
	err = s.removeImage(d, may)
	if err == nil {
		s.disk.removeCounted(d.hex(), &done)
	}
	s.leases.left(&img.Manifest)
	if err != nil {
		return done, fmt.Errorf("remove image %s: %w", d, err)
	}
	done.Add(s.sweeper.sweepPending())
	s.meta.forgetTrees(manyTrees)
	return done, nil
}

func (s *Store) removeImage(d Digest, may func(*Image) error) error {
	s.meta.mu.Lock()
	defer s.meta.mu.Unlock()
	snap := s.meta.snap.Load()
	img := snap.byDigest[d]
	if img == nil {
		return fs.ErrNotExist
	}
	if may != nil {
		if err := may(img); err != nil {
			return err
		}
	}
	for _, f := range snap.functionList {
		if f.keeps(d) {
			return fmt.Errorf("%w by function %s", ErrInUse, f.Name)
		}
	}
	// An index that still names the image does no harm.
	if err := s.meta.updateFreeingLocked(false, func(t *tx) error { return t.removeImage(d) }); err != nil {
		return err
	}
	s.uses.forget(d)
	err := s.disk.failpoint("image row removed")
	if err == nil {
		err = s.disk.moveToTmp(d.hex())
	}
	// A full disk may have no room for the new name: remove in place, while other callers wait.
	if err != nil {
		err = linux.RemoveAll(filepath.Join(s.disk.dir, "images", d.hex()))
	}
	return err
}
