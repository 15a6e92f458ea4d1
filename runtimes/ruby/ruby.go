// Package ruby runs functions written in Ruby: a bootstrap that speaks the channel, in the
// distribution's ruby.
package ruby

import (
	_ "embed"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

//go:embed bootstrap.rb
var bootstrap []byte

// Runtime is the runtime "ruby". It implements image.Runtime.
type Runtime struct{}

// Name is "ruby".
func (Runtime) Name() string { return "ruby" }

// Bases is FRE's base with the interpreter.
func (Runtime) Bases() []string { return []string{"ruby"} }

// Bootstrap returns the program that loads the handler.
func (Runtime) Bootstrap() map[string][]byte {
	return map[string][]byte{"bootstrap.rb": bootstrap}
}

// handlerPattern is file.method, file.Module.method or file.Module::Class.method, the file without
// its extension (bootstrap.rb, NAME).
var handlerPattern = regexp.MustCompile(`^[^\x00-\x1f./][^\x00-\x1f]*?\.(\p{Lu}[\pL\pN_]*(::\p{Lu}[\pL\pN_]*)*\.)?[\pL_][\pL\pN_]*[?!]?$`)

// Interpreter is the requirement on a base: the bootstrap hooks Process._fork, new in Ruby 3.1.
func (Runtime) Interpreter() image.Interpreter {
	return image.Interpreter{
		Name: "ruby", Least: "3.1",
		Version: []string{"--disable=gems", "-e", `require "etc"; require "json"; print "ruby ", RUBY_VERSION`}, Before: "ruby ",
	}
}

// Command runs the bootstrap without RubyGems, which takes longer to load than the rest. The
// bootstrap loads RubyGems on demand.
func (Runtime) Command(t *template.Template) (args, env []string, err error) {
	if !handlerPattern.MatchString(t.Handler) || slices.Contains(strings.Split(t.Handler, "/"), "..") {
		return nil, nil, &template.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not file.method: write main.handle for the method handle in main.rb, or main.App.handle for a module's", t.Handler)}
	}
	return append(command(), t.Handler), append(environment(), fmt.Sprintf("FRE_CONCURRENCY=%d", max(1, t.Instances.Concurrency))), nil
}

func command() []string { return []string{"/usr/bin/ruby", "--disable=gems", "/opt/fre/bootstrap.rb"} }

func environment() []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8", "FRE_CHANNEL=3"}
}

// Untraced implements [image.Traced]: the files that report an exception, and the encodings, which
// programs open by names in their data.
func (Runtime) Untraced() []string {
	return []string{"usr/**/ruby/*/enc", "usr/**/ruby/*/*/enc", "usr/**/error_highlight*", "usr/**/did_you_mean*"}
}

// Source implements image.Sourced: main.App.handle may be in main.rb.
func (Runtime) Source(t *template.Template, read func(string) []byte) (file, interpreter string) {
	for name := t.Handler; ; {
		at := strings.LastIndexByte(name, '.')
		if at < 0 {
			return "", ""
		}
		name = name[:at]
		if file := path.Clean(name) + ".rb"; read(file) != nil {
			return file, "ruby"
		}
	}
}

var interpreters = regexp.MustCompile(`^ruby[0-9.]*$`)

// Parse implements image.Parser.
func (Runtime) Parse(interpreter, _ string) []string {
	if !interpreters.MatchString(interpreter) {
		return nil
	}
	return []string{"--disable=gems", "-W0", "-c"}
}

// Parked is the bootstrap without a handler. Ruby reads options, including those for memory, only
// at the start.
func (Runtime) Parked(_ *template.Template, env []string) *image.ParkedInterpreter {
	s := &image.ParkedInterpreter{Args: command(), Env: environment(), Mounts: []string{"/function"}}
	if !s.Fits(env, []string{"RUBY"}, nil) {
		return nil
	}
	return s
}
