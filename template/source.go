package template

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

type position struct{ line, column int }

// source is a template's text, for errors with a position in it.
type source struct {
	file  string
	lines []string
	at    map[string]position // by field path: "packages.SITE[1]"
}

func (s *source) errorAt(p position, message string) *Error {
	e := &Error{File: s.file, Line: p.line, Column: p.column, Message: message}
	if p.line >= 1 && p.line <= len(s.lines) {
		e.Source = s.lines[p.line-1]
		e.Column = min(p.column, utf8.RuneCountInString(e.Source)+1)
	}
	return e
}

// place returns the position of a field, or of the nearest field above if the template leaves the
// field at its default.
func (s *source) place(path string) position {
	for {
		if p, ok := s.at[path]; ok {
			return p
		}
		if path == "" {
			return position{}
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
}

func (s *source) sorted(errs Errors) error {
	if len(errs) == 0 {
		return nil
	}
	slices.SortStableFunc(errs, func(a, b *Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return errs
}

func (s *source) fail(p position, format string, args ...any) error {
	return Errors{s.errorAt(p, fmt.Sprintf(format, args...))}
}
