package store

import (
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// sizeTx changes the figures and their rows together, within a transaction that holds sizing.mu.
type sizeTx struct {
	*sizing
	sql  *sql.Tx
	disk *disk
	log  *slog.Logger
}

// addImage enters a new image into the figures.
func (z *sizeTx) addImage(d Digest, m *Manifest, own sized) error {
	img := &sizedImage{digest: d, ownBytes: own.bytes, ownInodes: own.inodes}
	for _, p := range m.Parts {
		tree := z.trees[p.Tree]
		if tree == nil {
			var err error
			if tree, err = z.addTree(p.Tree); err != nil {
				return fmt.Errorf("count tree %s: %w", p.Tree, err)
			}
		}
		img.has(tree)
	}
	if _, err := z.sql.Exec(`INSERT INTO image_sizes VALUES (?, ?, ?)`, d, own.bytes, own.inodes); err != nil {
		return err
	}
	z.enter(img)
	return nil
}

// sizedObject is a row of sized_objects without its cohort.
type sizedObject struct {
	key   []byte
	bytes int64
}

// addTree counts the objects of a tree that is new to all images.
func (z *sizeTx) addTree(d Digest) (*sizedTree, error) {
	r, err := z.sql.Exec(`INSERT INTO sized_trees (digest) VALUES (?)`, d)
	if err != nil {
		return nil, err
	}
	tree := &sizedTree{digest: d}
	if tree.id, err = r.LastInsertId(); err != nil {
		return nil, err
	}
	fresh, shared, err := z.locate(d)
	if err != nil {
		return nil, err
	}
	put, err := z.sql.Prepare(`INSERT INTO sized_objects VALUES (?, ?, ?)
		ON CONFLICT (key) DO UPDATE SET cohort = excluded.cohort`)
	if err != nil {
		return nil, err
	}
	defer put.Close()

	z.trees[d], z.byID[tree.id] = tree, tree
	only, err := z.newCohort([]*sizedTree{tree})
	if err == nil {
		err = z.fillCohort(put, only, fresh)
	}
	if err != nil {
		return nil, err
	}
	for from, objects := range shared {
		if err := z.share(put, from, objects, tree); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

// locate returns the objects of a tree: fresh are the objects that no image has, among them the
// tree's manifest, and shared the others by their cohorts.
func (z *sizeTx) locate(d Digest) (fresh []sizedObject, shared map[*cohort][]sizedObject, err error) {
	keys, err := z.disk.treeKeys(d)
	if err != nil {
		// The tree is damaged: an image without a figure is better than no image.
		z.log.Error("tree cannot be read: its size is not counted", "tree", d, "error", err)
		keys = nil
	}
	slices.Sort(keys)
	find, err := z.sql.Prepare(`SELECT cohort, bytes FROM sized_objects WHERE key = ?`)
	if err != nil {
		return nil, nil, err
	}
	defer find.Close()
	shared = make(map[*cohort][]sizedObject)
	for _, key := range slices.Compact(keys) {
		o := sizedObject{key: sizeKey(key)}
		var id int64
		switch err := find.QueryRow(o.key).Scan(&id, &o.bytes); {
		case errors.Is(err, sql.ErrNoRows):
			if o.bytes, err = blocksAt(z.disk.objects, objectName(key, 0)); err != nil {
				return nil, nil, err
			}
			fresh = append(fresh, o)
		case err != nil:
			return nil, nil, err
		default:
			c := z.cohorts[id]
			if c == nil {
				return nil, nil, fmt.Errorf("%w: no cohort %d", errCorrupt, id)
			}
			shared[c] = append(shared[c], o)
		}
	}
	bytes, err := blocksAt(z.disk.trees, d.hex()+".json")
	return append(fresh, sizedObject{sizeKey(d.hex()), bytes}), shared, err
}

// fillCohort moves objects into a cohort; put writes a row.
func (z *sizeTx) fillCohort(put *sql.Stmt, c *cohort, objects []sizedObject) error {
	for _, o := range objects {
		if _, err := put.Exec(o.key, c.id, o.bytes); err != nil {
			return err
		}
		c.objects++
		c.bytes += o.bytes
	}
	return z.saveCohort(c)
}

// share moves objects from their cohort to the cohort that the new tree has, too.
func (z *sizeTx) share(put *sql.Stmt, from *cohort, objects []sizedObject, tree *sizedTree) error {
	if int64(len(objects)) == from.objects { // the whole cohort
		delete(z.bySet, from.set)
		from.add(tree)
		z.bySet[from.set] = from
		_, err := z.sql.Exec(`INSERT INTO cohort_trees VALUES (?, ?)`, from.id, tree.id)
		return err
	}
	to, err := z.newCohort(append(slices.Clone(from.trees), tree))
	if err != nil {
		return err
	}
	to.images, to.numbers = from.images, from.numbers
	for _, o := range objects {
		from.objects--
		from.bytes -= o.bytes
	}
	return errors.Join(z.fillCohort(put, to, objects), z.saveCohort(from))
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

func (z *sizeTx) newCohort(trees []*sizedTree) (*cohort, error) {
	r, err := z.sql.Exec(`INSERT INTO cohorts (objects, bytes) VALUES (0, 0)`)
	if err != nil {
		return nil, err
	}
	c := new(cohort)
	if c.id, err = r.LastInsertId(); err != nil {
		return nil, err
	}
	for _, tree := range trees {
		c.add(tree)
		if _, err := z.sql.Exec(`INSERT INTO cohort_trees VALUES (?, ?)`, c.id, tree.id); err != nil {
			return nil, err
		}
	}
	z.cohorts[c.id], z.bySet[c.set] = c, c
	return c, nil
}

func (z *sizeTx) saveCohort(c *cohort) error {
	_, err := z.sql.Exec(`UPDATE cohorts SET objects = ?, bytes = ? WHERE id = ?`, c.objects, c.bytes, c.id)
	return err
}

func (z *sizeTx) forgetTree(tree *sizedTree) error {
	delete(z.trees, tree.digest)
	delete(z.byID, tree.id)
	if _, err := z.sql.Exec(`DELETE FROM sized_trees WHERE id = ?`, tree.id); err != nil {
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
			if _, err := z.sql.Exec(`DELETE FROM cohort_trees WHERE cohort = ? AND tree = ?`, c.id, tree.id); err != nil {
				return err
			}
			continue
		}
		var err error
		if len(c.trees) == 1 {
			_, err = z.sql.Exec(`DELETE FROM sized_objects WHERE cohort = ?`, c.id)
		} else {
			to.objects += c.objects
			to.bytes += c.bytes
			if _, err = z.sql.Exec(`UPDATE sized_objects SET cohort = ? WHERE cohort = ?`, to.id, c.id); err == nil {
				err = z.saveCohort(to)
			}
		}
		if err == nil {
			err = z.dropCohort(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (z *sizeTx) dropCohort(c *cohort) error {
	delete(z.cohorts, c.id)
	delete(z.bySet, c.set)
	for _, tree := range c.trees {
		tree.cohorts = slices.DeleteFunc(tree.cohorts, func(x *cohort) bool { return x == c })
	}
	for _, q := range []string{`DELETE FROM cohorts WHERE id = ?`, `DELETE FROM cohort_trees WHERE cohort = ?`} {
		if _, err := z.sql.Exec(q, c.id); err != nil {
			return err
		}
	}
	return nil
}
