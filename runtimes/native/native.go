// Package native starts functions that are independent programs: the event's body on stdin, its
// metadata in the environment (channel.Environ), the answer on stdout.
package native

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/httpserver"
	"github.com/fre-engine/fre/template"
)

// Runtime is the runtime "native". It implements image.Runtime.
type Runtime struct{}

// Name is "native".
func (Runtime) Name() string { return "native" }

// Bases are all: the program may need any base.
func (Runtime) Bases() []string { return []string{"native", image.AnyBase} }

// Describe implements image.Described. Lambda's runtime interface clients handle one event at a time.
func (Runtime) Describe() template.Runtime {
	return template.Runtime{
		Required: `the path of the program, such as "bin/clock"`,
		Handler:  "path of the program below the code (required)", Serial: []template.Contract{template.ContractLambda}, Connection: true,
	}
}

// Bootstrap is empty: the program is the first process.
func (Runtime) Bootstrap() map[string][]byte { return nil }

// Parked is nil: there is no interpreter to start ahead.
func (Runtime) Parked(*template.Template, []string) *image.ParkedInterpreter { return nil }

// Contract supports the contracts fre and stdio directly. For clients of Lambda's Runtime API and
// for CGI programs it starts the adapter first.
func (r Runtime) Contract(c template.Contract) image.Runtime {
	switch c {
	case template.ContractFRE, template.ContractStdio:
		return r
	case template.ContractLambda, template.ContractCGI:
		return httpserver.Adapted{Runtime: r, Contract: c, Words: func(t *template.Template) (words, env []string, err error) {
			words, err = httpserver.HandlerWords(t, "python3 main.py")
			return words, nil, err
		}}
	}
	return nil
}

// Source implements image.Sourced, for scripts.
func (Runtime) Source(t *template.Template, read func(string) []byte) (file, interpreter string) {
	words := []string{t.Handler}
	if t.Contract == template.ContractLambda || t.Contract == template.ContractCGI {
		var err error
		if words, err = httpserver.HandlerWords(t, ""); err != nil {
			return "", ""
		}
	}
	return image.SourceOf(words, read)
}

// Parse implements image.Parser, for shell scripts.
func (Runtime) Parse(interpreter, _ string) []string {
	if slices.Contains([]string{"sh", "ash", "dash", "bash"}, interpreter) {
		return []string{"-n"}
	}
	return nil
}

// Command runs the handler, a path in the function's code.
func (Runtime) Command(t *template.Template) (args, env []string, err error) {
	p := path.Clean(t.Handler)
	if t.Handler == "" || p == "." || strings.HasPrefix(p, "/") || p == ".." || strings.HasPrefix(p, "../") || strings.ContainsAny(p, "\x00\n") {
		return nil, nil, &template.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not a relative path of a program in the code: write bin/clock for the program clock in the directory bin", t.Handler)}
	}
	env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8"}
	if t.Contract != template.ContractStdio && t.Instances.Isolation == template.IsolationInstance {
		env = append(env, "FRE_CHANNEL=3", fmt.Sprintf("FRE_CONCURRENCY=%d", max(1, t.Instances.Concurrency)))
	}
	return []string{path.Join("/function", p)}, env, nil
}
