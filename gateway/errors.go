package gateway

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/httpserver"
)

// failWith answers a request that err ended, by the catalogue of package api.
func (e *exchange) failWith(err error) {
	failed := errorOf(err)
	if failed.Code == failure.Internal {
		e.g.Log.Error("invoke", "function", e.function, "request", e.id, "error", err)
		failed.Message = "the function could not be run; the engine's log says why"
	}
	if wait := api.RetryAfter(err); wait > 0 && failed.Code != failure.Internal {
		e.Set("Retry-After", strconv.Itoa(wait))
	}
	e.answer(failed)
}

// errorOf returns the answer to a request that err ended. The codes of the control API are
// internal for callers of functions.
func errorOf(err error) *api.Error {
	failed := api.ErrorOf(err)
	if failed.Code.OfControl() {
		failed = api.ErrorOf(failure.Wrap(failure.Internal, err, ""))
	}
	return failed
}

// refuse answers a request that the gateway itself refuses.
func (e *exchange) refuse(code failure.Code, message string) {
	e.failWith(failure.New(code, message, ""))
}

// answer sends an error.
func (e *exchange) answer(failed *api.Error) {
	e.code = string(failed.Code)
	if e.invocation != "" {
		e.Set("X-Fre-Id", e.invocation)
	}
	e.Set("Content-Type", "application/json")
	e.Set("X-Content-Type-Options", "nosniff")
	_ = e.Send(failed.Status, errorBody(failed)) // fails only with the connection
}

// Refuse returns the answer to a request that the server refuses.
func (g *Gateway) Refuse(x *httpserver.Exchange, refused *httpserver.RequestError) (contentType string, body []byte) {
	failed := errorOf(refused)
	failed.Message += "; the connection is closed"
	e := exchange{Exchange: x, g: g, begun: time.Now(), id: requestID(nil), status: refused.Status, code: string(failed.Code)}
	e.client = clientOf(x, nil)
	e.Set("X-Request-Id", e.id)
	e.Set("X-Content-Type-Options", "nosniff")
	if wait := api.RetryAfter(refused); wait > 0 {
		e.Set("Retry-After", strconv.Itoa(wait))
	}
	body = errorBody(failed)
	e.bytes = int64(len(body))
	e.log()
	return "application/json", body
}

// errorBody returns the body of every error of the gateway.
func errorBody(failed *api.Error) []byte {
	b, err := json.Marshal(api.ErrorBody{Error: failed})
	if err != nil { // impossible with strings
		b = []byte(`{"error":{"code":"internal"}}`)
	}
	return append(b, '\n')
}
