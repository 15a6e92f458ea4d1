package image

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
)

// ofHost reports whether a file cannot be read because of the engine's host. The template's author
// can correct all other causes (a link out of the directory, a circle of links, a directory instead
// of a file).
func ofHost(err error) bool {
	for _, e := range []error{unix.EIO, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOSPC, unix.EDQUOT, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// ExitError says that a build step ran and failed.
type ExitError struct {
	Args   []string
	Status int    // exit status; 128+signal after a signal
	Output string // last lines of output
}

func (e *ExitError) Error() string {
	name := "build step"
	if len(e.Args) > 0 {
		name = e.Args[0]
	}
	if e.Output == "" {
		return fmt.Sprintf("%s: exit status %d", name, e.Status)
	}
	return fmt.Sprintf("%s: exit status %d: %s", name, e.Status, strings.TrimRight(e.Output, "\n"))
}

// Code returns [failure.BuildFailed].
func (e *ExitError) Code() failure.Code { return failure.BuildFailed }

// Next returns the user's next step.
func (e *ExitError) Next() string { return "correct the packages in fret.yaml and build again" }

// signalled reports whether a signal ended the step. Interpreters may end with 255, which is no
// signal's status.
func (e *ExitError) signalled() bool { return e.Status > 128 && e.Status <= 128+64 }

// ErrUnknownBase says that a base environment is not one of FRE's.
var ErrUnknownBase = failure.New(failure.NotFound, "unknown base environment", "use a base from `fre template schema`")
