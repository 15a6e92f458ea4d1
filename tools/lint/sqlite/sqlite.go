// Package sqlite declares the names of modernc.org/sqlite that FRE uses, for the linter.
package sqlite

// Error is an error of SQLite.
type Error struct{ code int }

// Error returns the text of the error.
func (e *Error) Error() string { return "" }

// Code returns the extended result code.
func (e *Error) Code() int { return e.code }
