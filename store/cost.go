package store

import (
	"errors"
	"path/filepath"
	"slices"
	"time"
)

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
