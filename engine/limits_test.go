package engine

import (
	"testing"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
)

// TestLimitsOf: every limit of an image reaches its sandboxes.
func TestLimitsOf(t *testing.T) {
	got := limitsOf(image.Resources{MemoryBytes: 1, CPUMillis: 2, Pids: 3, TmpBytes: 4, Files: 5})
	if want := (sandbox.Limits{MemoryBytes: 1, CPUMillis: 2, Pids: 3, TmpBytes: 4, Files: 5}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
