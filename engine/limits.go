package engine

import (
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
)

// limitsOf are those of a sandbox with an image's resources.
func limitsOf(r image.Resources) sandbox.Limits {
	return sandbox.Limits{
		MemoryBytes: r.MemoryBytes, CPUMillis: r.CPUMillis, Pids: r.Pids,
		TmpBytes: r.TmpBytes, Files: r.Files,
	}
}
