package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
)

// TemplateError is one fault of a fret.yaml, with its position.
type TemplateError struct {
	File    string
	Line    int // from 1; 0 for a fault of the whole file
	Column  int // from 1, in characters
	Message string
	Source  string // the faulty line
}

// Error returns "fret.yaml:7:3: message", the faulty line, and a caret below the line.
func (e *TemplateError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Message)
	}
	line, caret := excerpt(e.Source, e.Column)
	return fmt.Sprintf("%s:%d:%d: %s\n    %s\n    %s^", e.File, e.Line, e.Column, e.Message, line, strings.Repeat(" ", caret))
}

// Code returns [failure.Template].
func (e *TemplateError) Code() failure.Code { return failure.Template }

// Next returns the user's next step.
func (e *TemplateError) Next() string {
	if strings.HasSuffix(e.File, ".yaml") || strings.HasSuffix(e.File, ".yml") {
		return "correct the template; `fre template schema` prints the valid fields"
	}
	return "correct " + e.File + ", then build or deploy again"
}

// excerpt shortens a long line around column and replaces characters that a terminal would act on.
// It returns the column's offset in the result.
func excerpt(line string, column int) (string, int) {
	const before, most = 60, 100
	text := []rune(line)
	at := min(max(column-1, 0), len(text))
	start := 0
	if len(text) > most {
		start = max(at-before, 0)
	}
	text = text[start:min(start+most, len(text))]
	for i, r := range text {
		switch {
		case r == '\t':
			text[i] = ' '
		case !unicode.IsPrint(r):
			text[i] = unicode.ReplacementChar
		}
	}
	return string(text), at - start
}

// TemplateErrors are all faults found in one template, in order of position.
type TemplateErrors []*TemplateError

// mostErrors is how many faults are printed.
const mostErrors = 10

// Code returns [failure.Template].
func (e TemplateErrors) Code() failure.Code { return failure.Template }

func (e TemplateErrors) Error() string {
	var b strings.Builder
	for i, err := range e {
		if i == mostErrors {
			fmt.Fprintf(&b, "\nand %d more", len(e)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap lets errors.As find the first [TemplateError].
func (e TemplateErrors) Unwrap() []error {
	list := make([]error, len(e))
	for i, err := range e {
		list[i] = err
	}
	return list
}

// FieldError says that the value of a template's field cannot work. The builder turns it into a
// [TemplateError] with the field's position.
type FieldError struct {
	Field   string // path in the template: "handler", "packages.pip[2]"
	Message string // names the value and the next step
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Message }

// Code returns [failure.Template].
func (e *FieldError) Code() failure.Code { return failure.Template }

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
// is [TemplateErrors], unless the file does not exist (fs.ErrNotExist) or the engine's host is at
// fault.
func FileFault(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || ofHost(err) {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return TemplateErrors{{File: name, Message: whyUnread(err)}}
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

// signalled reports whether a signal ended the step. PHP ends with 255, which is no signal's
// status.
func (e *ExitError) signalled() bool { return e.Status > 128 && e.Status <= 128+64 }

// ErrUnknownBase says that a base environment is not one of FRE's.
var ErrUnknownBase = failure.New(failure.NotFound, "unknown base environment", "use a base from `fre template schema`")
