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
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/engine"
)

// DefaultMaxBody is the default limit of a request body in bytes.
const DefaultMaxBody = 64 << 20

// MaxHeaderBytes is the limit that net/http servers should set for a request's header. The
// gateway's own server has the same default (httpserver.DefaultLimits). A longer header gets 431.
const MaxHeaderBytes = 64 << 10

// DefaultTunnelIdle is how long a tunnel may be idle.
const DefaultTunnelIdle = 5 * time.Minute

// OpenFaaSNamespace is the default tenant's namespace in OpenFaaS's clients: without a namespace,
// faas-cli calls NAME.openfaas-fn.
const OpenFaaSNamespace = "openfaas-fn"

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

// Guard decides which requests become events. Access and Front are required.
type Guard struct {
	Access *access.Access
	Front  func(function string) (engine.Front, bool)

	Token     bool             // events need a token with the scope invoke, unless the template says open
	AllowOpen bool             // templates may say open despite Token
	CORS      *engine.CORS     // for functions whose template has none; nil: none
	Clients   access.Addresses // rate limit per client address
}

// Events accepts asynchronous events and requests to triggers; package events implements it.
type Events interface {
	// Publish accepts an event and returns its id. After Publish the event is on disk.
	Publish(ctx context.Context, function string, r *engine.Request) (id string, err error)
	// Hook passes a request to a trigger of the function, which decides. ids are the resulting
	// events; without events, ignored gives the reason.
	Hook(ctx context.Context, function, trigger string, r *engine.Request) (ids []string, ignored string, err error)
	// Handshake returns the header fields that answer OPTIONS of a hook.
	Handshake(function, trigger string, header [][2]string) ([][2]string, error)
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
