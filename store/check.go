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

// Problem is one finding of a check.
type Problem struct {
	Path   string // relative to the store's directory
	What   string // what is wrong
	Repair string // the repair; "" for none
}

// CheckOptions adjusts Check.
type CheckOptions struct {
	Repair bool

	// Report is called once for each problem, after its repair if there is one. All calls come
	// from one goroutine.
	Report func(Problem)

	// Progress is called from time to time with the number of files read in a directory.
	Progress func(dir string, done int)

	// InUse names the user of an image that has lost a file. If it returns "", the image may be
	// dropped.
	InUse func(Digest) string

	// Fetch brings the content of a file without a sound copy from a registry. The registry
	// knows an image (Image.Remotes) with one of trees, all of which hold the file; Fetch is
	// called only if there is such an image. from names the source. Check verifies the content.
	// After ENOSPC Check drops nothing. If Fetch is nil nothing is fetched.
	Fetch func(ctx context.Context, e *Entry, trees map[Digest]bool) (content io.ReadCloser, from string, err error)

	// FetchTree is Fetch for a lost tree that an image needs.
	FetchTree func(ctx context.Context, d Digest) (t *Tree, from string, err error)
}

// Checked counts the files read and the problems found by a check.
type Checked struct {
	Trees, Objects, Images int
	Bytes                  int64 // of objects; all are hashed
	Problems, Repaired     int
}

// Check reads the whole store and compares: objects with their keys (which cover content and
// metadata), trees and manifests with their digests, each image's directory with its trees,
// inode by inode, and the database with the disk. Builds, starts and lists continue meanwhile;
// sweeps wait.
//
// With Repair it repairs links from objects, objects from another copy or link or from a
// registry, metadata, and the database's rows from the manifests. An image that lost a file for
// good is dropped, unless it is in use, and builds forget its parts, so the next build makes
// them again.
func (s *Store) Check(ctx context.Context, o CheckOptions) (Checked, error) {
	done, err := s.check(ctx, o)
	s.sweeper.sweepPending()
	if err != nil {
		return done, fmt.Errorf("check store: %w", err)
	}
	return done, nil
}

func (s *Store) check(ctx context.Context, o CheckOptions) (Checked, error) {
	s.sweeper.running.Lock()
	defer s.sweeper.running.Unlock()
	defer s.leases.take()()
	if o.Report == nil {
		o.Report = func(Problem) {}
	}
	if o.Progress == nil {
		o.Progress = func(string, int) {}
	}
	c := &checker{s: s, ctx: ctx, o: o, buf: make([]byte, bufferSize), damaged: make(map[string]*damage), badTrees: make(map[Digest]bool), kept: &keptTrees{read: s.Tree}}
	for _, step := range []func() error{c.checkObjects, c.checkTrees, c.mend, c.checkImages, c.checkDatabase} {
		if err := step(); err != nil {
			return c.done, err
		}
	}
	return c.done, nil
}

type checker struct {
	s    *Store
	ctx  context.Context //nolint:containedctx // of one call
	o    CheckOptions
	buf  []byte
	done Checked

	damaged  map[string]*damage // objects, by key
	badTrees map[Digest]bool    // live trees that are unreadable; value: whether for good
	kept     *keptTrees
}

// damage is an object that is missing or differs from its key.
type damage struct {
	entry  *Entry            // the expected file; nil if no tree has it
	trees  map[Digest]bool   // with the object
	copies map[int]*observed // the damaged copies, by number
	source string            // a sound file of an image
	lost   bool              // no sound copy is left
	broken bool              // repair failed, as on ENOSPC: the files of images may be the last sound copy
}

// observed is the actual state of a file.
type observed struct {
	Entry
	ino uint64
	err error
}

func (c *checker) report(path, what, repair string) {
	c.done.Problems++
	if repair != "" {
		c.done.Repaired++
	}
	c.o.Report(Problem{Path: path, What: what, Repair: repair})
}

// repaired reports a problem, after the repair if Repair is set, and whether the repair
// succeeded.
func (c *checker) repaired(path, what, how string, repair func() error) bool {
	if !c.o.Repair {
		how = ""
	} else if err := errors.Join(c.s.disk.failpoint("before repair"), repair(), c.s.disk.failpoint("repaired")); err != nil {
		what, how = fmt.Sprintf("%s; repair failed: %v", what, err), ""
	}
	c.report(path, what, how)
	return how != ""
}

// observe reads the metadata, size and digest of a file.
func (c *checker) observe(dir int, name string) *observed {
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

// metaOf returns the metadata of a file as an Entry, without its content.
func metaOf(st *unix.Stat_t) Entry {
	e := Entry{Mode: st.Mode & 0o7777, MTime: st.Mtim.Sec, UID: st.Uid, GID: st.Gid}
	if int(st.Uid) == os.Geteuid() && int(st.Gid) == os.Getegid() {
		e.UID, e.GID = 0, 0 // files of root belong to the user that the engine runs as
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

// differs describes the first difference between x and e; "" if there is none.
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
		return "content has changed"
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

// checkObjects hashes every file of objects/.
func (c *checker) checkObjects() error {
	subs, err := c.s.disk.listDir("objects")
	if err != nil {
		return err
	}
	for _, sub := range subs {
		if len(sub) != 2 || !isHex(sub) {
			c.stray("objects/" + sub)
			continue
		}
		names, err := c.s.disk.listDir("objects/" + sub)
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
			x := c.observe(int(c.s.disk.objects.Fd()), path)
			if errors.Is(x.err, fs.ErrNotExist) {
				continue // removed meanwhile: the object was garbage
			}
			c.done.Objects++
			c.done.Bytes += x.Size
			if c.done.Objects%1000 == 0 {
				c.o.Progress("objects", c.done.Objects)
			}
			if x.err != nil || x.key() != key {
				c.damageOf(key).copies[n] = x
			}
		}
	}
	return nil
}

const strayFile = "none of the store's files"

// stray reports a file that is not the store's, and removes it.
func (c *checker) stray(path string) {
	c.repaired(path, strayFile, "removed", func() error {
		return os.RemoveAll(filepath.Join(c.s.disk.dir, path))
	})
}

func (c *checker) damageOf(key string) *damage {
	d := c.damaged[key]
	if d == nil {
		d = &damage{trees: make(map[Digest]bool), copies: make(map[int]*observed)}
		c.damaged[key] = d
	}
	return d
}

// checkTrees reads every tree and checks that its objects exist.
func (c *checker) checkTrees() error {
	names, err := c.s.disk.listDir("trees")
	if err != nil {
		return err
	}
	live := c.s.meta.snap.Load().liveTrees()
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
		t, err := c.s.disk.readTree(d)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		c.done.Trees++
		if err != nil {
			t = c.badTree(d, live[d], "content has changed")
		}
		c.wanted(d, t)
		if c.done.Trees%100 == 0 {
			c.o.Progress("trees", c.done.Trees)
		}
	}
	for d := range live {
		if !there[d] && c.s.meta.snap.Load().liveTrees()[d] { // skip a tree that a build made meanwhile
			if _, err := c.s.disk.readTree(d); err != nil {
				c.wanted(d, c.badTree(d, true, "missing"))
			}
		}
	}
	return nil
}

// badTree fetches a lost tree again if images need it, else removes the damaged file and the
// parts with the tree, so the next build makes the tree again.
func (c *checker) badTree(d Digest, live bool, what string) *Tree {
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
		if c.ctx.Err() != nil || errors.Is(err, unix.ENOSPC) { // a later attempt may succeed
			c.badTrees[d] = false
			c.report(path, fmt.Sprintf("%s; repair failed: %v", what, err), "")
			return nil
		}
		what = fmt.Sprintf("%s; not fetched: %v", what, err)
	}
	c.repaired(path, what, "removed: recreated by the next build", func() error {
		if err := c.forgetParts(map[Digest]bool{d: true}); err != nil {
			return err
		}
		err := unix.Unlinkat(int(c.s.disk.trees.Fd()), d.hex()+".json", 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	})
	return nil
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

// wanted notes the expected entry of each damaged or missing object of a tree; t is nil if the
// tree is lost.
func (c *checker) wanted(d Digest, t *Tree) {
	if t == nil {
		return
	}
	for i := range t.Entries {
		e := &t.Entries[i]
		if !e.hasObject() {
			continue
		}
		key := e.key()
		if links, _ := c.s.disk.objectLinks(objectName(key, 0)); links == 0 {
			c.damageOf(key).copies[0] = &observed{err: fs.ErrNotExist}
		}
		if x := c.damaged[key]; x != nil {
			x.entry = e
			x.trees[d] = true
		}
	}
}

// checkDatabase compares the rows with the disk.
func (c *checker) checkDatabase() error {
	// Drop SQLite's page cache: it would hide damage on disk.
	if _, err := c.s.meta.db.ExecContext(c.ctx, `PRAGMA shrink_memory`); err != nil {
		return err
	}
	if what := c.integrity("quick"); what != "" { // as Open does
		c.report(dbName, what+"; the next start of the engine rebuilds the database from the manifests", "")
		return nil // its rows are useless
	}
	if what := c.integrity("integrity"); what != "" {
		c.repaired(dbName, what, "indexes rebuilt", func() error {
			c.s.meta.mu.Lock()
			defer c.s.meta.mu.Unlock()
			if _, err := c.s.meta.db.ExecContext(c.ctx, `REINDEX`); err != nil {
				return err
			}
			if what := c.integrity("integrity"); what != "" {
				return errors.New(what)
			}
			return nil
		})
	}
	bad := make(map[Digest]string)
	err := eachRow(c.s.meta.db, `SELECT digest, manifest FROM images`, func(scan scanFunc) error {
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
			b, err := os.ReadFile(filepath.Join(c.s.disk.dir, "images", d.hex(), "manifest.json"))
			if err == nil && sumDigest(b) != d {
				err = errors.New("the source is damaged too")
			}
			if err != nil {
				return err
			}
			c.s.meta.mu.Lock()
			defer c.s.meta.mu.Unlock()
			_, err = c.s.meta.db.ExecContext(c.ctx, `UPDATE images SET manifest = ? WHERE digest = ?`, string(b), d)
			return err
		})
	}
	return nil
}

// integrity runs SQLite's quick or integrity check and returns its finding; "" for none.
func (c *checker) integrity(check string) string {
	var result string
	if err := c.s.meta.db.QueryRowContext(c.ctx, `PRAGMA `+check+`_check(1)`).Scan(&result); err != nil {
		return err.Error()
	}
	if result == "ok" {
		return ""
	}
	return strings.TrimSpace(result)
}
