// Package sqlite3 declares SQLite's constants that FRE uses, for the linter.
package sqlite3

// Primary result codes (sqlite.org/rescode.html).
const (
	SQLITE_CORRUPT = 11
	SQLITE_FULL    = 13
	SQLITE_NOTADB  = 26
)
