package api

import "time"

// QueuedEvent is an asynchronous event: waiting, in progress, or ended.
type QueuedEvent struct {
	ID       string    `json:"id"`
	Function string    `json:"function"`
	Tenant   string    `json:"tenant"`
	Priority string    `json:"priority"` // high, normal, low
	State    string    `json:"state"`    // queued, running, waiting (failed, will be retried), done, dead
	Source   string    `json:"source"`   // http, or TYPE/NAME of a trigger
	Accepted time.Time `json:"accepted"`
	Changed  time.Time `json:"changed"`          // time of the last state change
	Attempts int       `json:"attempts"`         // attempts begun so far
	Status   int       `json:"status,omitempty"` // HTTP status of the last answer
	Error    string    `json:"error,omitempty"`  // error of the last attempt
	Size     int64     `json:"size"`             // bytes of the body
}

// QueuedEventDetails is an event with the stored data. Header and Body belong to the result once
// the event is done, and to the event before.
type QueuedEventDetails struct {
	QueuedEvent
	Method   string      `json:"method,omitempty"`
	Path     string      `json:"path,omitempty"`
	Query    string      `json:"query,omitempty"`
	Callback string      `json:"callback,omitempty"`
	Header   [][2]string `json:"header,omitempty"`
	Body     []byte      `json:"body,omitempty"`      // the first MiB
	BodyRest bool        `json:"body_rest,omitempty"` // Body is truncated
	Result   bool        `json:"result"`              // Header and Body belong to the result
}

// QueuedEventLine is one line of the event tail.
type QueuedEventLine struct {
	Event *QueuedEvent `json:"event,omitempty"`
	Error *Error       `json:"error,omitempty"` // set on the last line if the stream ends with an error
}
