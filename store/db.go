package store

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

const dbName = "fre.db"

// migrations[i] brings the database from user_version i to i+1. Never change
// one that has been released: append.
var migrations = [...]string{`
CREATE TABLE images (
	digest   TEXT PRIMARY KEY,
	manifest TEXT NOT NULL,
	created  INTEGER NOT NULL, -- nanoseconds since 1970
	size     INTEGER NOT NULL,
	files    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE image_parts (
	image    TEXT NOT NULL REFERENCES images ON DELETE CASCADE,
	position INTEGER NOT NULL,
	tree     TEXT NOT NULL,
	PRIMARY KEY (image, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE tags (
	name    TEXT NOT NULL,
	version TEXT NOT NULL,
	image   TEXT NOT NULL UNIQUE REFERENCES images ON DELETE CASCADE,
	PRIMARY KEY (name, version)
) STRICT, WITHOUT ROWID;
CREATE TABLE parts (
	key  TEXT PRIMARY KEY,
	part TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE functions (
	name     TEXT PRIMARY KEY,
	image    TEXT NOT NULL REFERENCES images,
	spec     TEXT NOT NULL,
	deployed INTEGER NOT NULL -- nanoseconds since 1970
) STRICT, WITHOUT ROWID;
CREATE TABLE tenants (
	id   INTEGER PRIMARY KEY AUTOINCREMENT, -- AUTOINCREMENT: never reused
	name TEXT NOT NULL UNIQUE
) STRICT;
`, `
-- An image may have several names.
CREATE TABLE names (
	name    TEXT NOT NULL,
	version TEXT NOT NULL,
	image   TEXT NOT NULL REFERENCES images ON DELETE CASCADE,
	PRIMARY KEY (name, version)
) STRICT, WITHOUT ROWID;
INSERT INTO names SELECT name, version, image FROM tags;
DROP TABLE tags;
ALTER TABLE names RENAME TO tags;
CREATE INDEX tags_image ON tags (image);
`, sizeMigration, `
-- The order of images is that in which they came, whatever the clock said.
ALTER TABLE images ADD COLUMN serial INTEGER NOT NULL DEFAULT 0;
UPDATE images SET serial = o.n
	FROM (SELECT digest AS d, row_number() OVER (ORDER BY created, digest DESC) AS n FROM images) AS o
	WHERE digest = o.d;
`, `
CREATE TABLE image_uses (
	image TEXT PRIMARY KEY REFERENCES images ON DELETE CASCADE,
	used  INTEGER NOT NULL -- nanoseconds since 1970
) STRICT, WITHOUT ROWID;
`, `
-- What registries call images: the digests are those of manifests or indexes there.
CREATE TABLE remotes (
	name   TEXT NOT NULL,
	digest TEXT NOT NULL,
	image  TEXT NOT NULL REFERENCES images ON DELETE CASCADE,
	PRIMARY KEY (name, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX remotes_image ON remotes (image);
`}

// sizedSince is the first version of the database that knows what images take.
const sizedSince = 3

// snapshot is all metadata, immutable once published.
type snapshot struct {
	byDigest  map[Digest]*Image
	tags      map[tag]Digest
	remotes   map[string]Digest // by "name@sha256:…"
	parts     map[string]Part
	functions map[string]*Function
	tenants   map[string]Tenant

	images       []*Image    // the last that came first
	functionList []*Function // by name

	serial    int64  // the highest an image had
	imagesGen uint64 // generation of the last change of images
	sizes     *Sizes
}

type tag struct{ name, version string }

func newSnapshot() *snapshot {
	return &snapshot{
		byDigest:  make(map[Digest]*Image),
		tags:      make(map[tag]Digest),
		remotes:   make(map[string]Digest),
		parts:     make(map[string]Part),
		functions: make(map[string]*Function),
		tenants:   make(map[string]Tenant),
		sizes:     new(Sizes),
	}
}

func (n *snapshot) clone() *snapshot {
	return &snapshot{
		byDigest:  maps.Clone(n.byDigest),
		tags:      maps.Clone(n.tags),
		remotes:   maps.Clone(n.remotes),
		parts:     maps.Clone(n.parts),
		functions: maps.Clone(n.functions),
		tenants:   maps.Clone(n.tenants),

		images: n.images, functionList: n.functionList, // replaced where they change
		serial: n.serial, imagesGen: n.imagesGen, sizes: n.sizes,
	}
}

// tx changes database and next snapshot together, and notes the changes of
// images. (Functions are listed by the engine, which adds theirs.)
type tx struct {
	s       *Store
	sized   bool // sizing.mu is held
	sql     *sql.Tx
	next    *snapshot
	changes []Change
	index   []indexLine // what index.json has to learn
	touched []Digest    // images of which it has to learn
	own     bool        // next.images is not the last snapshot's any more
}

// ownImages is next.images to be changed in place.
func (t *tx) ownImages() *[]*Image {
	if !t.own {
		t.own = true
		t.next.images = append(make([]*Image, 0, len(t.next.images)+1), t.next.images...)
	}
	return &t.next.images
}

// replaceImage shows an image as it is now.
func (t *tx) replaceImage(old, img *Image) {
	t.next.byDigest[img.Digest] = img
	list := *t.ownImages()
	list[slices.Index(list, old)] = img
	t.touched = append(t.touched, img.Digest)
}

// indexLines is what index.json has to learn of the transaction.
func (t *tx) indexLines() []indexLine {
	lines := t.index
	slices.Sort(t.touched)
	for _, d := range slices.Compact(t.touched) {
		if img := t.next.byDigest[d]; img != nil {
			lines = append(lines, indexLine{Image: &indexed{Digest: d, Created: img.Created, Names: img.Names, Remotes: img.Remotes}})
		} else {
			lines = append(lines, indexLine{NoImage: d})
		}
	}
	return lines
}

func (t *tx) noteImage(a ChangeAction, d Digest, name string) {
	t.changes = append(t.changes, Change{Kind: ChangeImage, Action: a, ID: string(d), Name: name})
}

// update runs change in one transaction and publishes the result. With index it
// writes the index first: one ahead of the database harms nothing, one behind
// could hand out a tenant's id twice.
func (s *Store) update(index bool, change func(*tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.updateLocked(index, change)
}

func (s *Store) updateLocked(index bool, change func(*tx) error) error {
	t := &tx{s: s, next: s.snap.Load().clone()}
	var err error
	if t.sql, err = s.db.Begin(); err != nil {
		return dbError(err)
	}
	committed := false
	defer func() {
		_ = t.sql.Rollback()
		if t.sized {
			if !committed {
				if err := s.sizing.load(s.db, s.snap.Load().byDigest); err != nil {
					s.log.Error("cannot load the sizes of images: the next change does", "error", err)
				}
			}
			s.sizing.mu.Unlock()
		}
	}()
	if err := change(t); err != nil {
		return dbError(err)
	}
	if t.sized {
		t.next.sizes = s.sizing.publish(t.next.sizes)
	}
	if index {
		if err := s.index.add(t.indexLines(), t.next); err != nil {
			return fmt.Errorf("write index: %w", err)
		}
		defer s.index.settle(t.next)
	}
	if err := s.failpoint("before commit"); err != nil {
		return err
	}
	if err := t.sql.Commit(); err != nil {
		return dbError(err)
	}
	committed = true
	s.changes.publish(t.changes, func(generation uint64) {
		if len(t.changes) > 0 {
			t.next.imagesGen = generation
		}
		s.snap.Store(t.next)
	})
	return s.failpoint("after commit")
}

// updateFreeing is update for removals. A disk too full for it gets the room
// of the reserve.
func (s *Store) updateFreeing(index bool, change func(*tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.updateFreeingLocked(index, change)
}

func (s *Store) updateFreeingLocked(index bool, change func(*tx) error) error {
	err := s.updateLocked(index, change)
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	if err := unix.Unlinkat(int(s.root.Fd()), reserveName, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give up reserve: %w", err)
	}
	return s.updateLocked(index, change)
}

// dbError gives SQLite's "disk full" its errno back.
func dbError(err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code()&0xff == sqlite3.SQLITE_FULL {
		return fmt.Errorf("database: %w: %w", unix.ENOSPC, err)
	}
	return err
}

func (t *tx) putImage(img *Image, manifest []byte, own sized) error {
	t.next.serial++
	_, err := t.sql.Exec(`INSERT INTO images (digest, manifest, created, size, files, serial) VALUES (?, ?, ?, ?, ?, ?)`,
		img.Digest, string(manifest), img.Created.UnixNano(), img.Size, img.Files, t.next.serial)
	if err != nil {
		return err
	}
	for i, p := range img.Parts {
		if _, err := t.sql.Exec(`INSERT INTO image_parts VALUES (?, ?, ?)`, img.Digest, i, p.Tree); err != nil {
			return err
		}
	}
	if err := t.sizeImage(img.Digest, &img.Manifest, own); err != nil {
		return err
	}
	t.next.byDigest[img.Digest] = img
	list := t.ownImages()
	*list = slices.Insert(*list, 0, img)
	t.touched = append(t.touched, img.Digest)
	t.noteImage(ActionCreate, img.Digest, "")
	return nil
}

// putTag moves the name to the image; the one that had it goes on without.
func (t *tx) putTag(k tag, d Digest) error {
	if _, err := t.sql.Exec(`INSERT INTO tags VALUES (?, ?, ?)
		ON CONFLICT (name, version) DO UPDATE SET image = excluded.image`, k.name, k.version, d); err != nil {
		return err
	}
	if old := t.next.tags[k]; old != "" && old != d {
		t.noteImage(ActionUntag, old, k.String())
	}
	t.unname(k)
	t.next.tags[k] = d
	if old := t.next.byDigest[d]; old != nil {
		img := *old
		img.setNames(append(slices.Clone(old.Names), k.String()))
		t.replaceImage(old, &img)
	}
	t.noteImage(ActionTag, d, k.String())
	return nil
}

func (t *tx) removeTag(k tag) error {
	if _, err := t.sql.Exec(`DELETE FROM tags WHERE name = ? AND version = ?`, k.name, k.version); err != nil {
		return err
	}
	if d := t.next.tags[k]; d != "" {
		t.noteImage(ActionUntag, d, k.String())
	}
	t.unname(k)
	return nil
}

// unname takes a name off the image that has it.
func (t *tx) unname(k tag) {
	d := t.next.tags[k]
	delete(t.next.tags, k)
	if old := t.next.byDigest[d]; old != nil {
		img := *old
		img.setNames(slices.DeleteFunc(slices.Clone(old.Names), func(name string) bool { return name == k.String() }))
		t.replaceImage(old, &img)
	}
}

// putRemote moves what a registry calls an image to that one.
func (t *tx) putRemote(remote string, d Digest) error {
	name, digest, _ := strings.Cut(remote, "@")
	if _, err := t.sql.Exec(`INSERT INTO remotes VALUES (?, ?, ?)
		ON CONFLICT (name, digest) DO UPDATE SET image = excluded.image`, name, digest, d); err != nil {
		return err
	}
	t.forgetRemote(remote)
	t.next.remotes[remote] = d
	if old := t.next.byDigest[d]; old != nil {
		img := *old
		img.Remotes = append(slices.Clone(old.Remotes), remote)
		slices.Sort(img.Remotes)
		t.replaceImage(old, &img)
	}
	t.noteImage(ActionTag, d, remote)
	return nil
}

func (t *tx) removeRemote(remote string) error {
	name, digest, _ := strings.Cut(remote, "@")
	if _, err := t.sql.Exec(`DELETE FROM remotes WHERE name = ? AND digest = ?`, name, digest); err != nil {
		return err
	}
	t.forgetRemote(remote)
	return nil
}

// forgetRemote takes it off the image that has it.
func (t *tx) forgetRemote(remote string) {
	d := t.next.remotes[remote]
	if d == "" {
		return
	}
	delete(t.next.remotes, remote)
	if old := t.next.byDigest[d]; old != nil {
		img := *old
		img.Remotes = slices.DeleteFunc(slices.Clone(old.Remotes), func(r string) bool { return r == remote })
		t.replaceImage(old, &img)
	}
	t.noteImage(ActionUntag, d, remote)
}

func (t *tx) removeImage(d Digest) error {
	if _, err := t.sql.Exec(`DELETE FROM images WHERE digest = ?`, d); err != nil {
		return err
	}
	if err := t.unsizeImage(d); err != nil {
		return err
	}
	if old := t.next.byDigest[d]; old != nil {
		for _, name := range old.Names {
			delete(t.next.tags, splitName(name))
			t.noteImage(ActionUntag, d, name)
		}
		for _, remote := range old.Remotes {
			delete(t.next.remotes, remote)
			t.noteImage(ActionUntag, d, remote)
		}
		list := t.ownImages()
		i := slices.Index(*list, old)
		*list = slices.Delete(*list, i, i+1)
	}
	delete(t.next.byDigest, d)
	t.touched = append(t.touched, d)
	t.noteImage(ActionDelete, d, "")
	return nil
}

// dropImage removes an image that is gone with the functions that need it.
func (t *tx) dropImage(d Digest) error {
	if _, err := t.sql.Exec(`DELETE FROM functions WHERE image = ?`, d); err != nil {
		return err
	}
	for _, f := range t.next.functionList {
		if f.Image == d {
			t.showFunction(f.Name, nil)
		}
	}
	return t.removeImage(d)
}

func (t *tx) putPart(key string, p Part) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = t.sql.Exec(`INSERT INTO parts VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET part = excluded.part`, key, string(b))
	t.next.parts[key] = p
	return err
}

func (t *tx) removePart(key string) error {
	_, err := t.sql.Exec(`DELETE FROM parts WHERE key = ?`, key)
	delete(t.next.parts, key)
	return err
}

func (t *tx) putFunction(f *Function) error {
	_, err := t.sql.Exec(`INSERT INTO functions VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE
		SET image = excluded.image, spec = excluded.spec, deployed = excluded.deployed`,
		f.Name, f.Image, string(f.Spec), f.Deployed.UnixNano())
	t.showFunction(f.Name, f)
	return err
}

func (t *tx) removeFunction(name string) error {
	_, err := t.sql.Exec(`DELETE FROM functions WHERE name = ?`, name)
	t.showFunction(name, nil)
	return err
}

// showFunction shows f under its name, or nothing where it is nil.
func (t *tx) showFunction(name string, f *Function) {
	list := slices.Clone(t.next.functionList)
	i, found := slices.BinarySearchFunc(list, name, func(f *Function, name string) int { return strings.Compare(f.Name, name) })
	switch {
	case f == nil && found:
		list = slices.Delete(list, i, i+1)
	case f != nil && found:
		list[i] = f
	case f != nil:
		list = slices.Insert(list, i, f)
	}
	t.next.functionList = list
	if f != nil {
		t.next.functions[name] = f
		t.index = append(t.index, indexLine{Function: f})
	} else {
		delete(t.next.functions, name)
		t.index = append(t.index, indexLine{NoFunction: name})
	}
}

// putTenant enters a tenant; ID 0 asks for the next one.
func (t *tx) putTenant(n Tenant) (Tenant, error) {
	id := sql.NullInt64{Int64: int64(n.ID), Valid: n.ID != 0}
	r, err := t.sql.Exec(`INSERT INTO tenants VALUES (?, ?)`, id, n.Name)
	if err != nil {
		return Tenant{}, err
	}
	last, err := r.LastInsertId()
	if err != nil {
		return Tenant{}, err
	}
	n.ID = uint32(last)
	t.next.tenants[n.Name] = n
	t.index = append(t.index, indexLine{Tenant: &n})
	return n, nil
}

// openDB opens the database and loads it. One that is lost or not readable as
// a database is made anew from what else is on disk.
func (s *Store) openDB() error {
	err := s.loadDB()
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
			err = errCorrupt
		}
	}
	if !errors.Is(err, errCorrupt) {
		return dbError(err)
	}
	_ = s.db.Close()
	s.db = nil
	aside := dbName + ".corrupt-" + time.Now().UTC().Format("20060102T150405.000000000")
	s.log.Error("database is corrupt: rebuilding it from the manifests", "moved_to", aside)
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		err := unix.Renameat(int(s.root.Fd()), dbName+suffix, int(s.root.Fd()), aside+suffix)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("move corrupt database aside: %w", err)
		}
	}
	return s.loadDB()
}

var errCorrupt = errors.New("database is corrupt")

// openDB opens the database at path, made if it is not there, as the store uses
// it. The returned one must be closed even beside an error, where it is not nil.
func openDB(path string) (*sql.DB, error) {
	// EXCLUSIVE: the flock keeps others out, and without it the WAL's index would
	// be a mapped file, which a full disk has no room for. It must come before
	// the first access, so journal_mode is not among these: the driver sorts them.
	pragmas := url.Values{"_pragma": {"locking_mode(EXCLUSIVE)", "synchronous(FULL)", "foreign_keys(1)"}}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+pragmas.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	var mode string
	if err := db.QueryRow(`PRAGMA journal_mode = WAL`).Scan(&mode); err != nil {
		return db, err
	}
	if mode != "wal" {
		return db, fmt.Errorf("%s: journal mode is %q, not wal", path, mode)
	}
	return db, nil
}

func (s *Store) loadDB() error {
	path := filepath.Join(s.dir, dbName)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		// A log whose database is lost would be replayed into the new one.
		for _, suffix := range []string{"-wal", "-shm", "-journal"} {
			if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	// Made here so that it is private: manifests hold functions' environments.
	f, err := openat(int(s.root.Fd()), dbName, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Close(), s.root.Sync()); err != nil {
		return err
	}
	if s.db, err = openDB(path); err != nil {
		return err
	}
	var check string
	if err := s.db.QueryRow(`PRAGMA quick_check(1)`).Scan(&check); err != nil {
		return err
	}
	if check != "ok" {
		return fmt.Errorf("%w: %s", errCorrupt, check)
	}
	var version int
	if err := s.db.QueryRow(`PRAGMA user_version`).Scan(&version); err != nil {
		return err
	}
	if version > len(migrations) {
		return fmt.Errorf("%s has version %d, this program knows up to %d: use the FRE that made it", path, version, len(migrations))
	}
	if err := s.migrate(version); err != nil {
		return err
	}
	if version == 0 {
		return nil // migrate has filled and published it
	}
	snap, err := s.readSnapshot()
	if err != nil {
		return err
	}
	snap.imagesGen = s.changes.Generation()
	s.sizing.mu.Lock()
	defer s.sizing.mu.Unlock()
	if err := s.sizing.load(s.db, snap.byDigest); err != nil {
		return err
	}
	snap.sizes = s.sizing.publish(nil)
	s.snap.Store(snap)
	return nil
}

// migrate brings the schema up to date, one transaction for all. A new database
// is filled from the manifests on disk in the same one.
func (s *Store) migrate(version int) error {
	if version == len(migrations) {
		return nil
	}
	empty := newSnapshot()
	empty.imagesGen = s.changes.Generation()
	s.snap.Store(empty)
	return s.update(false, func(t *tx) error {
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
			return s.rebuild(t)
		case version < sizedSince: // and maybe from before hidden links, whose directories count
			if err := t.linkExisting(); err != nil {
				return err
			}
			return t.sizeExisting()
		}
		return nil
	})
}

// linkExisting gives the images of an old database their hidden links. A crash
// before the transaction's end makes the next Open do it again.
func (t *tx) linkExisting() error {
	trees := keptTrees{read: t.s.readTree}
	err := eachOf(t.sql, `SELECT digest, manifest FROM images`, func(scan scanFunc) error {
		var d Digest
		var manifest string
		if err := scan(&d, &manifest); err != nil {
			return err
		}
		var m Manifest
		if err := json.Unmarshal([]byte(manifest), &m); err != nil {
			return fmt.Errorf("manifest of image %s: %w", d, err)
		}
		return t.s.linkMissingHidden(d, m, trees.tree)
	})
	return errors.Join(err, t.s.syncfs())
}

type scanFunc func(...any) error

func (s *Store) each(query string, row func(scanFunc) error) error { return eachOf(s.db, query, row) }
