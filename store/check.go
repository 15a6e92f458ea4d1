package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Problem is one thing that a check found.
type Problem struct {
	Path   string // below the store's directory
	What   string // what is wrong
	Repair string // what was done about it; "" for nothing
}

// CheckOptions adjust Check.
type CheckOptions struct {
	Repair bool

	// Report is told of each problem, once it is repaired where it can be. One
	// goroutine calls it.
	Report func(Problem)

	// Progress is told now and then how many files of which directory were read.
	Progress func(dir string, done int)

	// InUse says who needs an image that has lost a file; "" for nobody: it may
	// be dropped.
	InUse func(Digest) string

	// Fetch brings the content of a file of which no sound copy is left from a
	// registry that knows an image (Image.Remotes) with one of these trees, which
	// all hold it, and says from where; it is asked only where there is one, and
	// what it brings is verified. After ENOSPC nothing is dropped. nil: nothing is
	// fetched.
	Fetch func(ctx context.Context, e *Entry, trees map[Digest]bool) (content io.ReadCloser, from string, err error)

	// FetchTree is Fetch for a tree that an image needs and that is lost.
	FetchTree func(ctx context.Context, d Digest) (t *Tree, from string, err error)
}

// Checked says what a check has read and found.
type Checked struct {
	Trees, Objects, Images int
	Bytes                  int64 // of objects, all of them hashed
	Problems, Repaired     int
}

// Check reads everything and compares: objects with their keys, which are made of
// content and metadata; trees and manifests with their digests; each image's
// directory with its trees, inode by inode; the database with the disk. Builds,
// starts and lists go on meanwhile; sweeps wait.
//
// With Repair it puts right what it can: links from objects, objects from another
// copy or link or from a registry, metadata, the database's rows from the manifests. An image that
// lost a file for good is dropped, unless it is in use, and what builds
// remembered of it is forgotten, so that the next build makes it again.
func (s *Store) Check(ctx context.Context, o CheckOptions) (Checked, error) {
	done, err := s.check(ctx, o)
	s.sweepPending()
	if err != nil {
		return done, fmt.Errorf("check store: %w", err)
	}
	return done, nil
}

func (s *Store) check(ctx context.Context, o CheckOptions) (Checked, error) {
	s.sweeping.Lock()
	defer s.sweeping.Unlock()
	defer s.leases.take()()
	if o.Report == nil {
		o.Report = func(Problem) {}
	}
	if o.Progress == nil {
		o.Progress = func(string, int) {}
	}
	c := &check{s: s, ctx: ctx, o: o, buf: make([]byte, bufferSize), damaged: make(map[string]*damage), badTrees: make(map[Digest]bool), kept: &keptTrees{read: s.Tree}}
	for _, step := range []func() error{c.objects, c.trees, c.mend, c.images, c.database} {
		if err := step(); err != nil {
			return c.done, err
		}
	}
	return c.done, nil
}

type check struct {
	s    *Store
	ctx  context.Context //nolint:containedctx // of one call
	o    CheckOptions
	buf  []byte
	done Checked

	damaged  map[string]*damage // objects, by key
	badTrees map[Digest]bool    // live, and not readable; whether for good
	kept     *keptTrees
}

// damage is an object that is missing or not what its key says.
type damage struct {
	entry  *Entry            // what it should be; nil if no tree has it
	trees  map[Digest]bool   // that hold it
	copies map[int]*observed // those that are wrong; nil for the first: missing
	source string            // a sound file of an image
	lost   bool              // no sound copy is left
	broken bool              // still, for want of room or the like: what images have may be the last sound copy
}

// observed is what a file is.
type observed struct {
	Entry
	ino uint64
	err error
}

func (c *check) report(path, what, repair string) {
	c.done.Problems++
	if repair != "" {
		c.done.Repaired++
	}
	c.o.Report(Problem{Path: path, What: what, Repair: repair})
}

// repaired is report for what repair puts right, if asked to; it says whether that
// was done.
func (c *check) repaired(path, what, how string, repair func() error) bool {
	if !c.o.Repair {
		how = ""
	} else if err := errors.Join(c.s.failpoint("before repair"), repair(), c.s.failpoint("repaired")); err != nil {
		what, how = fmt.Sprintf("%s; cannot repair it: %v", what, err), ""
	}
	c.report(path, what, how)
	return how != ""
}

// observe reads a file: its metadata, size and digest.
func (c *check) observe(dir int, name string) *observed {
	f, err := openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return &observed{err: err}
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &observed{err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return &observed{err: ErrFileType}
	}
	x := &observed{Entry: metaOf(&st), ino: st.Ino}
	x.Size, x.Digest, x.err = hashFile(f, c.buf)
	return x
}

// metaOf is what an Entry says about a file, without its content.
func metaOf(st *unix.Stat_t) Entry {
	e := Entry{Mode: st.Mode & 0o7777, MTime: st.Mtim.Sec, UID: st.Uid, GID: st.Gid}
	if int(st.Uid) == os.Geteuid() && int(st.Gid) == os.Getegid() {
		e.UID, e.GID = 0, 0 // what is root's belongs to whom the engine runs as
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Kind, e.Size = KindFile, st.Size
	case unix.S_IFDIR:
		e.Kind = KindDir
	case unix.S_IFLNK:
		e.Kind, e.Mode = KindSymlink, 0
	}
	return e
}

// differs says in what a file is not e; "" if in nothing.
func (e *Entry) differs(x *observed) string {
	switch {
	case errors.Is(x.err, fs.ErrNotExist):
		return "missing"
	case x.err != nil:
		return x.err.Error()
	case x.Kind != e.Kind:
		return fmt.Sprintf("a %s, not a %s", x.Kind, e.Kind)
	case x.Size != e.Size:
		return fmt.Sprintf("%d bytes, not %d", x.Size, e.Size)
	case x.Digest != e.Digest:
		return "its content has changed"
	case x.Link != e.Link:
		return fmt.Sprintf("leads to %q, not %q", x.Link, e.Link)
	case x.Mode != e.Mode:
		return fmt.Sprintf("mode %#o, not %#o", x.Mode, e.Mode)
	case x.UID != e.UID || x.GID != e.GID:
		return fmt.Sprintf("owner %d:%d, not %d:%d", x.UID, x.GID, e.UID, e.GID)
	case x.MTime != e.MTime:
		return fmt.Sprintf("modified at %d, not %d", x.MTime, e.MTime)
	}
	return ""
}

// objects hashes every file of objects/.
func (c *check) objects() error {
	subs, err := c.s.listDir("objects")
	if err != nil {
		return err
	}
	for _, sub := range subs {
		if len(sub) != 2 || !isHex(sub) {
			c.stray("objects/" + sub)
			continue
		}
		names, err := c.s.listDir("objects/" + sub)
		if errors.Is(err, unix.ENOTDIR) {
			c.stray("objects/" + sub)
			continue
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := c.ctx.Err(); err != nil {
				return err
			}
			path := sub + "/" + name
			key, n, ok := parseObjectName(name)
			if !ok || key[:2] != sub {
				c.stray("objects/" + path)
				continue
			}
			x := c.observe(int(c.s.objects.Fd()), path)
			if errors.Is(x.err, fs.ErrNotExist) {
				continue // it was garbage
			}
			c.done.Objects++
			c.done.Bytes += x.Size
			if c.done.Objects%1000 == 0 {
				c.o.Progress("objects", c.done.Objects)
			}
			if x.err != nil || x.key() != key {
				c.damage(key).copies[n] = x
			}
		}
	}
	return nil
}

const strayFile = "none of the store's files"

// stray reports what is none of the store's, and removes it.
func (c *check) stray(path string) {
	c.repaired(path, strayFile, "removed", func() error {
		return os.RemoveAll(filepath.Join(c.s.dir, path))
	})
}

func (c *check) damage(key string) *damage {
	d := c.damaged[key]
	if d == nil {
		d = &damage{trees: make(map[Digest]bool), copies: make(map[int]*observed)}
		c.damaged[key] = d
	}
	return d
}

// trees reads every tree, and looks for the objects of each.
func (c *check) trees() error {
	names, err := c.s.listDir("trees")
	if err != nil {
		return err
	}
	live := c.s.liveTrees()
	there := make(map[Digest]bool, len(names))
	for _, name := range names {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		d := Digest(digestPrefix + strings.TrimSuffix(name, ".json"))
		if d.check() != nil || name != d.hex()+".json" {
			c.stray("trees/" + name)
			continue
		}
		there[d] = true
		t, err := c.s.readTree(d)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		c.done.Trees++
		if err != nil {
			t = c.badTree(d, live[d], "its content has changed")
		}
		c.wanted(d, t)
		if c.done.Trees%100 == 0 {
			c.o.Progress("trees", c.done.Trees)
		}
	}
	for d := range live {
		if !there[d] && c.s.liveTrees()[d] { // none that a build made since
			if _, err := c.s.readTree(d); err != nil {
				c.wanted(d, c.badTree(d, true, "missing"))
			}
		}
	}
	return nil
}

// badTree brings back a tree that images need. Else it removes what is left of it,
// and that builds remember it: the next one makes it again.
func (c *check) badTree(d Digest, live bool, what string) *Tree {
	path := "trees/" + d.hex() + ".json"
	if live {
		c.badTrees[d] = true
	}
	if live && c.o.FetchTree != nil && c.known(map[Digest]bool{d: true}) {
		if !c.o.Repair {
			c.badTrees[d] = false
			c.report(path, what, "")
			return nil
		}
		t, from, err := c.fetchTree(d)
		if err == nil {
			delete(c.badTrees, d)
			c.report(path, what, "fetched from "+from)
			return t
		}
		if c.ctx.Err() != nil || errors.Is(err, unix.ENOSPC) { // another time it may come
			c.badTrees[d] = false
			c.report(path, fmt.Sprintf("%s; cannot repair it: %v", what, err), "")
			return nil
		}
		what = fmt.Sprintf("%s; not fetched: %v", what, err)
	}
	c.repaired(path, what, "removed: the next build makes it again", func() error {
		if err := c.forgetParts(map[Digest]bool{d: true}); err != nil {
			return err
		}
		err := unix.Unlinkat(int(c.s.trees.Fd()), d.hex()+".json", 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	})
	return nil
}

// forgetTrees makes builds make these trees again, and removes those of no image.
func (c *check) forgetTrees(trees map[Digest]bool) error {
	var dead []Digest
	live := c.s.liveTrees()
	for d := range trees {
		if !live[d] {
			dead = append(dead, d)
		}
	}
	w := sweep{s: c.s, ctx: c.ctx, done: new(Swept)}
	_, err := w.trees(dead)
	return errors.Join(err, c.forgetParts(trees))
}

// forgetParts makes builds make the parts of these trees again.
func (c *check) forgetParts(trees map[Digest]bool) error {
	w := sweep{s: c.s, ctx: c.ctx, done: new(Swept)}
	return w.parts(trees)
}

// wanted notes what the damaged and the missing objects of a tree should be; nil is
// a tree that is lost.
func (c *check) wanted(d Digest, t *Tree) {
	if t == nil {
		return
	}
	for i := range t.Entries {
		e := &t.Entries[i]
		if !e.hasObject() {
			continue
		}
		key := e.key()
		if links, _ := c.s.objectLinks(objectName(key, 0)); links == 0 {
			c.damage(key).copies[0] = &observed{err: fs.ErrNotExist}
		}
		if x := c.damaged[key]; x != nil {
			x.entry = e
			x.trees[d] = true
		}
	}
}

// database compares the rows with the disk.
func (c *check) database() error {
	// What SQLite remembers of the file would hide what has become of it.
	if _, err := c.s.db.ExecContext(c.ctx, `PRAGMA shrink_memory`); err != nil {
		return err
	}
	if what := c.integrity("quick"); what != "" { // what Open asks, too
		c.report(dbName, what+"; the next start of the engine makes it anew from the manifests", "")
		return nil // its rows say nothing
	}
	if what := c.integrity("integrity"); what != "" {
		c.repaired(dbName, what, "its indexes made again", func() error {
			c.s.mu.Lock()
			defer c.s.mu.Unlock()
			if _, err := c.s.db.ExecContext(c.ctx, `REINDEX`); err != nil {
				return err
			}
			if what := c.integrity("integrity"); what != "" {
				return errors.New(what)
			}
			return nil
		})
	}
	bad := make(map[Digest]string)
	err := c.s.each(`SELECT digest, manifest FROM images`, func(scan scanFunc) error {
		var d Digest
		var manifest string
		if err := scan(&d, &manifest); err != nil {
			return err
		}
		if sumDigest([]byte(manifest)) != d {
			bad[d] = manifest
		}
		return nil
	})
	if err != nil {
		return err
	}
	for d := range bad {
		c.repaired(dbName, fmt.Sprintf("the manifest of image %s has changed", d), "taken from the image's directory", func() error {
			b, err := os.ReadFile(filepath.Join(c.s.dir, "images", d.hex(), "manifest.json"))
			if err == nil && sumDigest(b) != d {
				err = errors.New("that is damaged as well")
			}
			if err != nil {
				return err
			}
			c.s.mu.Lock()
			defer c.s.mu.Unlock()
			_, err = c.s.db.ExecContext(c.ctx, `UPDATE images SET manifest = ? WHERE digest = ?`, string(b), d)
			return err
		})
	}
	return nil
}

// integrity says what SQLite's check of that name finds wrong; "" for nothing.
func (c *check) integrity(check string) string {
	var result string
	if err := c.s.db.QueryRowContext(c.ctx, `PRAGMA `+check+`_check(1)`).Scan(&result); err != nil {
		return err.Error()
	}
	if result == "ok" {
		return ""
	}
	return strings.TrimSpace(result)
}
