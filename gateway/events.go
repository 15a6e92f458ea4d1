package gateway

import (
	"encoding/json"
	"net/http"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
)

// accepted is the body of the answer 202.
type accepted struct {
	ID  string   `json:"id,omitempty"`
	IDs []string `json:"ids,omitempty"`
	// Ignored is the reason why a request to a hook became no event.
	Ignored string `json:"ignored,omitempty"`
}

// event converts the request for the engine, with path as the event's path. Call the returned
// function after the engine is done with the body.
func (e *exchange) event(path []byte) (*engine.Request, func()) {
	r := &engine.Request{}
	b := e.describe(r, path)
	return r, func() {
		if !b.ended() {
			e.CloseAfter()
		}
	}
}

// async accepts an event as OpenFaaS's gateway does: 202 and the id in X-Call-Id.
func (e *exchange) async(rest []byte) {
	name, path, ok := e.addressed(rest)
	if !ok || !e.admitted(name) { // admitted answers preflight requests, which are not POST
		return
	}
	if string(e.Method) != http.MethodPost {
		e.Set("Allow", "POST")
		e.refuse(failure.MethodNotAllowed, "an asynchronous event is a POST")
		return
	}
	r, done := e.event(path)
	id, err := e.g.Events.Publish(e.Context(), name, r)
	done()
	if err != nil {
		e.failWith(err)
		return
	}
	e.invocation = id
	e.Set("X-Call-Id", id)
	e.accept(accepted{ID: id})
}

// hook passes a request to a trigger: /hooks/FUNCTION/TRIGGER[/path].
func (e *exchange) hook(rest []byte) {
	var trigger string
	name, path, ok := e.addressed(rest, &trigger)
	if !ok || !e.paced() { // the trigger authorises requests and counts the events it accepts
		return
	}
	if string(e.Method) == http.MethodOptions {
		fields, err := e.g.Events.Handshake(name, trigger, e.eventHeader())
		if err != nil {
			e.failWith(err)
			return
		}
		for _, f := range fields {
			e.Set(f[0], f[1])
		}
		_ = e.Send(http.StatusOK, nil) // fails only with the connection
		return
	}
	r, done := e.event(path)
	ids, ignored, err := e.g.Events.Hook(e.Context(), name, trigger, r)
	done()
	if err != nil {
		e.failWith(err)
		return
	}
	a := accepted{Ignored: ignored}
	switch len(ids) {
	case 0:
	case 1:
		a.ID = ids[0]
		e.Set("X-Call-Id", a.ID)
	default:
		a.IDs = ids
	}
	e.accept(a)
}

func (e *exchange) accept(a accepted) {
	body, err := json.Marshal(a)
	if err != nil { // impossible with strings
		e.failWith(err)
		return
	}
	e.Set("Content-Type", "application/json")
	_ = e.Send(http.StatusAccepted, append(body, '\n')) // fails only with the connection
}
