package template

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Events are the settings of a function's asynchronous events.
type Events struct {
	Retries  int           `json:"retries"`    // attempts after the first; default 3
	Backoff  time.Duration `json:"backoff_ns"` // before the second attempt, doubled before each further attempt; default 1s
	Priority string        `json:"priority"`   // "high", "normal" (default) or "low"
	MaxQueue int           `json:"max_queue"`  // most waiting events; default 10,000
	Results  time.Duration `json:"results_ns"` // how long a result is kept, 0 for not at all; default 1h
}

// Ranges of the numbers in Events and Webhook.
const (
	maxRetries             = 100
	minBackoff, maxBackoff = 10 * time.Millisecond, time.Hour
	maxQueue               = 1_000_000
	maxResults             = 7 * 24 * time.Hour
	maxTolerance           = 24 * time.Hour
	minTolerance           = time.Second
)

// DefaultEvents returns the settings of a template without events.
func DefaultEvents() Events {
	return Events{Retries: 3, Backoff: time.Second, Priority: "normal", MaxQueue: 10_000, Results: time.Hour}
}

func (d *decoder) eventFields(e *Events) []field {
	return []field{
		{key: "retries", value: integer(d, &e.Retries, 0, maxRetries)},
		{key: "backoff", value: measure(d, &e.Backoff, parseDuration, time.Duration.String, minBackoff, maxBackoff)},
		{key: "priority", value: d.oneOf(&e.Priority, "high", "normal", "low")},
		{key: "max_queue", value: integer(d, &e.MaxQueue, 1, maxQueue)},
		{key: "results", value: measure(d, &e.Results, parseDuration, time.Duration.String, 0, maxResults)},
	}
}

// oneOf reads a string that must be one of words.
func (d *decoder) oneOf(dst *string, words ...string) func(ast.Node, string) {
	return func(n ast.Node, path string) {
		s, ok := d.str(n, path)
		if !ok {
			return
		}
		if !slices.Contains(words, s) {
			d.errorf(n, "%s must be %s, not %q", path, oneOfWords(words), s)
			return
		}
		*dst = s
	}
}

func oneOfWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = fmt.Sprintf("%q", w)
	}
	last := len(quoted) - 1
	return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
}
