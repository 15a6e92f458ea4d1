package live

import (
	"errors"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/template"
)

// LimitsOf converts an image's resources to sandbox limits.
func LimitsOf(r template.Resources) sandbox.Limits {
	return sandbox.Limits{
		MemoryBytes: r.MemoryBytes, CPUMillis: r.CPUMillis, Pids: r.Pids,
		TmpBytes: r.TmpBytes, Files: r.Files,
	}
}

// CheckLimits returns an *template.FieldError for a limit beyond the host's means.
func CheckLimits(host *sandbox.Host, r template.Resources) error {
	err := host.CheckLimits(LimitsOf(r))
	var limit *sandbox.LimitError
	if errors.As(err, &limit) {
		return &template.FieldError{Field: "resources." + limit.Limit, Message: limit.Error()}
	}
	return err
}
