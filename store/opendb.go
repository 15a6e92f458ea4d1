package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// openDB opens the database and loads it. A lost or unreadable database is rebuilt from the
// other files on disk.
func (m *metadata) openDB() error {
	err := m.loadDB()
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
			err = fmt.Errorf("%w: %w", errCorrupt, err)
		}
	}
	if !errors.Is(err, errCorrupt) {
		return dbError(err)
	}
	if m.db != nil {
		_ = m.db.Close()
		m.db = nil
	}
	aside := dbName + ".corrupt-" + time.Now().UTC().Format("20060102T150405.000000000")
	m.log.Error("database is corrupt: rebuilding it from the manifests", "error", err, "moved_to", aside)
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		err := unix.Renameat(int(m.disk.root.Fd()), dbName+suffix, int(m.disk.root.Fd()), aside+suffix)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("move corrupt database aside: %w", err)
		}
	}
	return m.loadDB()
}

func (m *metadata) loadDB() error {
	if err := m.createDB(); err != nil {
		return err
	}
	if err := checkLog(int(m.disk.root.Fd()), dbName+"-wal"); err != nil {
		return err
	}
	path := filepath.Join(m.disk.dir, dbName)
	var err error
	if m.db, err = openDB(path); err != nil {
		return err
	}
	var check string
	if err := m.db.QueryRow(`PRAGMA quick_check(1)`).Scan(&check); err != nil {
		return err
	}
	if check != "ok" {
		return fmt.Errorf("%w: %s", errCorrupt, check)
	}
	var version int
	if err := m.db.QueryRow(`PRAGMA user_version`).Scan(&version); err != nil {
		return err
	}
	if version > len(migrations) {
		return fmt.Errorf("%s has version %d, fre knows versions up to %d: use the newer FRE", path, version, len(migrations))
	}
	if err := m.migrate(version); err != nil {
		return err
	}
	if version == 0 {
		return nil // migrate has filled and published it
	}
	return m.publishDB()
}

// createDB creates the file of the database if it is missing. The file is private: manifests hold
// functions' environments.
func (m *metadata) createDB() error {
	path := filepath.Join(m.disk.dir, dbName)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		// SQLite would replay the log of the lost database into the new one.
		for _, suffix := range []string{"-wal", "-shm", "-journal"} {
			if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	f, err := openat(int(m.disk.root.Fd()), dbName, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), m.disk.root.Sync())
}

// publishDB loads the open database and publishes its first snapshot.
func (m *metadata) publishDB() error {
	snap, err := readSnapshot(m.db)
	if err != nil {
		return err
	}
	snap.imagesGen = m.changes.Generation()
	m.sizing.mu.Lock()
	defer m.sizing.mu.Unlock()
	if err := m.sizing.load(m.db, snap.byDigest); err != nil {
		return err
	}
	snap.sizes = m.sizing.publish(nil)
	m.snap.Store(snap)
	return nil
}

// migrate updates the schema in one transaction. In the same transaction it fills a new database
// from the manifests on disk.
func (m *metadata) migrate(version int) error {
	if version == len(migrations) {
		return nil
	}
	empty := newSnapshot()
	empty.imagesGen = m.changes.Generation()
	m.snap.Store(empty)
	return m.update(false, func(t *tx) error {
		for _, m := range migrations[version:] {
			if _, err := t.sql.Exec(m); err != nil {
				return err
			}
		}
		if _, err := t.sql.Exec(fmt.Sprintf(`PRAGMA user_version = %d`, len(migrations))); err != nil {
			return err
		}
		switch {
		case version == 0:
			return m.rebuild(t)
		case version < sizedSince: // such a store may lack hidden links, whose directories count
			if err := t.linkExisting(); err != nil {
				return err
			}
			return t.sizeExisting()
		}
		return nil
	})
}

// sizedSince is the first user_version with sizes of images.
const sizedSince = 3

// linkExisting adds the hidden links of the images of an old database. After a crash before the
// end of the transaction, the next Open repeats the call.
func (t *tx) linkExisting() error {
	trees := keptTrees{read: t.s.disk.readTree}
	err := eachRow(t.sql, `SELECT digest, manifest FROM images`, func(scan scanFunc) error {
		var d Digest
		var manifest string
		if err := scan(&d, &manifest); err != nil {
			return err
		}
		var m Manifest
		if err := json.Unmarshal([]byte(manifest), &m); err != nil {
			return fmt.Errorf("manifest of image %s: %w", d, err)
		}
		return t.s.disk.linkMissingHidden(d, m, trees.tree)
	})
	return errors.Join(err, t.s.disk.syncfs())
}

// sizeExisting enters the images of a database from before sizes were counted.
func (t *tx) sizeExisting() error {
	type row struct {
		digest Digest
		Manifest
	}
	var rows []row
	err := eachRow(t.sql, `SELECT image, tree FROM image_parts ORDER BY image, position`, func(scan scanFunc) error {
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
	z, err := t.lockSizes()
	if err != nil {
		return err
	}
	for i := range rows {
		var own sized
		own.bytes, own.inodes, err = ownSize(filepath.Join(t.s.disk.dir, "images", rows[i].digest.hex()))
		// reconcile drops an image without a directory.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := z.addImage(rows[i].digest, &rows[i].Manifest, own); err != nil {
			return err
		}
	}
	return nil
}

// rebuild fills an empty database from index.json and the images on disk.
func (m *metadata) rebuild(t *tx) error {
	x := m.disk.readIndex()
	images, err := m.disk.readImages(x)
	if err != nil {
		return err
	}
	if err := t.rebuildImages(x, images); err != nil {
		return err
	}
	for _, n := range x.Tenants {
		if _, err := t.putTenant(n); err != nil {
			return err
		}
	}
	return t.rebuildFunctions(x)
}

// rebuildImages enters the images with the names of the index.
func (t *tx) rebuildImages(x indexContent, images []imageOnDisk) error {
	known := make(map[Digest]indexed)
	for _, i := range x.Images {
		known[i.Digest] = i
	}
	for _, img := range images {
		i, ok := known[img.Digest]
		if ok {
			img.Created = i.Created
		}
		img.Foreign = i.Foreign || !ok // the maker of an image missing in the index is unknown
		if i.Tagged {
			i.Names = append(i.Names, img.Built)
		}
		if err := t.rebuildImage(img, i.Names, i.Remotes); err != nil {
			return err
		}
	}
	return t.nameUnknown(images, known)
}

// nameUnknown gives each image missing in the index the name of its manifest, unless that name is
// taken or a newer such image has it.
func (t *tx) nameUnknown(images []imageOnDisk, known map[Digest]indexed) error {
	newest := make(map[tag]*Image)
	for _, img := range images {
		k := splitName(img.Built)
		if _, ok := known[img.Digest]; ok || k == (tag{}) {
			continue
		}
		if old := newest[k]; old == nil || old.Created.Before(img.Created) {
			newest[k] = img.Image
		}
	}
	for k, img := range newest {
		if _, taken := t.next.tags[k]; taken {
			continue
		}
		if err := t.putTag(k, img.Digest); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) rebuildImage(img imageOnDisk, names, remotes []string) error {
	if err := t.putImage(img.Image, img.manifest, img.own); err != nil {
		return err
	}
	for _, name := range names {
		if err := t.putTag(splitName(name), img.Digest); err != nil {
			return err
		}
	}
	for _, remote := range remotes {
		if err := t.putRemote(remote, img.Digest); err != nil {
			return err
		}
	}
	return nil
}

// rebuildFunctions enters the functions whose image is still there.
func (t *tx) rebuildFunctions(x indexContent) error {
	for _, f := range x.Functions {
		if t.next.byDigest[f.Image] == nil {
			t.s.log.Error("image of a function lost: function dropped", "function", f.Name, "image", f.Image)
			continue
		}
		for _, d := range f.Images {
			if t.next.byDigest[d] == nil {
				t.s.log.Error("image of an earlier revision of a function lost", "function", f.Name, "image", d)
				f = f.without(d)
			}
		}
		if err := t.putFunction(f); err != nil {
			return err
		}
	}
	return nil
}

// readImages reads all images from disk in the order of their creation: first the images in the
// index, then the others by time.
func (k *disk) readImages(x indexContent) ([]imageOnDisk, error) {
	names, err := readNames(k.images)
	if err != nil {
		return nil, err
	}
	place := make(map[Digest]int, len(x.Images))
	for i, known := range x.Images {
		place[known.Digest] = len(x.Images) - i
	}
	var images []imageOnDisk
	trees := keptTrees{read: k.readTree}
	for _, name := range names {
		img, manifest, err := k.readImage(name)
		var own sized
		if err == nil {
			if err := k.linkMissingHidden(img.Digest, img.Manifest, trees.tree); err != nil {
				return nil, err
			}
			own.bytes, own.inodes, err = ownSize(filepath.Join(k.dir, "images", name))
		}
		if err != nil {
			k.log.Error("image cannot be rebuilt: dropped", "image", name, "error", err)
			continue
		}
		images = append(images, imageOnDisk{img, manifest, own})
	}
	slices.SortFunc(images, func(a, b imageOnDisk) int {
		pa, pb := place[a.Digest], place[b.Digest]
		if (pa == 0) != (pb == 0) {
			return cmp.Compare(pb, pa)
		}
		return cmp.Or(cmp.Compare(pa, pb), a.Created.Compare(b.Created), cmp.Compare(b.Digest, a.Digest))
	})
	return images, k.syncfs()
}

type imageOnDisk struct {
	*Image
	manifest []byte
	own      sized
}

// readImage reads images/<name>: the manifest, and the figures by walking rootfs, as only a
// rebuild does.
func (k *disk) readImage(name string) (*Image, []byte, error) {
	dir := filepath.Join(k.dir, "images", name)
	b, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return nil, nil, err
	}
	img := &Image{Digest: sumDigest(b)}
	if img.Digest.hex() != name {
		return nil, nil, fmt.Errorf("manifest does not match digest")
	}
	if err := decodeStrict(b, &img.Manifest); err != nil {
		return nil, nil, err
	}
	img.Built = tag{img.Name, img.Version}.String()
	img.setNames(nil) // until a tag restores them
	st, err := os.Lstat(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return nil, nil, err
	}
	img.Created = st.ModTime().UTC()
	seen := map[uint64]bool{} // inodes
	err = filepath.WalkDir(filepath.Join(dir, "rootfs"), func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		img.Files++
		if inode, ok := st.Sys().(*syscall.Stat_t); !ok || !seen[inode.Ino] {
			img.Size += st.Size()
			if ok {
				seen[inode.Ino] = true
			}
		}
		return nil
	})
	return img, b, err
}
