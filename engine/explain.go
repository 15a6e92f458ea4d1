package engine

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
)

// crashed returns the error of an event whose sandbox has ended. before completes the sentence
// "exited before …".
func (p *program) crashed(s sandbox.ExitStatus, before string) *CrashError {
	reason := crashReason(s, before)
	switch {
	case s.OOMKilled:
		reason += ": " + p.host.explainer.Memory(&p.config)
	case s.Signal == int(unix.SIGABRT):
		if why := p.host.explainer.Abort(&p.config); why != "" {
			reason += ": " + why
		}
	}
	return &CrashError{Status: s, Reason: reason}
}

func crashReason(s sandbox.ExitStatus, before string) string {
	switch {
	case s.OOMKilled:
		return "ran out of memory before " + before
	case s.Signal != 0:
		return fmt.Sprintf("was killed by %s before %s", unix.SignalName(unix.Signal(s.Signal)), before)
	default:
		return fmt.Sprintf("exited with status %d before %s", s.Code, before)
	}
}
