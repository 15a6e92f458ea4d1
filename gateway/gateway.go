// Package gateway is the data path for clients. It turns an HTTP request into an event, and the
// function's answer into the HTTP response.
//
//	/function/NAME[/path]  any method: invoke
//	/async-function/NAME[/path]     POST: accept an event that runs later
//	/hooks/FUNCTION/TRIGGER[/path]  a trigger of the function's template
//	/system/…, /build      OpenFaaS's clients (package adapters/openfaas)
//	/healthz               200 while the engine accepts events
//	/metrics               Prometheus text
//
// [Gateway] is a handler of package httpserver, which leaves bodies in files to the kernel.
// [Forward] does the same behind net/http.
package gateway

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/httpserver"
)

// DefaultMaxBody is the default limit of a request body in bytes.
const DefaultMaxBody = 64 << 20

// MaxHeaderBytes is the limit that net/http servers should set for a request's header. The
// gateway's own server has the same default (httpserver.DefaultLimits). A longer header gets 431.
const MaxHeaderBytes = 64 << 10

// Engine is the part of *engine.Engine that a gateway uses.
type Engine interface {
	Invoker
	Stopping() bool // the engine accepts no more events
}

// Config configures a gateway. Engine and Log are required.
type Config struct {
	Engine         Engine
	Log            *slog.Logger
	MaxBodyBytes   int64               // longer bodies get 413; default DefaultMaxBody
	Metrics        prometheus.Gatherer // nil: no /metrics
	TrustedProxies []netip.Prefix      // proxies whose X-Forwarded-* and Forwarded fields are believed
	AccessLog      *AccessLog          // nil: none; stays the caller's
	TunnelIdle     time.Duration       // longest silence of a connection that has left HTTP; default DefaultTunnelIdle
	Guard          *Guard              // authorises and limits requests; nil: no checks
	Events         Events              // nil: neither asynchronous events nor hooks
	Compress       bool                // compress answers if the client accepts it and the body shrinks
	OpenFaaS       http.Handler        // answers /system/ and /build, with its own authorisation; nil: 404
}

// Gateway handles the data path, and requests that its server refuses.
type Gateway struct {
	Config
	metrics http.Handler // nil: none
}

// New returns a Gateway: Handler and Refuse of an httpserver.Config.
func New(cfg Config) *Gateway {
	if cfg.MaxBodyBytes == 0 {
		cfg.MaxBodyBytes = DefaultMaxBody
	}
	if cfg.TunnelIdle == 0 {
		cfg.TunnelIdle = DefaultTunnelIdle
	}
	g := &Gateway{Config: cfg}
	if cfg.Metrics != nil {
		g.metrics = promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{})
	}
	return g
}

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

var (
	functionPrefix = []byte("/function/")
	systemPrefix   = []byte("/system/")
)

// exchange is one request to the gateway, with its log line.
type exchange struct {
	*httpserver.Exchange
	g      *Gateway
	client client
	begun  time.Time
	id     string // of the request
	secret bool   // Authorization is for the gateway, not for the function
	cors   bool   // the gateway decides on allowed origins

	named string // function as spelled in the path

	// For the access log.
	function   string
	invocation string
	code       string // error code, "" if none
	cold       bool
	status     int
	bytes      int64
}

// addressed splits rest into the function's name, one part per hop, and the event's path. For a
// malformed path it answers 400 and returns false.
func (e *exchange) addressed(rest []byte, hops ...*string) (name string, path []byte, ok bool) {
	escaped, path, _ := bytes.Cut(rest, slash)
	for _, hop := range hops {
		var part []byte
		part, path, _ = bytes.Cut(path, slash)
		*hop = string(part)
	}
	e.named = string(escaped)
	name, err := url.PathUnescape(e.named)
	if err == nil {
		if e.g.OpenFaaS != nil {
			name = strings.TrimSuffix(name, "."+OpenFaaSNamespace)
		}
		e.function = name
		path, err = eventPath(path)
	}
	if err != nil {
		e.refuse(failure.BadPath, err.Error())
	}
	return name, path, err == nil
}

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
	if e.Upgrade {
		var quit context.CancelCauseFunc
		ctx, quit = context.WithCancelCause(ctx)
		defer quit(nil)
		req.tunnel = e.asksForTunnel(quit)
	}
	// A proxy's connection carries requests of several clients: no function may have it.
	if req.tunnel == nil && !e.client.trusted && e.CanLend() {
		req.lends = e
	}
	resp, err := forward(ctx, e, req)
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

// describe sets r to the client's request, with path as the event's path. It returns the body, nil
// if there is none.
func (e *exchange) describe(r *engine.Request, path []byte) *eventBody {
	*r = engine.Request{Method: string(e.Method), Path: string(path), Query: string(e.Query), Headers: e.header()}
	if e.Body == nil {
		return nil
	}
	b := &eventBody{from: e.Body, interrupt: e.Body.Close, size: e.Body.Size(), limit: e.g.MaxBodyBytes}
	r.Body, r.Length = b, b.size
	return b
}

var slash = []byte{'/'}

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

// reads reports whether the method is GET or HEAD, and refuses any other.
func (e *exchange) reads() bool {
	if m := string(e.Method); m == http.MethodGet || m == http.MethodHead {
		return true
	}
	e.Set("Allow", "GET, HEAD")
	e.refuse(failure.MethodNotAllowed, "only GET and HEAD are answered here")
	return false
}

// The methods below count the sent bytes for the access log.

// Send answers with a body in memory.
func (e *exchange) Send(status int, body []byte) error {
	e.status = status
	err := e.Exchange.Send(status, body)
	if err == nil && !e.hollow() {
		e.bytes = int64(len(body))
	}
	return err
}

// SendFile answers with a part of a file.
func (e *exchange) SendFile(status int, f *os.File, offset, length int64) error {
	e.status = status
	err := e.Exchange.SendFile(status, f, offset, length)
	if err == nil && !e.hollow() {
		e.bytes = length
	}
	return err
}

// Begin starts an answer whose body follows by Write.
func (e *exchange) Begin(status int, length int64) error {
	e.status = status
	return e.Exchange.Begin(status, length)
}

// Write sends a part of the body.
func (e *exchange) Write(p []byte) (int, error) {
	n, err := e.Exchange.Write(p)
	e.bytes += int64(n)
	return n, err
}

// Lend has another process send the rest of the body.
func (e *exchange) Lend(to func(socket syscall.RawConn) (int64, error)) (int64, error) {
	n, err := e.Exchange.Lend(to)
	e.bytes += n
	return n, err
}

// hollow reports whether the answer has no body.
func (e *exchange) hollow() bool {
	return string(e.Method) == http.MethodHead || e.status == http.StatusNoContent || e.status == http.StatusNotModified
}

// log writes the request to the access log.
func (e *exchange) log() {
	if e.g.AccessLog == nil {
		return
	}
	e.g.AccessLog.Add(accessLine{
		Time: e.begun, ID: e.id, Client: e.client.text, Method: string(e.Method), Path: string(e.Path), Status: e.status,
		Bytes: e.bytes, Micros: time.Since(e.begun).Microseconds(), Function: e.function, Invocation: e.invocation, Cold: e.cold, Error: e.code,
	})
}
