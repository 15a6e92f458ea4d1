package gateway

import (
	"context"
	"log/slog"
	"os"
	"syscall"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/httpserver"
)

// Invoker is the part of *engine.Engine that forwarding uses.
type Invoker interface {
	Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error)
}

// Event describes the event that Forward makes of an HTTP request. Every field is required. Of
// Request the caller sets Method, Path and Query.
type Event struct {
	Engine       Invoker
	Log          *slog.Logger
	Function     string
	MaxBodyBytes int64
	engine.Request
}

// front receives an answer: a *httpserver.Exchange, whose documentation applies, or [Forward]'s
// adapter for net/http.ResponseWriter.
type front interface {
	Set(name, value string)
	CloseAfter()
	Send(status int, body []byte) error
	SendFile(status int, f *os.File, offset, length int64) error
	Begin(status int, length int64) error
	Write(p []byte) (int, error)
	Buffer(size int) (httpserver.Buffer, error)
}

// lender lets another process send the rest of an answer: *httpserver.Exchange.
type lender interface {
	Lend(to func(socket syscall.RawConn) (int64, error)) (int64, error)
}

// request is the input of forward.
type request struct {
	Event
	head bool       // HEAD: the answer's body is dropped
	body *eventBody // Request.Body; nil: none

	lends    lender // set if a trusted function may use the client's connection
	selects  bool   // apply conditions and ranges of the header
	compress bool   // apply Accept-Encoding
	cors     bool   // drop the function's Access-Control-* fields
}

// Field returns the value of the field with the canonical name; several values as one list; "" if
// absent.
func (r *request) Field(name string) (value string) {
	for _, f := range r.Headers {
		switch {
		case f[0] != name:
		case value == "":
			value = f[1]
		default:
			value += ", " + f[1]
		}
	}
	return value
}

// brokenError means that an answer broke off after its status was sent. Only a broken connection
// can tell the client.
type brokenError struct{ error }

func (e *brokenError) Unwrap() error { return e.error }
