package store

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

const dbName = "fre.db"

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

type scanFunc func(...any) error

// queryer is a database or a transaction.
type queryer interface {
	Query(query string, args ...any) (*sql.Rows, error)
}

func eachRow(q queryer, query string, row func(scanFunc) error) error {
	rows, err := q.Query(query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Database describes the metadata database, for people.
const Database = "SQLite, write-ahead log, synchronous=FULL"

// MeasureCommit returns the median time from the start of a transaction of one row until the row
// is on disk. The database, new and below dir, stays there.
func MeasureCommit(dir string) (took time.Duration, err error) {
	const (
		most     = 15
		mostTime = 300 * time.Millisecond
	)
	db, err := openDB(filepath.Join(dir, dbName))
	if db != nil {
		defer func() { err = errors.Join(err, db.Close()) }()
	}
	if err != nil {
		return 0, err
	}
	if _, err := db.Exec(`CREATE TABLE t (x TEXT) STRICT`); err != nil {
		return 0, err
	}
	var samples []time.Duration
	for begin := time.Now(); len(samples) < most && (len(samples) == 0 || time.Since(begin) < mostTime); {
		at := time.Now()
		if _, err := db.Exec(`INSERT INTO t VALUES (hex(randomblob(128)))`); err != nil {
			return 0, err
		}
		samples = append(samples, time.Since(at))
	}
	slices.Sort(samples)
	return samples[len(samples)/2], nil
}
