package template

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Error is one fault of a fret.yaml, with its position.
type Error struct {
	File    string
	Line    int // from 1; 0 for a fault of the whole file
	Column  int // from 1, in characters
	Message string
	Source  string // the faulty line
}

// Error returns "fret.yaml:7:3: message", the faulty line, and a caret below the line.
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Message)
	}
	line, caret := excerpt(e.Source, e.Column)
	return fmt.Sprintf("%s:%d:%d: %s\n    %s\n    %s^", e.File, e.Line, e.Column, e.Message, line, strings.Repeat(" ", caret))
}

// ErrorAt returns the error at an offset of src, in bytes from 1.
func ErrorAt(file string, src []byte, offset int64, message string) *Error {
	before := src[:min(max(offset-1, 0), int64(len(src)))]
	line := bytes.LastIndexByte(before, '\n') + 1
	s := &source{file: file, lines: strings.Split(string(src), "\n")}
	return s.errorAt(position{bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[line:]) + 1}, message)
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

// Errors are all faults found in one template, in order of position.
type Errors []*Error

// mostErrors is how many faults are printed.
const mostErrors = 10

func (e Errors) Error() string {
	var lines []string
	for i, err := range e {
		if i == mostErrors {
			lines = append(lines, fmt.Sprintf("and %d more", len(e)-i))
			break
		}
		lines = append(lines, err.Error())
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find the first [Error].
func (e Errors) Unwrap() []error {
	list := make([]error, len(e))
	for i, err := range e {
		list[i] = err
	}
	return list
}

// FieldError says that the value of a template's field cannot work. The builder turns it into a
// [Error] with the field's position.
type FieldError struct {
	Field   string // path in the template: "handler", "packages.SITE[2]"
	Message string // names the value and the next step
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Message }
