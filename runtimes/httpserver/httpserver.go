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
	var words []string
	var word strings.Builder
	begun := false
	quote := byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == '\'' && c != '\'', quote == '"' && c != '"' && c != '\\':
			word.WriteByte(c)
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\':
			if i++; i == len(line) {
				return nil, errors.New("ends in a backslash")
			}
			if quote == '"' && line[i] != '"' && line[i] != '\\' {
				word.WriteByte('\\')
			}
			word.WriteByte(line[i])
			begun = true
		case c == '\'' || c == '"':
			quote, begun = c, true
		case c == ' ' || c == '\t':
			if begun {
				words = append(words, word.String())
				word.Reset()
				begun = false
			}
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote %c is not closed", quote)
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}
