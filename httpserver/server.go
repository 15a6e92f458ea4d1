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
)

// Handler answers requests.
type Handler interface {
	// Serve answers the request of x, on the goroutine of its connection. Nothing of
	// x, its slices included, may be used after it returns.
	Serve(x *Exchange)
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(x *Exchange)

// Serve calls f.
func (f HandlerFunc) Serve(x *Exchange) { f(x) }

// Config of a Server. Handler is required.
type Config struct {
	Handler Handler
	Log     *slog.Logger // default: what goes wrong in the server is not told
	Limits  Limits       // default: DefaultLimits

	// HeadTimeout is how long a head may take from its first byte to its last, default
	// 10 seconds; IdleTimeout how long a connection may wait for the next, default two
	// minutes; StallTimeout how long a client may send or take nothing of a body,
	// default one minute.
	HeadTimeout, IdleTimeout, StallTimeout time.Duration

	// MaxStreams is how many requests a client of HTTP/2 may have under way on one
	// connection, default 100.
	MaxStreams int

	// MaxConnections is how many there may be, default 10,000, and MaxPerClient how many
	// of one address, of IPv6 one /64, default half of that. One more takes the place of
	// one that has no request under way, of the same client's where its bound is reached;
	// where all have one it is answered 503, and closed. Shared, unless nil, names
	// addresses that many clients share, such as a proxy's: they have no bound of their
	// own.
	MaxConnections, MaxPerClient int
	Shared                       func(netip.Addr) bool

	// TLS, if not nil, is what all connections are to speak; the handshake is part of the
	// first head. Where it names no protocols they are HTTP/2 and HTTP/1.1. [Certificate]
	// follows files.
	TLS *tls.Config

	// Memory is what connections are read into and copied through; default: 64 MiB of Go's
	// heap at most. A connection that waits for its client has none of it.
	Memory Memory

	// Refuse makes the body of the answer to a request that no handler sees, and may set
	// fields of its head and note it; default: the reason as text. x's request is what
	// could be read of it, nothing at all maybe. The server sends the answer, and says
	// in it that the connection ends.
	Refuse func(x *Exchange, e *RequestError) (contentType string, body []byte)
}

// Server serves connections. Its methods may be called from several goroutines.
type Server struct {
	cfg  Config
	ctx  context.Context // of all exchanges
	stop context.CancelCauseFunc
	wg   sync.WaitGroup

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	clients   map[netip.Addr]map[*conn]struct{} // conns, but for those of nobody
	closing   atomic.Bool                       // set under mu

	evicted, refused, refusedClient uint64
	refusing                        atomic.Int32 // goroutines that tell a client

	dry      atomic.Bool   // somebody has waited for memory in vain, and nobody has got some since
	noMemory atomic.Uint64 // times that there was none

	// Goroutines that wait for streams of HTTP/2 to answer.
	idle   chan *stream
	idlers atomic.Int32
	quit   chan struct{} // closed when closing is set
}

// ErrClosed is why an exchange ends that Close broke off.
var ErrClosed = errors.New("the server was closed")

// New returns a server that has nothing to serve yet.
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

// Serve accepts connections until the listener fails or the server is shut down or
// closed, which closes the listener: then the error is net.ErrClosed.
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
			// Out of file descriptors: those that are there go on, and one of them ends.
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

// Shutdown accepts nothing more, closes what is idle, and waits until what is under
// way is answered, or ctx ends: then it returns its cause, and Close is due.
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

// Close ends everything, what is under way too, and waits for the handlers.
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

// isTemporary are the errors of accept(2) after which the next may succeed.
func isTemporary(err error) bool {
	for _, e := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EPROTO, unix.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
