package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// mend repairs the damaged objects: metadata in place, content from another copy,
// from an image's link that is another file by now, or from elsewhere. Content
// is written into the damaged file itself, so that all its links are sound again.
func (c *check) mend() error {
	if len(c.damaged) == 0 {
		return nil
	}
	c.findSources()
	for _, key := range slices.Sorted(maps.Keys(c.damaged)) {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		d := c.damaged[key]
		if d.entry == nil {
			c.garbage(key, d)
			continue
		}
		for _, n := range slices.Sorted(maps.Keys(d.copies)) {
			what := d.entry.differs(d.copies[n])
			if what == "" {
				what = "is not what its name says"
			}
			c.mendCopy(key, n, d, what)
		}
	}
	return nil
}

// garbage is a damaged object that no tree has.
func (c *check) garbage(key string, d *damage) {
	for n := range d.copies {
		c.repaired("objects/"+objectName(key, n), "is not what its name says, and in no tree", "removed", func() error {
			return c.removeObject(key, n)
		})
	}
}

// removeObject removes what is broken: whoever looks for the object makes it
// anew.
func (c *check) removeObject(key string, n int) error {
	c.s.leases.mu.Lock()
	defer c.s.leases.mu.Unlock()
	return os.RemoveAll(filepath.Join(c.s.dir, "objects", objectName(key, n)))
}

func (c *check) mendCopy(key string, n int, d *damage, what string) {
	path := "objects/" + objectName(key, n)
	if !c.o.Repair {
		d.lost = d.lost || n == 0 && !d.sound(n) && d.source == "" && c.otherCopy(key, d) == "" && !c.fetchable(d)
		c.report(path, what, "")
		return
	}
	how, err := c.restore(key, n, d)
	if err == nil {
		c.report(path, what, how)
		return
	}
	if !errors.Is(err, errNoSource) {
		d.broken = true
		c.report(path, fmt.Sprintf("%s; cannot repair it: %v", what, err), "")
		return
	}
	if n > 0 { // a further copy: it is made again when it is needed, links to it are set
		c.repaired(path, what, "removed", func() error { return c.removeObject(key, n) })
		return
	}
	d.lost = true
	c.repaired(path, what+"; "+err.Error(), "removed: the next build makes it again", func() error {
		return errors.Join(c.forgetTrees(d.trees), c.removeObject(key, n))
	})
}

// sound says whether only the metadata of a copy is wrong.
func (d *damage) sound(n int) bool {
	x := d.copies[n]
	return x.err == nil && x.Digest == d.entry.Digest && x.Size == d.entry.Size
}

var errNoSource = errors.New("no sound copy of it is left")

// restore makes a copy what it should be and says how.
func (c *check) restore(key string, n int, d *damage) (string, error) {
	dir, name := int(c.s.objects.Fd()), objectName(key, n)
	if d.sound(n) {
		return "set back", setBack(dir, name, d.entry)
	}
	missing := d.copies[n].err != nil
	if missing {
		if err := os.RemoveAll(filepath.Join(c.s.dir, "objects", name)); err != nil {
			return "", err
		}
		if err := unix.Mkdirat(dir, key[:2], 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return "", err
		}
		if d.source != "" && unix.Linkat(unix.AT_FDCWD, d.source, dir, name, 0) == nil {
			return "linked from an image", nil
		}
	}
	r, how, err := c.openSource(key, d)
	if err != nil {
		return "", err
	}
	staged, err := c.stage(r, d.entry)
	defer func() { _ = unix.Unlinkat(int(c.s.tmp.Fd()), staged, 0) }()
	if err := errors.Join(err, r.Close()); err != nil {
		return "", err
	}
	if missing {
		return how, unix.Linkat(int(c.s.tmp.Fd()), staged, dir, name, 0)
	}
	return how, c.overwrite(dir, name, staged, d.entry)
}

// setBack gives a file the owner, mode and mtime of e.
func setBack(dir int, name string, e *Entry) error {
	uid, gid := int(e.UID), int(e.GID)
	if uid == 0 && gid == 0 {
		uid, gid = os.Geteuid(), os.Getegid()
	}
	if err := unix.Fchownat(dir, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if e.Kind != KindSymlink {
		if err := unix.Fchmodat(dir, name, e.Mode, 0); err != nil {
			return err
		}
	}
	return setMTime(dir, name, e.MTime)
}

// otherCopy returns the name of a copy that is sound.
func (c *check) otherCopy(key string, d *damage) string {
	for n := 0; ; n++ {
		if _, damaged := d.copies[n]; damaged {
			continue
		}
		links, _ := c.s.objectLinks(objectName(key, n))
		if links == 0 {
			return ""
		}
		return objectName(key, n)
	}
}

func (c *check) openSource(key string, d *damage) (io.ReadCloser, string, error) {
	if name := c.otherCopy(key, d); name != "" {
		f, err := openat(int(c.s.objects.Fd()), name, unix.O_RDONLY, 0)
		return f, "taken from another copy", err
	}
	if d.source != "" {
		f, err := os.Open(d.source)
		return f, "taken from an image", err
	}
	if !c.fetchable(d) {
		return nil, "", errNoSource
	}
	r, from, err := c.o.Fetch(c.ctx, d.entry, d.trees)
	switch {
	case err == nil:
		return r, "fetched from " + from, nil
	case c.ctx.Err() != nil || errors.Is(err, unix.ENOSPC): // another time it may come
		return nil, "", err
	}
	return nil, "", fmt.Errorf("%w, nor fetched: %w", errNoSource, err)
}

// fetchable says whether a registry knows an image with the object.
func (c *check) fetchable(d *damage) bool { return c.o.Fetch != nil && c.known(d.trees) }

// known says whether a registry knows an image with one of these trees.
func (c *check) known(trees map[Digest]bool) bool {
	return slices.ContainsFunc(c.s.snap.Load().images, func(img *Image) bool {
		return len(img.Remotes) > 0 && slices.ContainsFunc(img.Parts, func(p Part) bool { return trees[p.Tree] })
	})
}

// fetchTree puts in place what FetchTree brings.
func (c *check) fetchTree(d Digest) (*Tree, string, error) {
	t, from, err := c.o.FetchTree(c.ctx, d)
	if err != nil {
		return nil, "", err
	}
	b, err := t.encode()
	if err != nil || sumDigest(b) != d {
		return nil, "", errors.Join(errors.New("what came is not it"), err)
	}
	tmp, name := int(c.s.tmp.Fd()), d.hex()+".json"
	err = writeFileAt(tmp, name, b)
	if err == nil {
		err = c.s.syncfs()
	}
	if err == nil {
		err = unix.Renameat(tmp, name, int(c.s.trees.Fd()), name)
	}
	if err != nil {
		_ = unix.Unlinkat(tmp, name, 0)
		return nil, "", err
	}
	return t, from, c.s.trees.Sync()
}

// stage writes what r holds to tmp/; an error says that it is not the content of e.
// The caller removes the file in any case.
func (c *check) stage(r io.Reader, e *Entry) (name string, err error) {
	name = "repair-" + strconv.FormatUint(c.s.serial.Add(1), 10)
	tmp := int(c.s.tmp.Fd())
	f, err := openat(tmp, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, hash), io.LimitReader(r, e.Size+1))
	if err == nil && (n != e.Size || Digest(digestPrefix+hex.EncodeToString(hash.Sum(nil))) != e.Digest) {
		err = fmt.Errorf("%w: what was found is not it either", errNoSource)
	}
	if err == nil {
		err = setMeta(f, tmp, name, e)
	}
	if err == nil {
		err = f.Sync()
	}
	return name, errors.Join(err, f.Close())
}

// overwrite writes a staged file's content into the one that is there. Until it
// is done that is as broken as it was. ETXTBSY: a sandbox executes it.
func (c *check) overwrite(dir int, name, staged string, e *Entry) error {
	src, err := openat(int(c.s.tmp.Fd()), staged, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := openat(dir, name, unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(dst, struct{ io.Reader }{src}, c.buf)
	if err == nil {
		err = c.s.failpoint("object half repaired")
	}
	if err == nil {
		err = dst.Truncate(e.Size)
	}
	if err == nil {
		err = setBack(dir, name, e)
	}
	if err == nil {
		err = dst.Sync()
	}
	return errors.Join(err, dst.Close())
}

// findSources looks in the images for files that are what a damaged object
// should be: where the object is missing, and where somebody put another file in
// its place.
func (c *check) findSources() {
	trees := make(map[Digest]bool)
	for _, d := range c.damaged {
		if d.entry != nil {
			maps.Copy(trees, d.trees)
		}
	}
	for _, img := range c.s.snap.Load().images {
		if !slices.ContainsFunc(img.Parts, func(p Part) bool { return trees[p.Tree] }) {
			continue
		}
		entries, hidden, err := merge(img.Manifest, c.kept.tree)
		if err != nil {
			continue // reported with its trees
		}
		try := func(key, path string) {
			d := c.damaged[key]
			if d == nil || d.entry == nil || d.source != "" {
				return
			}
			if x := c.observe(unix.AT_FDCWD, path); x.err == nil && x.key() == key {
				d.source = path
			}
		}
		dir := filepath.Join(c.s.dir, "images", img.Digest.hex())
		for i := range entries {
			if e := &entries[i]; e.hasObject() {
				try(e.key(), filepath.Join(dir, "rootfs", e.Path))
			}
		}
		for key := range hidden {
			try(key, filepath.Join(dir, hiddenName, key))
		}
	}
}

// images compares each image's directory with its trees.
func (c *check) images() error {
	for _, img := range c.s.snap.Load().images {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		c.done.Images++
		if c.done.Images%10 == 0 {
			c.o.Progress("images", c.done.Images)
		}
		if c.lostImage(img) {
			continue
		}
		i := checkedImage{check: c, img: img, dir: "images/" + img.Digest.hex()}
		i.manifest()
		if err := i.root(); err != nil && i.there() {
			return fmt.Errorf("image %s: %w", img.Digest, err)
		}
	}
	return c.strayImages()
}

// lostImage drops an image of which a tree or an object is lost. It is true where
// nothing more is to be said of the image.
func (c *check) lostImage(img *Image) bool {
	what, broken := "", false
	for _, p := range img.Parts {
		lost, bad := c.badTrees[p.Tree]
		broken = broken || bad
		if lost {
			what = fmt.Sprintf("the list of files of its part %s %s is lost", p.Kind, p.Name)
		}
	}
	for _, d := range c.damaged {
		if d.lost && slices.ContainsFunc(img.Parts, func(p Part) bool { return d.trees[p.Tree] }) {
			what = fmt.Sprintf("its file %s is lost", d.entry.Path)
		}
	}
	if what == "" || c.s.snap.Load().byDigest[img.Digest] == nil {
		return what != "" || broken
	}
	path := "images/" + img.Digest.hex()
	if c.o.InUse != nil {
		if by := c.o.InUse(img.Digest); by != "" {
			c.report(path, fmt.Sprintf("%s; %s uses it: build it again", what, by), "")
			return true
		}
	}
	c.repaired(path, what, "dropped: build or pull it again", func() error {
		_, err := c.s.remove(context.WithoutCancel(c.ctx), img.Digest, nil)
		return err
	})
	return true
}

// strayImages are directories without a row. A build that is about to write its
// row holds mu.
func (c *check) strayImages() error {
	c.s.mu.Lock()
	names, err := c.s.listDir("images")
	known := c.s.snap.Load().byDigest
	c.s.mu.Unlock()
	if err != nil {
		return err
	}
	for _, name := range names {
		if known[Digest(digestPrefix+name)] != nil {
			continue
		}
		c.repaired("images/"+name, strayFile, "removed", func() error {
			c.s.mu.Lock()
			defer c.s.mu.Unlock()
			if c.s.snap.Load().byDigest[Digest(digestPrefix+name)] != nil {
				return errors.New("a build has made it meanwhile")
			}
			return os.RemoveAll(filepath.Join(c.s.dir, "images", name))
		})
	}
	return nil
}

// checkedImage is the check of one image.
type checkedImage struct {
	*check
	img     *Image
	dir     string // below the store's
	touched bool   // something below rootfs was repaired
}

// there says whether the image was not removed meanwhile.
func (i *checkedImage) there() bool { return i.s.snap.Load().byDigest[i.img.Digest] != nil }

// problem is repaired for what is below the image's directory.
func (i *checkedImage) problem(path, what, how string, repair func() error) bool {
	return i.there() && i.repaired(filepath.Join(i.dir, path), what, how, func() error {
		i.touched = true
		return repair()
	})
}

// manifest compares manifest.json with the digest.
func (i *checkedImage) manifest() {
	path := filepath.Join(i.s.dir, i.dir, "manifest.json")
	b, err := os.ReadFile(path)
	what := "its content has changed"
	switch {
	case err == nil && sumDigest(b) == i.img.Digest:
		return
	case err != nil:
		what = err.Error()
	}
	i.problem("manifest.json", what, "taken from the database", func() error {
		var row string
		i.s.mu.Lock()
		err := i.s.db.QueryRowContext(i.ctx, `SELECT manifest FROM images WHERE digest = ?`, i.img.Digest).Scan(&row)
		i.s.mu.Unlock()
		if err != nil {
			return err
		}
		if sumDigest([]byte(row)) != i.img.Digest {
			return errors.New("that is damaged as well")
		}
		tmp := filepath.Join(i.s.dir, "tmp", "manifest-"+i.img.Digest.hex())
		err = os.WriteFile(tmp, []byte(row), 0o600)
		if err == nil {
			err = os.Chtimes(tmp, i.img.Created, i.img.Created)
		}
		if err == nil {
			err = os.Rename(tmp, path)
		}
		if err != nil {
			_ = os.Remove(tmp)
		}
		return err
	})
}

// root compares rootfs/ and hidden/ with what the image's trees say.
func (i *checkedImage) root() error {
	entries, hidden, err := merge(i.img.Manifest, i.kept.tree)
	if err != nil {
		return err
	}
	root, err := os.Open(filepath.Join(i.s.dir, i.dir, "rootfs"))
	if errors.Is(err, fs.ErrNotExist) {
		i.problem("rootfs", "missing", "made from the objects", func() error {
			dir, err := os.Open(filepath.Join(i.s.dir, i.dir))
			if err != nil {
				return err
			}
			defer dir.Close()
			return errors.Join(i.s.linkTree(i.ctx, int(dir.Fd()), entries), i.s.syncfs())
		})
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	entries = slices.Insert(entries, 0, Entry{Path: ".", Kind: KindDir, Mode: 0o755})
	found, err := i.walk(root.Name(), entries)
	if err != nil {
		return err
	}
	fd := int(root.Fd())
	made := make(map[string]bool) // of missing directories, whether they are there now: what is below them is not told
	for n := range entries {
		e := &entries[n]
		x, ok := found[e.Path]
		what := "missing"
		if ok {
			what = i.differs(e, x)
		}
		above, below := made[parent(e.Path)]
		is := false
		switch {
		case what == "":
			continue
		case !ok && below:
			if above && i.there() {
				err := i.s.linkEntry(fd, e)
				if is = err == nil; !is {
					i.report(filepath.Join(i.dir, "rootfs", e.Path), fmt.Sprintf("missing; cannot repair it: %v", err), "")
				}
			}
		case ok && e.Kind == KindDir && x.Kind == KindDir:
			i.problem(filepath.Join("rootfs", e.Path), what, "set back", func() error { return setBack(fd, e.Path, e) })
			continue
		default:
			is = i.problem(filepath.Join("rootfs", e.Path), what, "made again", func() error {
				if err := os.RemoveAll(filepath.Join(root.Name(), e.Path)); err != nil {
					return err
				}
				return i.s.linkEntry(fd, e)
			})
		}
		if e.Kind == KindDir {
			made[e.Path] = is
		}
	}
	i.hidden(hidden)
	if !i.touched {
		return nil
	}
	entries = slices.DeleteFunc(entries, func(e Entry) bool {
		is, missing := made[e.Path]
		return missing && !is
	})
	return errors.Join(setDirs(fd, entries), i.s.syncfs())
}

// walk observes what is below rootfs and reports what no tree has.
func (i *checkedImage) walk(root string, entries []Entry) (map[string]*observed, error) {
	want := make(map[string]bool, len(entries))
	for n := range entries {
		want[entries[n].Path] = true
	}
	found := make(map[string]*observed, len(entries))
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path) // one is below the other
		if !want[rel] {
			i.problem(filepath.Join("rootfs", rel), "in none of the image's trees", "removed", func() error { return os.RemoveAll(path) })
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		x := &observed{Entry: metaOf(&st), ino: st.Ino}
		if x.Kind == KindSymlink {
			x.Link, err = os.Readlink(path)
		}
		found[rel] = x
		return err
	})
	return found, err
}

// differs says in what a path is not e. A file is its object or wrong: that was
// read already.
func (i *checkedImage) differs(e *Entry, x *observed) string {
	if e.hasObject() && x.Kind == KindFile {
		if key := e.key(); i.s.isObject(key, x.ino) || i.stillBroken(key) {
			return ""
		}
		return "not the object"
	}
	if e.Kind == KindFile && x.Size == 0 {
		x.Digest = emptyDigest
	}
	return e.differs(x)
}

// stillBroken says whether an object was to be repaired and is not.
func (c *check) stillBroken(key string) bool { return c.damaged[key] != nil && c.damaged[key].broken }

// isObject says whether a file is one of the copies of an object.
func (s *Store) isObject(key string, ino uint64) bool {
	for n := 0; ; n++ {
		var st unix.Stat_t
		if unix.Fstatat(int(s.objects.Fd()), objectName(key, n), &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return false
		}
		if st.Ino == ino {
			return true
		}
	}
}

// hidden makes sure that the image keeps the objects its root does not show.
func (i *checkedImage) hidden(keys map[string]bool) {
	i.strays("", map[string]bool{"manifest.json": true, "rootfs": true, hiddenName: true})
	i.strays(hiddenName, keys)
	missing := make(map[string]bool)
	for key := range keys {
		var st unix.Stat_t
		path := filepath.Join(i.s.dir, i.dir, hiddenName, key)
		if (unix.Lstat(path, &st) != nil || !i.s.isObject(key, st.Ino)) && !i.stillBroken(key) {
			missing[key] = true
		}
	}
	if len(missing) == 0 {
		return
	}
	i.problem(hiddenName, fmt.Sprintf("%d objects that the root does not show are not kept", len(missing)), "linked", func() error {
		dir, err := os.Open(filepath.Join(i.s.dir, i.dir))
		if err != nil {
			return err
		}
		defer dir.Close()
		for key := range missing {
			if err := os.RemoveAll(filepath.Join(dir.Name(), hiddenName, key)); err != nil {
				return err
			}
		}
		return i.s.linkHidden(int(dir.Fd()), missing)
	})
}

// strays reports what is in a directory beside the names it may hold: a link there
// would keep its object for good.
func (i *checkedImage) strays(dir string, may map[string]bool) {
	names, err := os.ReadDir(filepath.Join(i.s.dir, i.dir, dir))
	if err != nil {
		return // what is missing there is told
	}
	for _, e := range names {
		if path := filepath.Join(dir, e.Name()); !may[e.Name()] {
			i.problem(path, strayFile, "removed", func() error { return os.RemoveAll(filepath.Join(i.s.dir, i.dir, path)) })
		}
	}
}
