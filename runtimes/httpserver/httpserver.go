// Package httpserver makes a function of any HTTP server: the handler is the server's command line.
// FRE's adapter, a static program (package function/adapter), is the first process: it starts the
// server, waits until the server accepts connections, and passes each event on as a request.
package httpserver

import (
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// programs holds the adapter, which make build compiles. Before a build the directory has only a
// .gitignore, for the package to compile on a fresh clone.
//
//go:embed all:bin
var programs embed.FS

// errNotBuilt says that fre was compiled without the adapter.
var errNotBuilt = errors.New("fre was built without the adapter of the runtime http: run make build")

// Runtime is the runtime "http". It implements image.Runtime.
type Runtime struct{}

// Name is "http".
func (Runtime) Name() string { return "http" }

// Describe implements image.Described.
func (Runtime) Describe() template.Runtime {
	return template.Runtime{Required: `the server's command line, such as "node server.js"`}
}

// Bases are all: the server may use any language.
func (Runtime) Bases() []string { return []string{"native", image.AnyBase} }

// Bootstrap is the adapter.
func (Runtime) Bootstrap() map[string][]byte {
	program, err := programs.ReadFile("bin/fre-http")
	if err != nil {
		return nil
	}
	return map[string][]byte{"http": program}
}

// Parked is nil: only the server's own start takes time.
func (Runtime) Parked(*template.Template, []string) *image.ParkedInterpreter { return nil }

// searchPath is the PATH of the server's program: its own packages first.
const searchPath = "/function/node_modules/.bin:/node_modules/.bin:/opt/python/bin:/usr/local/bin:/usr/bin:/bin"

// Contract is http alone.
func (r Runtime) Contract(c template.Contract) image.Runtime {
	if c == template.ContractHTTP {
		return r
	}
	return nil
}

// Command runs the adapter with the server's command line.
func (Runtime) Command(t *template.Template) (args, env []string, err error) {
	words, err := HandlerWords(t, "node server.js")
	if err != nil {
		return nil, nil, err
	}
	return command(t, template.ContractHTTP, words)
}

// Source implements image.Sourced, for servers that are scripts.
func (Runtime) Source(t *template.Template, read func(string) []byte) (file, interpreter string) {
	words, err := HandlerWords(t, "")
	if err != nil {
		return "", ""
	}
	return image.SourceOf(words, read)
}

// split splits a command line like a shell: words between blanks, '…' literal, "…" literal except
// for the escapes \" and \\. Outside of quotes a backslash makes the next character literal. There
// is no expansion: the adapter replaces $PORT later.
func split(line string) ([]string, error) {
	s := splitter{line: line}
	for ; s.at < len(line); s.at++ {
		if err := s.next(line[s.at]); err != nil {
			return nil, err
		}
	}
	if s.quote != 0 {
		return nil, fmt.Errorf("a quote %c is not closed", s.quote)
	}
	s.end()
	return s.words, nil
}

// splitter is the state of split.
type splitter struct {
	line  string
	at    int
	words []string
	word  strings.Builder
	begun bool // word may be ""
	quote byte // 0 outside of quotes
}

// next takes the character c, and a character after a backslash.
func (s *splitter) next(c byte) error {
	switch {
	case s.literal(c):
		s.add(c)
	case s.quote != 0 && c == s.quote:
		s.quote = 0
	case c == '\\':
		return s.escape()
	case c == '\'' || c == '"':
		s.quote, s.begun = c, true
	case c == ' ' || c == '\t':
		s.end()
	default:
		s.add(c)
	}
	return nil
}

// literal reports whether c stands for itself in the open quote.
func (s *splitter) literal(c byte) bool {
	return s.quote == '\'' && c != '\'' || s.quote == '"' && c != '"' && c != '\\'
}

// escape takes the character after a backslash.
func (s *splitter) escape() error {
	if s.at++; s.at == len(s.line) {
		return errors.New("ends in a backslash")
	}
	c := s.line[s.at]
	if s.quote == '"' && c != '"' && c != '\\' {
		s.add('\\')
	}
	s.add(c)
	return nil
}

func (s *splitter) add(c byte) {
	s.word.WriteByte(c)
	s.begun = true
}

// end ends the word, if one has begun.
func (s *splitter) end() {
	if s.begun {
		s.words = append(s.words, s.word.String())
	}
	s.word.Reset()
	s.begun = false
}
