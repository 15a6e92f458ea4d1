package engine

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/template"
)

// heapRuntime is a runtime of a language that aborts when its heap is full.
type heapRuntime struct{ image.Runtime }

func (heapRuntime) Messages() image.Messages {
	return image.Messages{Aborted: func(args []string) string {
		if args[0] == "/usr/bin/node" {
			return "Node aborts when the heap is full: raise resources.memory"
		}
		return ""
	}}
}

// TestCrashed: if a memory limit of the kernel or of the language ends a sandbox, the error names
// the template's key.
func TestCrashed(t *testing.T) {
	node := image.Config{Args: []string{"/usr/bin/node", "--max-old-space-size=96", "/opt/fre/bootstrap.js"}, Resources: template.Resources{MemoryBytes: 128 << 20}}
	python := image.Config{Args: []string{"/usr/bin/python3"}, Resources: node.Resources}
	shared := &host{explainer: image.NewExplainer([]image.Runtime{heapRuntime{}})}
	abort := sandbox.ExitStatus{Signal: int(unix.SIGABRT)}
	for _, tt := range []struct {
		name   string
		config image.Config
		status sandbox.ExitStatus
		want   string
		limit  bool
	}{
		{"the kernel", python, sandbox.ExitStatus{Signal: int(unix.SIGKILL), OOMKilled: true}, "at most 128MiB of memory", true},
		{"Node's heap", node, abort, "SIGABRT before it answered: Node aborts when the heap is full", true},
		{"an abort", python, abort, "was killed by SIGABRT before it answered", false},
		{"an exit", node, sandbox.ExitStatus{Code: 1}, "exited with status 1 before it answered", false},
	} {
		said := (&program{host: shared, config: tt.config}).crashed(tt.status, "it answered").Error()
		if !strings.Contains(said, tt.want) || strings.Contains(said, "resources.memory") != tt.limit {
			t.Errorf("%s: %q", tt.name, said)
		}
	}
}
