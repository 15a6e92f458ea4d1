package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/httpserver"
)

// failWith answers an event that has no response.
func (e *exchange) failWith(err error) {
	var slow *access.SlowDownError
	if errors.As(err, &slow) { // quota of the tenant's events
		e.slowDown("quota", slow.Error(), slow.After)
		return
	}
	status, code := statusOf(err)
	message := err.Error()
	if code == "internal" { // internal errors are for the operator only
		e.g.Log.Error("invoke", "function", e.function, "request", e.id, "error", err)
		message = "the function could not be run; the engine's log says why"
	}
	if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		e.Set("Retry-After", "1")
	}
	e.fail(status, code, message)
}

func (e *exchange) fail(status int, code, message string) {
	e.code = code
	if e.invocation != "" {
		e.Set("X-Fre-Id", e.invocation)
	}
	e.Set("Content-Type", "application/json")
	e.Set("X-Content-Type-Options", "nosniff")
	_ = e.Send(status, errorBody(code, message)) // fails only with the connection
}

// statuses maps the engine's error codes to HTTP.
var statuses = map[string]int{
	"quota": http.StatusTooManyRequests, "function_error": http.StatusInternalServerError, "function_crashed": http.StatusBadGateway,
	"timeout": http.StatusGatewayTimeout, "slow_body": http.StatusRequestTimeout, "header_too_large": http.StatusRequestHeaderFieldsTooLarge,
	"overloaded": http.StatusServiceUnavailable, "engine_overloaded": http.StatusServiceUnavailable, "degraded": http.StatusServiceUnavailable,
	"stopping": http.StatusServiceUnavailable, "not_found": http.StatusNotFound, "image_gone": http.StatusNotFound,
	"loop": http.StatusLoopDetected, "step_missing": http.StatusBadGateway,
}

// statusOf maps errors of the engine and of request bodies to HTTP.
func statusOf(err error) (status int, code string) {
	if code = engine.ErrorCode(err); code != "" {
		return statuses[code], code
	}
	var tooLarge *http.MaxBytesError
	var body *BodyError
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, "body_too_large"
	case errors.As(err, &body):
		return http.StatusBadRequest, "bad_body"
	case errors.Is(err, httpserver.ErrClosed):
		return statuses["stopping"], "stopping"
	case errors.Is(err, httpserver.ErrNoMemory):
		return http.StatusServiceUnavailable, "busy"
	case errors.Is(err, context.Canceled):
		return 499, "client_gone" // only for logs and metrics
	}
	return http.StatusInternalServerError, "internal"
}

// refusedCode returns the code for a request that package httpserver refuses.
func refusedCode(status int) string {
	switch status {
	case http.StatusRequestTimeout:
		return "timeout"
	case http.StatusRequestEntityTooLarge:
		return "body_too_large"
	case http.StatusRequestURITooLong:
		return "path_too_long"
	case http.StatusExpectationFailed:
		return "expectation_failed"
	case http.StatusRequestHeaderFieldsTooLarge:
		return "header_too_large"
	case http.StatusNotImplemented:
		return "not_implemented"
	case http.StatusHTTPVersionNotSupported:
		return "version_not_supported"
	case http.StatusServiceUnavailable:
		return "busy"
	}
	return "bad_request"
}

// errorBody returns the body of every error of the gateway.
func errorBody(code, message string) []byte {
	var body struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	body.Error.Code, body.Error.Message = code, message
	b, err := json.Marshal(body)
	if err != nil { // impossible with two strings
		b = []byte(`{"error":{"code":"internal"}}`)
	}
	return append(b, '\n')
}
