package store

import (
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

const sizeMigration = `
-- What images take on disk (size.go).
CREATE TABLE image_sizes ( -- of what is never shared
	image  TEXT PRIMARY KEY REFERENCES images ON DELETE CASCADE,
	bytes  INTEGER NOT NULL,
	inodes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE sized_trees (
	id     INTEGER PRIMARY KEY,
	digest TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE cohorts (
	id      INTEGER PRIMARY KEY,
	objects INTEGER NOT NULL,
	bytes   INTEGER NOT NULL
) STRICT;
CREATE TABLE cohort_trees (
	cohort INTEGER NOT NULL,
	tree   INTEGER NOT NULL,
	PRIMARY KEY (cohort, tree)
) STRICT, WITHOUT ROWID;
CREATE TABLE sized_objects (
	key    BLOB PRIMARY KEY, -- the first half of an object's
	cohort INTEGER NOT NULL,
	bytes  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sized_objects_cohort ON sized_objects (cohort);
`

// sized is the disk use of an image's own files, for putImage.
type sized struct{ bytes, inodes int64 }

// sizeImage enters a new image into the figures.
func (t *tx) sizeImage(d Digest, m *Manifest, own sized) error {
	z, err := t.sizing()
	if err != nil {
		return err
	}
	img := &sizedImage{digest: d, ownBytes: own.bytes, ownInodes: own.inodes}
	for _, p := range m.Parts {
		tree := z.trees[p.Tree]
		if tree == nil {
			if tree, err = t.sizeTree(p.Tree); err != nil {
				return fmt.Errorf("count tree %s: %w", p.Tree, err)
			}
		}
		img.has(tree)
	}
	if _, err := t.sql.Exec(`INSERT INTO image_sizes VALUES (?, ?, ?)`, d, own.bytes, own.inodes); err != nil {
		return err
	}
	z.enter(img)
	return nil
}

// sizing locks the data behind the figures until the end of the transaction, and loads it if
// needed.
func (t *tx) sizing() (*sizing, error) {
	z := &t.s.sizing
	if !t.sized {
		z.mu.Lock()
		t.sized = true
	}
	if !z.loaded {
		if err := z.load(t.sql, t.next.byDigest); err != nil {
			return nil, err
		}
	}
	return z, nil
}

// sizeTree counts the objects of a tree that is new to all images.
func (t *tx) sizeTree(d Digest) (*sizedTree, error) {
	z := &t.s.sizing
	r, err := t.sql.Exec(`INSERT INTO sized_trees (digest) VALUES (?)`, d)
	if err != nil {
		return nil, err
	}
	tree := &sizedTree{digest: d}
	if tree.id, err = r.LastInsertId(); err != nil {
		return nil, err
	}
	keys, err := t.s.disk.treeKeys(d)
	if err != nil {
		// The tree is damaged: an image without a figure is better than no image.
		t.s.log.Error("tree cannot be read: its size is not counted", "tree", d, "error", err)
		keys = nil
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)

	find, err := t.sql.Prepare(`SELECT cohort, bytes FROM sized_objects WHERE key = ?`)
	if err != nil {
		return nil, err
	}
	defer find.Close()
	put, err := t.sql.Prepare(`INSERT INTO sized_objects VALUES (?, ?, ?)
		ON CONFLICT (key) DO UPDATE SET cohort = excluded.cohort`)
	if err != nil {
		return nil, err
	}
	defer put.Close()

	type object struct {
		key   []byte
		bytes int64
	}
	moved := make(map[*cohort][]object)
	var fresh []object
	for _, key := range keys {
		o := object{key: sizeKey(key)}
		var id int64
		switch err := find.QueryRow(o.key).Scan(&id, &o.bytes); {
		case errors.Is(err, sql.ErrNoRows):
			if o.bytes, err = blocksAt(t.s.disk.objects, objectName(key, 0)); err != nil {
				return nil, err
			}
			fresh = append(fresh, o)
		case err != nil:
			return nil, err
		default:
			c := z.cohorts[id]
			if c == nil {
				return nil, fmt.Errorf("%w: no cohort %d", errCorrupt, id)
			}
			moved[c] = append(moved[c], o)
		}
	}
	bytes, err := blocksAt(t.s.disk.trees, d.hex()+".json")
	if err != nil {
		return nil, err
	}
	fresh = append(fresh, object{sizeKey(d.hex()), bytes}) // the manifest is a file, too

	z.trees[d], z.byID[tree.id] = tree, tree
	fill := func(c *cohort, objects []object) error {
		for _, o := range objects {
			if _, err := put.Exec(o.key, c.id, o.bytes); err != nil {
				return err
			}
			c.objects++
			c.bytes += o.bytes
		}
		return t.saveCohort(c)
	}
	only, err := t.newCohort([]*sizedTree{tree})
	if err == nil {
		err = fill(only, fresh)
	}
	if err != nil {
		return nil, err
	}
	for from, objects := range moved {
		if int64(len(objects)) == from.objects { // the whole cohort
			delete(z.bySet, from.set)
			from.add(tree)
			z.bySet[from.set] = from
			if _, err := t.sql.Exec(`INSERT INTO cohort_trees VALUES (?, ?)`, from.id, tree.id); err != nil {
				return nil, err
			}
			continue
		}
		to, err := t.newCohort(append(slices.Clone(from.trees), tree))
		if err != nil {
			return nil, err
		}
		to.images, to.numbers = from.images, from.numbers
		for _, o := range objects {
			from.objects--
			from.bytes -= o.bytes
		}
		if err := errors.Join(fill(to, objects), t.saveCohort(from)); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

// sizeKey shortens a key to 16 bytes: a collision is still practically impossible.
func sizeKey(key string) []byte {
	b, _ := hex.DecodeString(key[:32]) // keys are hexadecimal
	return b
}

// blocksAt returns the disk use of a file in bytes, 0 if the file is missing.
func blocksAt(dir *os.File, name string) (int64, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("stat %s: %w", name, err)
	}
	return st.Blocks * 512, nil
}

func (t *tx) newCohort(trees []*sizedTree) (*cohort, error) {
	r, err := t.sql.Exec(`INSERT INTO cohorts (objects, bytes) VALUES (0, 0)`)
	if err != nil {
		return nil, err
	}
	c := new(cohort)
	if c.id, err = r.LastInsertId(); err != nil {
		return nil, err
	}
	for _, tree := range trees {
		c.add(tree)
		if _, err := t.sql.Exec(`INSERT INTO cohort_trees VALUES (?, ?)`, c.id, tree.id); err != nil {
			return nil, err
		}
	}
	z := &t.s.sizing
	z.cohorts[c.id], z.bySet[c.set] = c, c
	return c, nil
}

func (t *tx) saveCohort(c *cohort) error {
	_, err := t.sql.Exec(`UPDATE cohorts SET objects = ?, bytes = ? WHERE id = ?`, c.objects, c.bytes, c.id)
	return err
}

// unsizeImage takes an image out of the figures. The image's row is gone, and with it the row of
// its own size.
func (t *tx) unsizeImage(d Digest) error {
	z, err := t.sizing()
	if err == nil {
		z.leave(d)
	}
	return err
}

// manyTrees is the number of unused trees from which a removal of an image forgets them, in a
// transaction of its own. A sweep forgets any number.
const manyTrees = 64

// forgetTrees forgets the trees without an image, unless they are fewer than least. On a failure
// the next sweep tries again.
func (m *metadata) forgetTrees(least int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	idle := 0
	m.sizing.mu.Lock()
	for _, t := range m.sizing.trees {
		if t.images == 0 {
			idle++
		}
	}
	m.sizing.mu.Unlock()
	if idle < least {
		return
	}
	err := m.updateLocked(false, func(t *tx) error {
		z, err := t.sizing()
		if err != nil {
			return err
		}
		for _, tree := range z.byID {
			if tree.images == 0 {
				if err := t.forgetTree(tree); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		m.log.Warn("sizes of removed images not dropped: the next sweep repeats the work", "error", err)
	}
}

func (t *tx) forgetTree(tree *sizedTree) error {
	z := &t.s.sizing
	delete(z.trees, tree.digest)
	delete(z.byID, tree.id)
	if _, err := t.sql.Exec(`DELETE FROM sized_trees WHERE id = ?`, tree.id); err != nil {
		return err
	}
	for _, c := range slices.Clone(tree.cohorts) {
		to := z.bySet[c.set-tree.mark()]
		if len(c.trees) > 1 && to == nil {
			// The other trees keep the cohort.
			delete(z.bySet, c.set)
			c.set -= tree.mark()
			z.bySet[c.set] = c
			c.trees = slices.DeleteFunc(c.trees, func(x *sizedTree) bool { return x == tree })
			if _, err := t.sql.Exec(`DELETE FROM cohort_trees WHERE cohort = ? AND tree = ?`, c.id, tree.id); err != nil {
				return err
			}
			continue
		}
		var err error
		if len(c.trees) == 1 {
			_, err = t.sql.Exec(`DELETE FROM sized_objects WHERE cohort = ?`, c.id)
		} else {
			to.objects += c.objects
			to.bytes += c.bytes
			if _, err = t.sql.Exec(`UPDATE sized_objects SET cohort = ? WHERE cohort = ?`, to.id, c.id); err == nil {
				err = t.saveCohort(to)
			}
		}
		if err == nil {
			err = t.dropCohort(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) dropCohort(c *cohort) error {
	z := &t.s.sizing
	delete(z.cohorts, c.id)
	delete(z.bySet, c.set)
	for _, tree := range c.trees {
		tree.cohorts = slices.DeleteFunc(tree.cohorts, func(x *cohort) bool { return x == c })
	}
	for _, q := range []string{`DELETE FROM cohorts WHERE id = ?`, `DELETE FROM cohort_trees WHERE cohort = ?`} {
		if _, err := t.sql.Exec(q, c.id); err != nil {
			return err
		}
	}
	return nil
}

// sizeExisting enters the images of a database from before sizes were counted.
func (t *tx) sizeExisting() error {
	type row struct {
		digest Digest
		Manifest
	}
	var rows []row
	err := eachOf(t.sql, `SELECT image, tree FROM image_parts ORDER BY image, position`, func(scan scanFunc) error {
		var d, tree Digest
		if err := scan(&d, &tree); err != nil {
			return err
		}
		if len(rows) == 0 || rows[len(rows)-1].digest != d {
			rows = append(rows, row{digest: d})
		}
		r := &rows[len(rows)-1]
		r.Parts = append(r.Parts, Part{Tree: tree})
		return nil
	})
	if err != nil {
		return err
	}
	for i := range rows {
		var own sized
		var err error
		own.bytes, own.inodes, err = ownSize(filepath.Join(t.s.disk.dir, "images", rows[i].digest.hex()))
		// reconcile drops an image without a directory.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := t.sizeImage(rows[i].digest, &rows[i].Manifest, own); err != nil {
			return err
		}
	}
	return nil
}
