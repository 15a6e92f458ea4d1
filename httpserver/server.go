package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
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

// Server serves connections. Its methods are safe for concurrent use.
type Server struct {
	cfg  Config
	ctx  context.Context // parent of every exchange's context
	stop context.CancelCauseFunc
	wg   sync.WaitGroup

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	clients   map[netip.Addr]map[*conn]struct{} // conns by client, without the zero address
	closing   atomic.Bool                       // set under mu

	evicted, refused, refusedClient uint64
	refusing                        atomic.Int32 // goroutines that send a refusal

	dry      atomic.Bool   // a wait for memory was in vain, and no memory was acquired since
	noMemory atomic.Uint64 // failures to acquire memory

	// Idle goroutines that wait for HTTP/2 streams.
	idle   chan *stream
	idlers atomic.Int32
	quit   chan struct{} // closed when closing is set
}

// ErrClosed is the cause of an exchange's end when Close breaks the exchange off.
var ErrClosed = failure.New(failure.Stopping, "the server was closed", "")

// New returns a server without listeners.
func New(cfg Config) *Server {
	if cfg.Limits == (Limits{}) {
		cfg.Limits = DefaultLimits
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&cfg.HeadTimeout, 10 * time.Second}, {&cfg.IdleTimeout, 2 * time.Minute}, {&cfg.StallTimeout, time.Minute}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = 100
	}
	if cfg.MaxConnections == 0 {
		cfg.MaxConnections = defaultConnections
	}
	if cfg.MaxPerClient == 0 {
		cfg.MaxPerClient = max(1, cfg.MaxConnections/2)
	}
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
	s := &Server{cfg: cfg, listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{}, clients: map[netip.Addr]map[*conn]struct{}{}, idle: make(chan *stream), quit: make(chan struct{})}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	return s
}

// Serve accepts connections until the listener fails, or until Shutdown or Close closes it. Then
// the error is net.ErrClosed.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.closing.Load() {
		s.mu.Unlock()
		return errors.Join(net.ErrClosed, l.Close())
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	for {
		nc, err := l.Accept()
		if err != nil {
			// For example out of file descriptors: an open connection will end.
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() || isTemporary(err) {
				s.cfg.Log.Warn("cannot accept a connection: again in 10 ms", "error", err)
				select {
				case <-time.After(10 * time.Millisecond):
				case <-s.ctx.Done():
				}
				continue
			}
			return err
		}
		c := newConn(s, nc)
		s.mu.Lock()
		if s.closing.Load() {
			s.mu.Unlock()
			_ = nc.Close()
			continue
		}
		if refused := s.enterLocked(c); refused == "" {
			s.wg.Go(c.serve)
		} else {
			s.turnAway(c, refused)
		}
		s.mu.Unlock()
	}
}

// Shutdown stops accepting, closes idle connections, and waits until every request is answered.
// If ctx ends first, Shutdown returns its cause; call Close then.
func (s *Server) Shutdown(ctx context.Context) error {
	s.end((*conn).closeIdle)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.wg.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends all connections, requests under way included, and waits for the handlers.
func (s *Server) Close() error {
	s.stop(ErrClosed)
	s.end(func(c *conn) { _ = c.nc.Close() })
	s.wg.Wait()
	return nil
}

func (s *Server) end(each func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing.Swap(true) {
		close(s.quit)
	}
	for l := range s.listeners {
		_ = l.Close()
	}
	for c := range s.conns {
		each(c)
	}
}

// isTemporary reports errors of accept(2) after which the next call may succeed.
func isTemporary(err error) bool {
	for _, e := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EPROTO, unix.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
