package httpserver

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/awslambda"
	"github.com/fre-engine/fre/template"
)

// Adapted is another runtime's variant for a contract whose functions are processes that the
// adapter starts. It implements only image.Runtime and image.Sourced, and hides methods for an
// interpreter with a bootstrap.
type Adapted struct {
	image.Runtime // Name and Bases

	// Contract is how the adapter talks to the process: http, lambda or cgi.
	Contract template.Contract

	// Words returns the command line, and additional environment variables.
	Words func(t *template.Template) (words, env []string, err error)
}

// Bootstrap is the adapter.
func (Adapted) Bootstrap() map[string][]byte { return Runtime{}.Bootstrap() }

// Parked is nil: only the process's own start takes time.
func (Adapted) Parked(*template.Template, []string) *image.ParkedInterpreter { return nil }

// Command runs the adapter with the command line.
func (a Adapted) Command(t *template.Template) (args, env []string, err error) {
	words, more, err := a.Words(t)
	if err != nil {
		return nil, nil, err
	}
	args, env, err = command(t, a.Contract, words)
	return args, append(env, more...), err
}

// Source implements image.Sourced if the other runtime does.
func (a Adapted) Source(t *template.Template, read func(string) []byte) (file, interpreter string) {
	if s, ok := a.Runtime.(image.Sourced); ok {
		return s.Source(t, read)
	}
	return "", ""
}

// HandlerWords splits a handler that is a command line. Errors quote example.
func HandlerWords(t *template.Template, example string) ([]string, error) {
	words, err := split(t.Handler)
	if err == nil && len(words) == 0 {
		err = errors.New("empty")
	}
	if err != nil {
		return nil, &template.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not a command line: %s; write for example %q", t.Handler, err, example)}
	}
	return words, nil
}

// command returns the adapter's command line and environment.
func command(t *template.Template, contract template.Contract, words []string) (args, env []string, err error) {
	if (Runtime{}).Bootstrap() == nil {
		return nil, nil, errNotBuilt
	}
	env = []string{
		"PATH=" + searchPath, "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8",
		"FRE_CHANNEL=3", fmt.Sprintf("FRE_CONCURRENCY=%d", max(1, t.Instances.Concurrency)),
	}
	switch contract {
	case template.ContractLambda:
		env = append(env, awslambda.Environment(t)...)
	case template.ContractHTTP:
		port := cmp.Or(t.HTTP.Port, 8080)
		if t.Network.Mode == template.NetworkHost { // the port is the host's: another instance may have it
			port = 0
		}
		env = append(env, "FRE_HTTP_LISTEN="+string(t.HTTP.Listen), fmt.Sprintf("FRE_HTTP_PORT=%d", port), "FRE_HTTP_READY="+t.HTTP.Ready)
	default:
		env = append(env, "FRE_CONTRACT="+string(contract))
	}
	// Shorter than the engine's timeout, whose error says less.
	env = append(env, "FRE_HTTP_TIMEOUT="+max(t.Resources.Timeout-t.Resources.Timeout/10, time.Millisecond).String())
	return append([]string{"/opt/fre/http"}, words...), env, nil
}
