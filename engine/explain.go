package engine

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
)

// crashed returns the error of an event whose sandbox has ended. before completes the sentence
// "exited before …".
func (p *program) crashed(s sandbox.ExitStatus, before string) *CrashError {
	reason := crashReason(s, before)
	switch {
	case s.OOMKilled:
		reason += ": " + p.config.ExplainMemory()
	case s.Signal == int(unix.SIGABRT):
		if why := p.config.ExplainAbort(); why != "" {
			reason += ": " + why
		}
	}
	return &CrashError{Status: s, Reason: reason}
}

// buildStepFailed returns the error of a build step. The error names the limit that ended the
// step: no key of a template raises the limits of build steps.
func buildStepFailed(args []string, s sandbox.ExitStatus, output string) *image.ExitError {
	switch {
	case s.OOMKilled:
		output = fmt.Sprintf("out of memory: a build step has at most %d GiB: use less memory, for example fewer parallel jobs\n%s", int64(buildMemory)>>30, output)
	case strings.Contains(output, "No space left on device"), strings.Contains(output, "ENOSPC"):
		output += fmt.Sprintf("\n/tmp of a build step holds at most %d GiB: write to the step's working directory", int64(buildTmp)>>30)
	}
	return &image.ExitError{Args: args, Status: s.Code, Output: output}
}
