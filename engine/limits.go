package engine

import (
	"errors"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/template"
)

// limitsOf converts an image's resources to sandbox limits.
func limitsOf(r template.Resources) sandbox.Limits {
	return sandbox.Limits{
		MemoryBytes: r.MemoryBytes, CPUMillis: r.CPUMillis, Pids: r.Pids,
		TmpBytes: r.TmpBytes, Files: r.Files,
	}
}

// checkLimits returns an *image.FieldError for a limit beyond the host's means.
func (e *Engine) checkLimits(r template.Resources) error {
	err := e.cfg.Sandboxes.CheckLimits(limitsOf(r))
	var limit *sandbox.LimitError
	if errors.As(err, &limit) {
		return &template.FieldError{Field: "resources." + limit.Limit, Message: limit.Error()}
	}
	return err
}
