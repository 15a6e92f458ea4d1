package template

import (
	"time"
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
