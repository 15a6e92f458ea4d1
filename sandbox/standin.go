package sandbox

import "time"

// Stats stands in for the real one: the merge deletes this file.
type Stats struct {
	MemoryBytes int64
	CPU         time.Duration
	TmpBytes    int64
	TmpFiles    int64
}

// StartError likewise.
type StartError struct {
	Step string
	Err  error
}

func (e *StartError) Error() string { return e.Step + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }
