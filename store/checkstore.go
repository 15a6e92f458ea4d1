package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

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
			c.checkObject(sub, name)
		}
	}
	return nil
}

func (c *checker) checkObject(sub, name string) {
	path := sub + "/" + name
	key, n, ok := parseObjectName(name)
	if !ok || key[:2] != sub {
		c.stray("objects/" + path)
		return
	}
	x := c.observe(int(c.s.disk.objects.Fd()), path)
	if errors.Is(x.err, fs.ErrNotExist) {
		return // removed meanwhile: the object was garbage
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
	c.checkMissingTrees(live, there)
	return nil
}

// checkMissingTrees fetches the live trees that are not on disk.
func (c *checker) checkMissingTrees(live, there map[Digest]bool) {
	for d := range live {
		if !there[d] && c.s.meta.snap.Load().liveTrees()[d] { // skip a tree that a build made meanwhile
			if _, err := c.s.disk.readTree(d); err != nil {
				c.wanted(d, c.badTree(d, true, "missing"))
			}
		}
	}
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
	return c.checkManifests()
}

// checkManifests compares the manifests in the database with their digests.
func (c *checker) checkManifests() error {
	var bad []Digest
	err := eachRow(c.s.meta.db, `SELECT digest, manifest FROM images`, func(scan scanFunc) error {
		var d Digest
		var manifest string
		if err := scan(&d, &manifest); err != nil {
			return err
		}
		if sumDigest([]byte(manifest)) != d {
			bad = append(bad, d)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, d := range bad {
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
