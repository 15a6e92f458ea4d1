package gateway

import (
	"context"
	"net/http"
	"strconv"

	"github.com/fre-engine/fre/engine"
)

// invoke makes an event of the request. rest follows /function/.
func (e *exchange) invoke(rest []byte) {
	name, path, ok := e.addressed(rest)
	if !ok || !e.admitted(name) {
		return
	}
	if e.g.OpenFaaS != nil { // OpenFaaS's fields for the event's id and start
		e.Set("X-Call-Id", e.id)
		e.Set("X-Start-Time", strconv.FormatInt(e.begun.UnixNano(), 10))
	}
	req := &request{
		Event: Event{Engine: e.g.Engine, Log: e.g.Log, Function: name, MaxBodyBytes: e.g.MaxBodyBytes},
		head:  string(e.Method) == http.MethodHead, selects: true, compress: e.g.Compress, cors: e.cors,
	}
	req.body = e.describe(&req.Request, path)
	ctx := e.Context()
	var t *tunnel
	if e.Upgrade {
		var quit context.CancelCauseFunc
		ctx, quit = context.WithCancelCause(ctx)
		defer quit(nil)
		t = e.asksForTunnel(quit)
	}
	// A proxy's connection carries requests of several clients: no function may have it.
	if t == nil && !e.client.trusted && e.CanLend() {
		req.lends = e
	}
	resp, err := forward(ctx, e, req, t)
	if t != nil {
		e.bytes += t.sent
	}
	if resp != nil {
		e.invocation, e.cold = resp.ID, resp.Cold
	} else {
		e.invocation = engine.Failed(err).ID
	}
	switch err.(type) { //nolint:errorlint // forward returns it as it is
	case nil:
	case *brokenError:
		e.code = "broken_off"
		e.Abort()
	default:
		e.failWith(err)
	}
}

// asksForTunnel returns a tunnel if the request asks for another protocol and the connection
// allows the change, else nil.
func (e *exchange) asksForTunnel(quit context.CancelCauseFunc) *tunnel {
	protocol := string(e.Get("upgrade"))
	if !e.Upgrade || protocol == "" || e.Body != nil || e.Protocol() != "HTTP/1.1" {
		return nil
	}
	return &tunnel{x: e, protocol: protocol, idle: e.g.TunnelIdle, quit: quit, opened: make(chan struct{}), over: make(chan struct{})}
}
