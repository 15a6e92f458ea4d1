package gateway

import (
	"bytes"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/httpserver"
)

var (
	functionPrefix = []byte("/function/")
	asyncPrefix    = []byte("/async-function/")
	hooksPrefix    = []byte("/hooks/")
	systemPrefix   = []byte("/system/")
)

// Serve answers a request.
func (g *Gateway) Serve(x *httpserver.Exchange) {
	e := exchange{Exchange: x, g: g, begun: time.Now()}
	e.client = clientOf(x, g.TrustedProxies)
	e.id = requestID(x.Get("x-request-id"))
	e.Set("X-Request-Id", e.id)
	defer e.log()
	switch path := x.Path; {
	case bytes.HasPrefix(path, functionPrefix):
		e.invoke(path[len(functionPrefix):])
	case bytes.HasPrefix(path, asyncPrefix) && g.Events != nil:
		e.async(path[len(asyncPrefix):])
	case bytes.HasPrefix(path, hooksPrefix) && g.Events != nil:
		e.hook(path[len(hooksPrefix):])
	case g.OpenFaaS != nil && (bytes.HasPrefix(path, systemPrefix) || string(path) == "/build"):
		e.openFaaS()
	case string(path) == "/healthz":
		e.health()
	case string(path) == "/metrics" && g.metrics != nil:
		if e.reads() {
			e.metered()
		}
	default:
		e.refuse(failure.NotFound, "no such path: call functions at /function/NAME")
	}
}

// health reports whether the engine accepts events.
func (e *exchange) health() {
	switch {
	case !e.reads():
	case e.g.Engine.Stopping():
		e.failWith(engine.ErrClosed)
	default:
		e.Set("Content-Type", "text/plain; charset=utf-8")
		_ = e.Send(http.StatusOK, []byte("ok\n")) // fails only with the connection
	}
}

// openFaaS answers by the adapter for OpenFaaS's clients, which checks tokens itself.
func (e *exchange) openFaaS() {
	if !e.paced() {
		return
	}
	e.secret = true
	httpserver.NetHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = net.JoinHostPort(e.client.text, "0") // the client behind a trusted proxy
		noted := &notedWriter{ResponseWriter: w, e: e}
		e.g.OpenFaaS.ServeHTTP(noted, r)
		if e.status == 0 {
			e.status = http.StatusOK
		}
	})).Serve(e.Exchange)
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
