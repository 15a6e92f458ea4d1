package function

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/fre-engine/fre/function/channel"
)

// CallOptions describes a [Call]. The zero value is POST / without header fields.
type CallOptions struct {
	Method string // "" is POST
	Path   string // with its query string, as in a URL; "" is /
	Header Header
}

// CallError means that a call has no answer: the engine refused the call, or the called function
// failed. Code is for programs: not_found, forbidden, loop, timeout, quota, overloaded,
// function_error, and the other codes of docs/calls.md.
type CallError struct{ Code, Message string }

func (e *CallError) Error() string { return e.Code + ": " + e.Message }

// Result is a called function's answer.
type Result struct {
	Status int
	Header Header
	Body   io.ReadCloser // must be closed; a Close before the end gives the call up
}

// Bytes reads the body to its end and closes it.
func (r *Result) Bytes() ([]byte, error) {
	b, err := io.ReadAll(r.Body)
	return b, errors.Join(err, r.Body.Close())
}

// JSON decodes the body, one JSON value, into v and closes the body.
func (r *Result) JSON(v any) error {
	b, err := r.Bytes()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("the answer's body: %w", err)
	}
	return nil
}

// Call has another function of the tenant, NAME or NAME@REVISION, handle an event. It returns the
// answer, whatever its status. ctx is a handler's context or derived from it; the call ends with
// ctx. body is any value that a [Handler] may return, except a Response or an iterator. An
// io.Reader is sent piece by piece and read until the call is over. Errors of the called function
// and of the engine are *[CallError].
func Call(ctx context.Context, name string, body any, options CallOptions) (*Result, error) {
	e, ok := ctx.Value(eventKey{}).(*channel.Event)
	if !ok {
		return nil, &CallError{"bad_call", "the context is not a handler's"}
	}
	c := &channel.Called{Function: name, Request: channel.Request{Method: options.Method, Path: "/"}}
	if c.Method == "" {
		c.Method = "POST"
	}
	if options.Path != "" {
		c.Path, c.Query, _ = strings.Cut(options.Path, "?")
	}
	if body != nil && reflect.TypeOf(body).Kind() == reflect.Func { // no code would stop the iterator
		return nil, &CallError{"bad_call", "an iterator is no body of a call"}
	}
	var contentType string
	var err error
	if c.Body, contentType, err = bodyOf(body); err != nil {
		return nil, &CallError{"bad_call", "no body of a call: " + err.Error()}
	}
	c.Headers = withType(options.Header, contentType)
	r, err := e.Call(ctx, c)
	if err != nil {
		var f *channel.Failure
		if errors.As(err, &f) {
			return nil, &CallError{f.Type, f.Message}
		}
		return nil, err
	}
	return &Result{Status: r.Status, Header: r.Headers, Body: r.Body}, nil
}
