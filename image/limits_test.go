package image

import (
	"strings"
	"testing"

	"github.com/fre-engine/fre/template"
)

// TestExplainLimits: The error of a function at a limit (/tmp, memory, open files, processes) names
// the template's key that raises the limit.
func TestExplainLimits(t *testing.T) {
	c := Config{Resources: template.Resources{MemoryBytes: 128 << 20, TmpBytes: 64 << 20, Pids: 64, Files: 1024}}
	for text, want := range map[string]string{
		"OSError: [Errno 28] No space left on device: '/tmp/x'":                             "at most 64MiB: raise resources.tmp in fret.yaml",
		"Error: ENOSPC: no space left on device, write":                                     "resources.tmp",
		"Errno::ENOSPC: No space left on device @ io_writev":                                "resources.tmp",
		"java.io.IOException: No space left on device":                                      "resources.tmp",
		"OSError: [Errno 24] Too many open files: 'a'":                                      "at most 1024 open files: raise resources.files",
		"RuntimeError: can't start new thread":                                              "at most 64 processes and threads: raise resources.pids",
		"java.lang.OutOfMemoryError: unable to create native thread: possibly out of":       "resources.pids",
		"Error: spawn /bin/sh EAGAIN":                                                       "resources.pids",
		"MemoryError: ":                                                                     "at most 128MiB of memory, /tmp included: raise resources.memory",
		"java.lang.OutOfMemoryError: Java heap space":                                       "resources.memory",
		"FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory": "resources.memory",
		"NoMemoryError: failed to allocate memory":                                          "resources.memory",
		"Allowed memory size of 134217728 bytes exhausted (tried to allocate 8 bytes)":      "resources.memory",
		"ValueError: no":          "",
		"BlockingIOError: EAGAIN": "",
	} {
		if got := c.ExplainLimit(text); got == "" != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
