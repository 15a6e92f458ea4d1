// Package node builds and starts functions written for Node.js: a bootstrap that speaks the
// channel, and packages that npm resolves and FRE fetches.
package node

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

var (
	//go:embed bootstrap.js
	bootstrap []byte
	//go:embed limits.js
	limits []byte
	//go:embed lambda.js
	lambda []byte
	//go:embed warm.js
	warm []byte
)

// Runtime is the runtime "node". It implements image.Runtime.
type Runtime struct{}

// Name is "node".
func (Runtime) Name() string { return "node" }

// Bases is FRE's base with the interpreter.
func (Runtime) Bases() []string { return []string{"node"} }

// Bootstrap returns the program that loads the handler, and its modules.
func (Runtime) Bootstrap() map[string][]byte {
	return map[string][]byte{"bootstrap.js": bootstrap, "lambda.js": lambda, "limits.js": limits, "warm.js": warm}
}

// handlerPattern is file.export, the file without its extension.
var handlerPattern = regexp.MustCompile(`^[^\x00-\x1f./][^\x00-\x1f]*\.[\pL_$][\pL\pN_$]*$`)

// Command runs the bootstrap.
func (Runtime) Command(t *template.Template) (args, env []string, err error) {
	if !handlerPattern.MatchString(t.Handler) || slices.Contains(strings.Split(t.Handler, "/"), "..") {
		return nil, nil, &template.FieldError{Field: "handler", Message: fmt.Sprintf(
			"handler %q is not file.export: write index.handle for the export handle of index.js", t.Handler)}
	}
	return append(command(t), t.Handler), append(environment(),
		fmt.Sprintf("FRE_CONCURRENCY=%d", max(1, t.Instances.Concurrency))), nil
}

// Interpreter is the requirement on a base.
func (Runtime) Interpreter() image.Interpreter {
	return image.Interpreter{Name: "node", Version: []string{"--version"}, Least: "16"}
}

func command(t *template.Template) []string {
	return append(append([]string{"/usr/bin/node"}, options(t)...), "/opt/fre/bootstrap.js")
}

// options are node's options.
func options(t *template.Template) []string {
	if heapSize.MatchString(t.Env["NODE_OPTIONS"]) {
		return nil
	}
	return []string{fmt.Sprintf("--max-old-space-size=%d", heapMiB(t.Resources.MemoryBytes))}
}

func environment() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/work", "TMPDIR=/tmp", "LANG=C.UTF-8", "NODE_ENV=production",
		"FRE_CHANNEL=3",
	}
}

// Parked is the bootstrap without a handler. Functions with different limits of memory do not share
// it, because node reads options, certificates and the number of threads only at the start.
func (Runtime) Parked(t *template.Template, env []string) *image.ParkedInterpreter {
	s := &image.ParkedInterpreter{Args: command(t), Env: environment(), Mounts: []string{"/function", "/node_modules"}}
	if !s.Fits(env, []string{"ICU_", "NODE_", "SSL_", "UV_"}, []string{"NODE_ENV"}) {
		return nil
	}
	return s
}

// heapSize matches a heap limit of the template's own.
var heapSize = regexp.MustCompile(`--max[-_]old[-_]space[-_]size`)

// heapMiB is the limit of V8's heap in a sandbox with memory bytes: three quarters, with 64 MiB
// left for the rest of node, but at least half. By default V8 follows the host's memory: the
// sandbox's limit would kill the function before a full collection, or an error with the location,
// could help.
func heapMiB(memory int64) int64 {
	return max(memory/2, min(memory/4*3, memory-64<<20)) >> 20
}
