package httpserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Handler answers requests.
type Handler interface {
	// Serve answers the request of x, over HTTP/1.1 on the connection's goroutine. After Serve
	// returns, x and its slices must not be used.
	Serve(x *Exchange)
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(x *Exchange)

// Serve calls f.
func (f HandlerFunc) Serve(x *Exchange) { f(x) }

// Config configures a Server. Handler is required.
type Config struct {
	Handler Handler
	Log     *slog.Logger // default: errors of the server are not logged
	Limits  Limits       // default: DefaultLimits

	// HeadTimeout is how long a head may take from its first byte to its last, default 10
	// seconds. IdleTimeout is how long a connection may wait for its next request, default two
	// minutes. StallTimeout is how long a client may neither send nor read a byte of a body,
	// default one minute.
	HeadTimeout, IdleTimeout, StallTimeout time.Duration

	// MaxStreams limits the concurrent requests on one HTTP/2 connection, default 100.
	MaxStreams int

	// MaxConnections limits the connections, default 10,000. MaxPerClient limits the connections
	// of one address, for IPv6 one /64, default half of MaxConnections. A connection beyond a
	// limit replaces a connection without a request under way, of the same client if the client's
	// limit is reached. If every connection has a request, the new connection gets 503 and is
	// closed. Shared, unless nil, reports addresses shared by many clients, such as a proxy's;
	// MaxPerClient does not apply to them.
	MaxConnections, MaxPerClient int
	Shared                       func(netip.Addr) bool

	// TLS, if not nil, makes every connection use TLS. HeadTimeout covers the handshake. Empty
	// NextProtos mean HTTP/2 and HTTP/1.1. [Certificate] reloads certificate files.
	TLS *tls.Config

	// Memory provides the buffers for reading and copying, default: at most 64 MiB of Go's heap.
	// An idle connection holds none.
	Memory Memory

	// Refuse returns the body of the answer to a request that no handler sees. It may set header
	// fields and record the request. x holds the parsed part of the request, perhaps nothing. The
	// default body is e.Reason as text. The server sends the answer, over HTTP/1.1 with
	// Connection: close.
	Refuse func(x *Exchange, e *RequestError) (contentType string, body []byte)
}

// defaultConnections is the default of MaxConnections.
const defaultConnections = 10_000

// setDefaults replaces the zero values.
func (cfg *Config) setDefaults() {
	cfg.Limits = cmp.Or(cfg.Limits, DefaultLimits)
	cfg.HeadTimeout = cmp.Or(cfg.HeadTimeout, 10*time.Second)
	cfg.IdleTimeout = cmp.Or(cfg.IdleTimeout, 2*time.Minute)
	cfg.StallTimeout = cmp.Or(cfg.StallTimeout, time.Minute)
	cfg.MaxStreams = cmp.Or(cfg.MaxStreams, 100)
	cfg.MaxConnections = cmp.Or(cfg.MaxConnections, defaultConnections)
	cfg.MaxPerClient = cmp.Or(cfg.MaxPerClient, max(1, cfg.MaxConnections/2))
	if cfg.TLS != nil && len(cfg.TLS.NextProtos) == 0 {
		cfg.TLS = cfg.TLS.Clone()
		cfg.TLS.NextProtos = []string{"h2", "http/1.1"}
	}
	if cfg.Refuse == nil {
		cfg.Refuse = func(_ *Exchange, e *RequestError) (string, []byte) {
			return "text/plain; charset=utf-8", []byte(e.Reason + "\n")
		}
	}
	if cfg.Memory == nil {
		cfg.Memory = NewMemory(defaultMemory)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
}

// service is the part of a Server that its connections use.
type service struct {
	cfg     Config
	pool    pool
	ctx     context.Context // parent of every exchange's context
	closing atomic.Bool     // set under the Server's mu
	wg      sync.WaitGroup

	// Idle goroutines that wait for HTTP/2 streams.
	idle   chan task
	idlers atomic.Int32
	quit   chan struct{} // closed when closing is set
}

// task is an HTTP/2 stream.
type task interface{ serve() }

// work passes a task to an idle worker, whose stack has grown already, or to a new one.
func (s *service) work(t task) {
	select {
	case s.idle <- t:
	default:
		s.wg.Go(func() { s.worker(t) })
	}
}

// maxIdle limits the idle workers.
const maxIdle = 64

func (s *service) worker(t task) {
	for {
		t.serve()
		if s.idlers.Add(1) > maxIdle {
			s.idlers.Add(-1)
			return
		}
		select {
		case t = <-s.idle:
			s.idlers.Add(-1)
		case <-s.quit:
			return
		}
	}
}
