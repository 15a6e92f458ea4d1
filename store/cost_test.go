package store

import (
	"path/filepath"
	"testing"
)

// TestMeasureCommit: MeasureCommit returns the time of a commit in a directory, or an error for a
// missing one.
func TestMeasureCommit(t *testing.T) {
	dir := t.TempDir()
	if took, err := MeasureCommit(dir); err != nil || took <= 0 {
		t.Errorf("got %v, error %v", took, err)
	}
	if took, err := MeasureCommit(filepath.Join(dir, "none")); err == nil || took != 0 {
		t.Errorf("where there is no directory: got %v, error %v", took, err)
	}
}
