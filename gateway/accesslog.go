package gateway

import (
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/httpserver/accesslog"
)

// accessLine is a request's line of JSON in the access log. It omits the query, which may hold
// secrets of the function.
type accessLine struct {
	Time       time.Time `json:"time"` // when the head was read
	ID         string    `json:"request_id"`
	Client     string    `json:"client,omitempty"` // address
	Method     string    `json:"method,omitempty"`
	Path       string    `json:"path,omitempty"`
	Status     int       `json:"status"`
	Bytes      int64     `json:"bytes"` // sent bytes of the answer's body
	Micros     int64     `json:"micros"`
	Function   string    `json:"function,omitempty"`
	From       string    `json:"from,omitempty"` // calling function
	Invocation string    `json:"invocation,omitempty"`
	Cold       bool      `json:"cold"`
	Error      string    `json:"error,omitempty"` // error code
}

// AccessLog writes a line for each request.
type AccessLog = accesslog.Log[accessLine]

// NewAccessLog starts a log to w, which stays the caller's. If reg is not nil, NewAccessLog
// registers a counter of lost lines.
func NewAccessLog(w io.Writer, log *slog.Logger, reg prometheus.Registerer) *AccessLog {
	return accesslog.New[accessLine](w, log, reg)
}

// LogCall writes a line for a function's call of another function.
func LogCall(l *AccessLog, c *engine.CallRecord) {
	l.Add(accessLine{
		Time: c.At, ID: c.RequestID, Method: c.Method, Path: c.Path, Status: c.Status, Bytes: max(c.Bytes, 0), Micros: c.Took.Microseconds(),
		Function: c.Function, From: c.From, Invocation: c.Invocation, Cold: c.Cold, Error: c.Error,
	})
}
