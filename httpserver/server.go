package httpserver

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"github.com/fre-engine/fre/failure"
)

// Server serves connections. Its methods are safe for concurrent use.
type Server struct {
	service
	cancel context.CancelCauseFunc // ends ctx

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	bound     bound

	refusing atomic.Int32 // goroutines that send a refusal
}

// ErrClosed is the cause of an exchange's end when Close breaks the exchange off.
var ErrClosed = failure.New(failure.Stopping, "the server was closed", "")

// New returns a server without listeners.
func New(cfg Config) *Server {
	cfg.setDefaults()
	s := &Server{service: service{cfg: cfg, idle: make(chan task), quit: make(chan struct{})}, listeners: map[net.Listener]struct{}{}, bound: newBound(&cfg)}
	s.pool.from = cfg.Memory
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// Shutdown stops accepting, closes idle connections, and waits until every request is answered.
// If ctx ends first, Shutdown returns its cause; call Close then.
func (s *Server) Shutdown(ctx context.Context) error {
	s.end((*slot).closeIdle)
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
	s.cancel(ErrClosed)
	s.end(func(p *slot) { _ = p.nc.Close() })
	s.wg.Wait()
	return nil
}

func (s *Server) end(each func(*slot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing.Swap(true) {
		close(s.quit)
	}
	for l := range s.listeners {
		_ = l.Close()
	}
	for p := range s.bound.slots {
		each(p)
	}
}

// Stats counts a server's connections.
type Stats struct {
	Open          int    // now
	Evicted       uint64 // closed while idle, in favour of new connections
	Refused       uint64 // none was idle
	RefusedClient uint64 // the client had too many
	NoMemory      uint64 // failures to acquire memory
}

// Stats returns the current counts.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Open: len(s.bound.slots), Evicted: s.bound.evicted, Refused: s.bound.refused, RefusedClient: s.bound.refusedClient, NoMemory: s.pool.failures.Load()}
}
