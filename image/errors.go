package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/template"
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

// FileFault returns the error for an unreadable file beside the template or in the code. The error
// is [template.Errors], unless the file does not exist (fs.ErrNotExist) or the engine's host is at
// fault.
func FileFault(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || ofHost(err) {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return template.Errors{{File: name, Message: whyUnread(err)}}
}

// whyUnread returns the reason why a file cannot be read, and the next step.
func whyUnread(err error) string {
	if of, ok := errors.AsType[*fs.PathError](err); ok {
		err = of.Err
	}
	return fmt.Sprintf("%s: use a regular file, or a link to a regular file below the template's directory", err)
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
