package store

import "errors"

// These stand in for the real ones: the merge deletes this file.

type Store struct{}

var (
	ErrInUse     = errors.New("in use")
	ErrAmbiguous = errors.New("ambiguous")
)
