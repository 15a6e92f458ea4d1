package image

import (
	"fmt"
	"strings"

	"github.com/fre-engine/fre/internal/lazyregexp"
	"github.com/fre-engine/fre/template"
)

// exceeded maps messages of languages and of the C library about a limit of the sandbox to the
// template's key. The first match counts, because Java reports a thread that cannot start as an
// OutOfMemoryError.
var exceeded = []struct {
	says  *lazyregexp.Regexp
	key   string
	limit func(*template.Resources) string
}{
	{lazyregexp.New(`No space left on device|\bENOSPC\b`), "resources.tmp", func(r *template.Resources) string {
		return "/tmp of the sandbox holds at most " + template.FormatBytes(r.TmpBytes)
	}},
	{lazyregexp.New(`Too many open files|\bEMFILE\b`), "resources.files", func(r *template.Resources) string {
		return fmt.Sprintf("a process of the sandbox has at most %d open files", r.Files)
	}},
	{lazyregexp.New(`can't start new thread|can't create Thread|unable to create (new )?native thread|[Ff]ork: (retry: )?Resource temporarily unavailable|\bspawn\b.* EAGAIN`), "resources.pids", func(r *template.Resources) string {
		return fmt.Sprintf("the sandbox has at most %d processes and threads", r.Pids)
	}},
	{lazyregexp.New(`JavaScript heap out of memory|\bMemoryError\b|\bNoMemoryError\b|OutOfMemoryError|Allowed memory size of|Cannot allocate memory|\bENOMEM\b`), "resources.memory", memoryLimit},
}

func memoryLimit(r *template.Resources) string {
	return "the sandbox has at most " + template.FormatBytes(r.MemoryBytes) + " of memory, /tmp included"
}

// ExplainLimit returns the limit that a failure's text is about, and the template's key that raises
// the limit; "" if the text is about no limit.
func (c *Config) ExplainLimit(text string) string {
	text = text[:min(len(text), maxFailureText)]
	for i := range exceeded {
		if e := &exceeded[i]; e.says.MatchString(text) {
			return fmt.Sprintf("%s: raise %s in fret.yaml", e.limit(&c.Resources), e.key)
		}
	}
	return ""
}

// ExplainMemory is [Config.ExplainLimit] for a function that the kernel killed at its memory limit.
func (c *Config) ExplainMemory() string {
	return memoryLimit(&c.Resources) + ": raise resources.memory in fret.yaml"
}

// ExplainAbort returns the limit that may have ended a program by SIGABRT; "" if none is known.
// Node aborts when its heap, limited by FRE with --max-old-space-size, is full, and says so only in
// the function's log.
func (c *Config) ExplainAbort() string {
	for _, arg := range c.Args {
		if size, ok := strings.CutPrefix(arg, "--max-old-space-size="); ok {
			return fmt.Sprintf("Node aborts when the heap of %s MiB is full; if the function's log shows a full heap, raise resources.memory in fret.yaml", size)
		}
	}
	return ""
}
