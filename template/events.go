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
		{
			key: "retries", value: integer(d, &e.Retries, 0, maxRetries), def: 3,
			about: "Attempts after the first that fails: an exception, a crash, a time-out, or an answer of 500 and above, or 429.",
		},
		{
			key: "backoff", value: measure(d, &e.Backoff, durations, minBackoff, maxBackoff), def: "1s",
			about: "Pause before the second attempt, doubled before each further one, up to ten minutes. 10ms to 1h.",
		},
		{
			key: "priority", value: oneOf(d, &e.Priority, "high", "normal", "low"), def: "normal",
			about: "Which part of the engine's turns its events get while others wait: 16, 4 or 1.",
		},
		{
			key: "max_queue", value: integer(d, &e.MaxQueue, 1, maxQueue), def: 10_000,
			about: "Events that wait at most; further ones are refused (429).",
		},
		{
			key: "results", value: measure(d, &e.Results, durations, 0, maxResults), def: "1h",
			about: "How long results are kept, 0s for not at all. At most 168h.",
		},
	}
}

// oneOf reads a string that must be one of words.
func oneOf[T ~string](d *decoder, dst *T, words ...T) value {
	return value{object{{"enum", words}}, func(n ast.Node, path string) {
		s, ok := d.str(n, path)
		if !ok {
			return
		}
		if !slices.Contains(words, T(s)) {
			d.errorf(n, "%s must be %s, not %q", path, oneOfWords(words), s)
			return
		}
		*dst = T(s)
	}}
}

func oneOfWords[T ~string](words []T) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = fmt.Sprintf("%q", w)
	}
	last := len(quoted) - 1
	return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
}
