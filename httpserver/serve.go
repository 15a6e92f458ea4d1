package httpserver

import (
	"errors"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"
)

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
			if isTemporary(err) { // for example out of file descriptors: an open connection will end
				s.cfg.Log.Warn("cannot accept a connection: again in 10 ms", "error", err)
				select {
				case <-time.After(10 * time.Millisecond):
				case <-s.ctx.Done():
				}
				continue
			}
			return err
		}
		c := newConn(&s.service, nc, s.bound.clientOf(nc))
		s.mu.Lock()
		if s.closing.Load() {
			s.mu.Unlock()
			_ = nc.Close()
			continue
		}
		if refused := s.bound.enter(&c.slot); refused == "" {
			s.wg.Go(func() { s.serve(c) })
		} else {
			s.turnAway(c, refused)
		}
		s.mu.Unlock()
	}
}

// serve answers one request after another.
func (s *Server) serve(c *conn) {
	defer s.leave(c)
	defer c.close()
	if !c.handshake() {
		return
	}
	for !c.http2 && c.next() {
		if !c.exchange() {
			return
		}
	}
	if c.http2 {
		serveHTTP2(c)
	}
}

func (s *Server) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bound.leave(&c.slot)
}

// turnAway tells the client why it is refused, if few refusals are under way and the connection
// is plain; else it closes the connection.
func (s *Server) turnAway(c *conn, reason string) {
	if c.raw == nil || s.refusing.Add(1) > maxRefusing {
		if c.raw != nil {
			s.refusing.Add(-1)
		}
		_ = c.nc.Close() // no byte was exchanged
		return
	}
	s.wg.Go(func() {
		defer s.refusing.Add(-1)
		c.refuse(&RequestError{http.StatusServiceUnavailable, reason})
		_ = c.nc.Close() // the answer was sent, or cannot be
	})
}

// maxRefusing limits the refusals under way at once. Further connections are closed without an
// answer.
const maxRefusing = 64

// isTemporary reports errors of accept(2) after which the next call may succeed.
func isTemporary(err error) bool {
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		return true
	}
	for _, e := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EPROTO, unix.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
