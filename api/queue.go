package api

import "time"

// QueuedEvent is an asynchronous event: one that waits, is under way, or has ended.
type QueuedEvent struct {
	ID       string    `json:"id"`
	Function string    `json:"function"`
	Tenant   string    `json:"tenant"`
	Priority string    `json:"priority"` // high, normal, low
	State    string    `json:"state"`    // queued, running, waiting (has failed, and is tried again), done, dead
	Source   string    `json:"source"`   // http, or a trigger as TYPE/NAME
	Accepted time.Time `json:"accepted"`
	Changed  time.Time `json:"changed"`          // into its state
	Attempts int       `json:"attempts"`         // begun so far
	Status   int       `json:"status,omitempty"` // of the last answer
	Error    string    `json:"error,omitempty"`  // of the last attempt
	Size     int64     `json:"size"`             // bytes of the body
}

// QueuedEventDetails are an event and what is kept of it: its result's header and body once
// it is done, its own before.
type QueuedEventDetails struct {
	QueuedEvent
	Method   string      `json:"method,omitempty"`
	Path     string      `json:"path,omitempty"`
	Query    string      `json:"query,omitempty"`
	Callback string      `json:"callback,omitempty"`
	Header   [][2]string `json:"header,omitempty"`
	Body     []byte      `json:"body,omitempty"`      // its first megabyte
	BodyRest bool        `json:"body_rest,omitempty"` // there is more of it
	Result   bool        `json:"result"`              // header and body are the result's
}

// QueuedEventLine is one line of a list that is followed.
type QueuedEventLine struct {
	Event *QueuedEvent `json:"event,omitempty"`
	Error *Error       `json:"error,omitempty"` // the last line, if it ends by an error
}
