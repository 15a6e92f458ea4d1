package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// mend repairs the damaged objects: metadata in place; content from another copy, from an
// image's file that is a separate inode, or from a registry. It writes content into the damaged
// file itself, so all links to the file are sound again.
func (c *checker) mend() error {
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
				what = "does not match its digest"
			}
			c.mendCopy(key, n, d, what)
		}
	}
	return nil
}

// garbage removes a damaged object that no tree has.
func (c *checker) garbage(key string, d *damage) {
	for n := range d.copies {
		c.repaired("objects/"+objectName(key, n), "does not match its digest, and is in no tree", "removed", func() error {
			return c.removeObject(key, n)
		})
	}
}

// removeObject removes a damaged copy; the next Writer that needs the object restores it.
func (c *checker) removeObject(key string, n int) error {
	c.s.leases.mu.Lock()
	defer c.s.leases.mu.Unlock()
	return os.RemoveAll(filepath.Join(c.s.disk.dir, "objects", objectName(key, n)))
}

func (c *checker) mendCopy(key string, n int, d *damage, what string) {
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
		c.report(path, fmt.Sprintf("%s; repair failed: %v", what, err), "")
		return
	}
	// A further copy is made again when needed; the check of images repairs the links to it.
	if n > 0 {
		c.repaired(path, what, "removed", func() error { return c.removeObject(key, n) })
		return
	}
	d.lost = true
	c.repaired(path, what+"; "+err.Error(), "removed: recreated by the next build", func() error {
		return errors.Join(c.forgetTrees(d.trees), c.removeObject(key, n))
	})
}

var errNoSource = errors.New("no intact copy left")

// restore repairs a copy and returns a description of the repair.
func (c *checker) restore(key string, n int, d *damage) (string, error) {
	dir, name := int(c.s.disk.objects.Fd()), objectName(key, n)
	if d.sound(n) {
		return "set back", setBack(dir, name, d.entry)
	}
	missing := d.copies[n].err != nil
	if missing {
		if err := os.RemoveAll(filepath.Join(c.s.disk.dir, "objects", name)); err != nil {
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
	defer func() { _ = unix.Unlinkat(int(c.s.disk.tmp.Fd()), staged, 0) }()
	if err := errors.Join(err, r.Close()); err != nil {
		return "", err
	}
	if missing {
		return how, unix.Linkat(int(c.s.disk.tmp.Fd()), staged, dir, name, 0)
	}
	return how, c.overwrite(dir, name, staged, d.entry)
}

// setBack sets the owner, mode and mtime of a file to those of e.
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

// otherCopy returns the name of a sound copy; "" if there is none.
func (c *checker) otherCopy(key string, d *damage) string {
	for n := 0; ; n++ {
		if _, damaged := d.copies[n]; damaged {
			continue
		}
		links, _ := c.s.disk.objectLinks(objectName(key, n))
		if links == 0 {
			return ""
		}
		return objectName(key, n)
	}
}

func (c *checker) openSource(key string, d *damage) (io.ReadCloser, string, error) {
	if name := c.otherCopy(key, d); name != "" {
		f, err := openat(int(c.s.disk.objects.Fd()), name, unix.O_RDONLY, 0)
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
	case c.ctx.Err() != nil || errors.Is(err, unix.ENOSPC): // a later attempt may succeed
		return nil, "", err
	}
	return nil, "", fmt.Errorf("%w, nor fetched: %w", errNoSource, err)
}

// fetchable reports whether a registry knows an image with the object.
func (c *checker) fetchable(d *damage) bool { return c.o.Fetch != nil && c.known(d.trees) }

// known reports whether a registry knows an image with one of these trees.
func (c *checker) known(trees map[Digest]bool) bool {
	return slices.ContainsFunc(c.s.meta.snap.Load().images, func(img *Image) bool {
		return len(img.Remotes) > 0 && slices.ContainsFunc(img.Parts, func(p Part) bool { return trees[p.Tree] })
	})
}

// fetchTree calls FetchTree, verifies the tree and puts it in place.
func (c *checker) fetchTree(d Digest) (*Tree, string, error) {
	t, from, err := c.o.FetchTree(c.ctx, d)
	if err != nil {
		return nil, "", err
	}
	b, err := t.encode()
	if err != nil || sumDigest(b) != d {
		return nil, "", errors.Join(errors.New("the fetched content is wrong"), err)
	}
	tmp, name := int(c.s.disk.tmp.Fd()), d.hex()+".json"
	err = writeFileAt(tmp, name, b)
	if err == nil {
		err = c.s.disk.syncfs()
	}
	if err == nil {
		err = unix.Renameat(tmp, name, int(c.s.disk.trees.Fd()), name)
	}
	if err != nil {
		_ = unix.Unlinkat(tmp, name, 0)
		return nil, "", err
	}
	return t, from, c.s.disk.trees.Sync()
}

// stage writes the content of r to tmp/. An error means that the content is not e's or could not
// be written. The caller removes the file in any case.
func (c *checker) stage(r io.Reader, e *Entry) (name string, err error) {
	name = "repair-" + strconv.FormatUint(c.s.disk.serial.Add(1), 10)
	tmp := int(c.s.disk.tmp.Fd())
	f, err := openat(tmp, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, hash), io.LimitReader(r, e.Size+1))
	if err == nil && (n != e.Size || Digest(digestPrefix+hex.EncodeToString(hash.Sum(nil))) != e.Digest) {
		err = fmt.Errorf("%w: the copy found is wrong too", errNoSource)
	}
	if err == nil {
		err = setMeta(f, tmp, name, e)
	}
	if err == nil {
		err = f.Sync()
	}
	return name, errors.Join(err, f.Close())
}

// overwrite writes a staged file's content into the existing file, which stays damaged until the
// end. ETXTBSY: a sandbox executes the file.
func (c *checker) overwrite(dir int, name, staged string, e *Entry) error {
	src, err := openat(int(c.s.disk.tmp.Fd()), staged, unix.O_RDONLY, 0)
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
		err = c.s.disk.failpoint("object half repaired")
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

// findSources looks for files of images that equal a damaged object. Such files exist if the
// object is missing, or if a separate file has taken its place.
func (c *checker) findSources() {
	trees := make(map[Digest]bool)
	for _, d := range c.damaged {
		if d.entry != nil {
			maps.Copy(trees, d.trees)
		}
	}
	for _, img := range c.s.meta.snap.Load().images {
		if !slices.ContainsFunc(img.Parts, func(p Part) bool { return trees[p.Tree] }) {
			continue
		}
		entries, hidden, err := merge(img.Manifest, c.kept.tree)
		if err != nil {
			continue // reported with the trees of the image
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
		dir := filepath.Join(c.s.disk.dir, "images", img.Digest.hex())
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

// forgetTrees forgets the parts with these trees, so builds make them again, and removes the
// trees that no image has.
func (c *checker) forgetTrees(trees map[Digest]bool) error {
	var dead []Digest
	live := c.s.meta.snap.Load().liveTrees()
	for d := range trees {
		if !live[d] {
			dead = append(dead, d)
		}
	}
	w := c.s.sweeper.run(c.ctx, new(Swept))
	_, err := w.removeTrees(dead)
	return errors.Join(err, c.forgetParts(trees))
}

// forgetParts forgets the parts with these trees, so builds make them again.
func (c *checker) forgetParts(trees map[Digest]bool) error {
	w := c.s.sweeper.run(c.ctx, new(Swept))
	return w.forgetParts(trees)
}
