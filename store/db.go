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
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

const dbName = "fre.db"

// migrations[i] brings the database from user_version i to i+1. Never change a released
// migration: append a new one.
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
`, `
-- Images whose parts this engine has not made, nor has anybody whom it trusts.
CREATE TABLE foreign_images (
	image TEXT PRIMARY KEY REFERENCES images ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
`, `
-- What a function may go back to, beside the image that it has.
CREATE TABLE function_images (
	function TEXT NOT NULL REFERENCES functions ON DELETE CASCADE,
	image    TEXT NOT NULL REFERENCES images,
	PRIMARY KEY (function, image)
) STRICT, WITHOUT ROWID;
CREATE INDEX function_images_image ON function_images (image);
`}

// sizedSince is the first user_version with sizes of images.
const sizedSince = 3

// snapshot is all metadata; immutable once published.
type snapshot struct {
	byDigest  map[Digest]*Image
	tags      map[tag]Digest
	remotes   map[string]Digest // by "name@sha256:…"
	parts     map[string]Part
	functions map[string]*Function
	tenants   map[string]Tenant

	images       []*Image    // newest first
	functionList []*Function // by name

	serial    int64  // highest serial of any image so far
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

		images: n.images, functionList: n.functionList, // replaced, not changed
		serial: n.serial, imagesGen: n.imagesGen, sizes: n.sizes,
	}
}

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

var errCorrupt = errors.New("database is corrupt")

// dbError gives SQLite's "disk full" its errno back.
func dbError(err error) error {
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code()&0xff == sqlite3.SQLITE_FULL {
		return fmt.Errorf("database: %w: %w", unix.ENOSPC, err)
	}
	return err
}

// openDB opens the database at path with the store's settings, and creates it if missing. The
// caller must close a non-nil result even if there is an error.
func openDB(path string) (*sql.DB, error) {
	// EXCLUSIVE: the flock keeps other engines out. Without EXCLUSIVE the WAL's index is a
	// mapped file, for which a full disk has no room. The setting must come before the first
	// access; journal_mode is not in this list because the driver sorts the list.
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

func (m *metadata) loadDB() error {
	path := filepath.Join(m.disk.dir, dbName)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		// SQLite would replay the log of the lost database into the new one.
		for _, suffix := range []string{"-wal", "-shm", "-journal"} {
			if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	// Create the file here, so it is private: manifests hold functions' environments.
	f, err := openat(int(m.disk.root.Fd()), dbName, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Close(), m.disk.root.Sync()); err != nil {
		return err
	}
	if err := checkLog(int(m.disk.root.Fd()), dbName+"-wal"); err != nil {
		return err
	}
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

type scanFunc func(...any) error
