package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
)

// checkImages compares each image's directory with its trees.
func (c *checker) checkImages() error {
	for _, img := range c.s.meta.snap.Load().images {
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
		i := checkedImage{checker: c, img: img, dir: "images/" + img.Digest.hex()}
		i.compareManifest()
		if err := i.compareRoot(); err != nil && i.there() {
			return fmt.Errorf("image %s: %w", img.Digest, err)
		}
	}
	return c.strayImages()
}

// lostImage drops an image with a lost tree or object. It returns true if the image needs no
// further check.
func (c *checker) lostImage(img *Image) bool {
	what, broken := "", false
	for _, p := range img.Parts {
		lost, bad := c.badTrees[p.Tree]
		broken = broken || bad
		if lost {
			what = fmt.Sprintf("the list of files of the part %s %s is lost", p.Kind, p.Name)
		}
	}
	for _, d := range c.damaged {
		if d.lost && slices.ContainsFunc(img.Parts, func(p Part) bool { return d.trees[p.Tree] }) {
			what = fmt.Sprintf("the file %s is lost", d.entry.Path)
		}
	}
	if what == "" || c.s.meta.snap.Load().byDigest[img.Digest] == nil {
		return what != "" || broken
	}
	path := "images/" + img.Digest.hex()
	if c.o.InUse != nil {
		if by := c.o.InUse(img.Digest); by != "" {
			c.report(path, fmt.Sprintf("%s; in use by %s: build the image again", what, by), "")
			return true
		}
	}
	c.repaired(path, what, "dropped: build or pull the image again", func() error {
		_, err := c.s.remove(context.WithoutCancel(c.ctx), img.Digest, nil)
		return err
	})
	return true
}

// strayImages reports directories without a row. A build that has renamed its directory holds mu
// until its row is written.
func (c *checker) strayImages() error {
	c.s.meta.mu.Lock()
	names, err := c.s.disk.listDir("images")
	known := c.s.meta.snap.Load().byDigest
	c.s.meta.mu.Unlock()
	if err != nil {
		return err
	}
	for _, name := range names {
		if known[Digest(digestPrefix+name)] != nil {
			continue
		}
		c.repaired("images/"+name, strayFile, "removed", func() error {
			c.s.meta.mu.Lock()
			defer c.s.meta.mu.Unlock()
			if c.s.meta.snap.Load().byDigest[Digest(digestPrefix+name)] != nil {
				return errors.New("a build replaced the image meanwhile")
			}
			return linux.RemoveAll(filepath.Join(c.s.disk.dir, "images", name))
		})
	}
	return nil
}

// checkedImage is the check of one image.
type checkedImage struct {
	*checker
	img     *Image
	dir     string // relative to the store's directory
	touched bool   // something below rootfs was repaired
}

// there reports whether the image still exists.
func (i *checkedImage) there() bool { return i.s.meta.snap.Load().byDigest[i.img.Digest] != nil }

// problem is repaired for a path below the image's directory.
func (i *checkedImage) problem(path, what, how string, repair func() error) bool {
	return i.there() && i.repaired(filepath.Join(i.dir, path), what, how, func() error {
		i.touched = true
		return repair()
	})
}

// compareManifest compares manifest.json with the digest.
func (i *checkedImage) compareManifest() {
	path := filepath.Join(i.s.disk.dir, i.dir, "manifest.json")
	b, err := os.ReadFile(path)
	what := "content has changed"
	switch {
	case err == nil && sumDigest(b) == i.img.Digest:
		return
	case err != nil:
		what = err.Error()
	}
	i.problem("manifest.json", what, "taken from the database", func() error {
		var row string
		i.s.meta.mu.Lock()
		err := i.s.meta.db.QueryRowContext(i.ctx, `SELECT manifest FROM images WHERE digest = ?`, i.img.Digest).Scan(&row)
		i.s.meta.mu.Unlock()
		if err != nil {
			return err
		}
		if sumDigest([]byte(row)) != i.img.Digest {
			return errors.New("the source is damaged too")
		}
		tmp := filepath.Join(i.s.disk.dir, "tmp", "manifest-"+i.img.Digest.hex())
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

// compareRoot compares rootfs/ and hidden/ with the image's trees.
func (i *checkedImage) compareRoot() error {
	entries, hidden, err := merge(i.img.Manifest, i.kept.tree)
	if err != nil {
		return err
	}
	root, err := os.Open(filepath.Join(i.s.disk.dir, i.dir, "rootfs"))
	if errors.Is(err, fs.ErrNotExist) {
		i.problem("rootfs", "missing", "made from the objects", func() error {
			dir, err := os.Open(filepath.Join(i.s.disk.dir, i.dir))
			if err != nil {
				return err
			}
			defer dir.Close()
			return errors.Join(i.s.disk.linkTree(i.ctx, int(dir.Fd()), entries), i.s.disk.syncfs())
		})
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	entries = slices.Insert(entries, 0, Entry{Path: ".", Kind: KindDir, Mode: 0o755})
	made, err := i.compareEntries(root, entries)
	if err != nil {
		return err
	}
	i.compareHidden(hidden)
	if !i.touched {
		return nil
	}
	entries = slices.DeleteFunc(entries, func(e Entry) bool {
		is, missing := made[e.Path]
		return missing && !is
	})
	return errors.Join(setDirs(int(root.Fd()), entries), i.s.disk.syncfs())
}

// compareEntries compares the files below root with the entries. made holds the directories that
// were missing, and whether they exist by now. Entries below them are not reported.
func (i *checkedImage) compareEntries(root *os.File, entries []Entry) (made map[string]bool, err error) {
	found, err := i.walk(root.Name(), entries)
	if err != nil {
		return nil, err
	}
	fd := int(root.Fd())
	made = make(map[string]bool)
	for n := range entries {
		e := &entries[n]
		x, ok := found[e.Path]
		what := "missing"
		if ok {
			what = i.differs(e, x)
		}
		above, below := made[parent(e.Path)]
		var is bool
		switch {
		case what == "":
			continue
		case !ok && below:
			is = above && i.relink(fd, e)
		case ok && e.Kind == KindDir && x.Kind == KindDir:
			i.problem(filepath.Join("rootfs", e.Path), what, "set back", func() error { return setBack(fd, e.Path, e) })
			continue
		default:
			is = i.problem(filepath.Join("rootfs", e.Path), what, "made again", func() error {
				if err := os.RemoveAll(filepath.Join(root.Name(), e.Path)); err != nil {
					return err
				}
				return i.s.disk.linkEntry(fd, e)
			})
		}
		if e.Kind == KindDir {
			made[e.Path] = is
		}
	}
	return made, nil
}

// relink makes an entry again below a directory that was missing and exists by now. It reports
// only a failure.
func (i *checkedImage) relink(root int, e *Entry) bool {
	if !i.there() {
		return false
	}
	err := i.s.disk.linkEntry(root, e)
	if err != nil {
		i.report(filepath.Join(i.dir, "rootfs", e.Path), fmt.Sprintf("missing; repair failed: %v", err), "")
	}
	return err == nil
}

// walk observes the files below rootfs and reports files of no tree.
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
		rel, _ := filepath.Rel(root, path) // path is below root: no error
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

// differs describes a difference between x and e. A file with an object need only be the same
// inode: check has read the object already.
func (i *checkedImage) differs(e *Entry, x *observed) string {
	if e.hasObject() && x.Kind == KindFile {
		if key := e.key(); i.s.disk.isObject(key, x.ino) || i.stillBroken(key) {
			return ""
		}
		return "not the object"
	}
	if e.Kind == KindFile && x.Size == 0 {
		x.Digest = emptyDigest
	}
	return e.differs(x)
}

// compareHidden makes sure the image links the objects that its root does not show.
func (i *checkedImage) compareHidden(keys map[string]bool) {
	i.strays("", map[string]bool{"manifest.json": true, "rootfs": true, hiddenName: true})
	i.strays(hiddenName, keys)
	missing := make(map[string]bool)
	for key := range keys {
		var st unix.Stat_t
		path := filepath.Join(i.s.disk.dir, i.dir, hiddenName, key)
		if (unix.Lstat(path, &st) != nil || !i.s.disk.isObject(key, st.Ino)) && !i.stillBroken(key) {
			missing[key] = true
		}
	}
	if len(missing) == 0 {
		return
	}
	i.problem(hiddenName, fmt.Sprintf("%d objects that the root does not show are not kept", len(missing)), "linked", func() error {
		dir, err := os.Open(filepath.Join(i.s.disk.dir, i.dir))
		if err != nil {
			return err
		}
		defer dir.Close()
		for key := range missing {
			if err := os.RemoveAll(filepath.Join(dir.Name(), hiddenName, key)); err != nil {
				return err
			}
		}
		return i.s.disk.linkHidden(int(dir.Fd()), missing)
	})
}

// strays reports files in a directory beyond the allowed names: a link to an object would keep
// the object forever.
func (i *checkedImage) strays(dir string, may map[string]bool) {
	names, err := os.ReadDir(filepath.Join(i.s.disk.dir, i.dir, dir))
	if err != nil {
		return // a missing directory is reported elsewhere
	}
	for _, e := range names {
		if path := filepath.Join(dir, e.Name()); !may[e.Name()] {
			i.problem(path, strayFile, "removed", func() error { return os.RemoveAll(filepath.Join(i.s.disk.dir, i.dir, path)) })
		}
	}
}
