package server

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/server/intake"
)

const (
	// bodyTime is the default time limit for reading a request's body.
	bodyTime = time.Minute
	// unreadTime is the time limit for the part of a body that the handler has not read.
	unreadTime = time.Second
)

// limitBody limits the time for a request's body: body for the whole body, and left for the part
// that the handler has not read. net/http drains an unread body before the answer, and would
// wait without limit for any client, even an unauthenticated one.
func limitBody(next http.Handler, body, left time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(body)) // fails only with the connection, as below
		sent := &deadlineBody{ReadCloser: r.Body, w: w}
		r.Body = sent
		next.ServeHTTP(w, r)
		if !sent.ended.Load() {
			_ = control.SetReadDeadline(time.Now().Add(left))
		}
	})
}

// clearBodyDeadline removes the time limit of limitBody, for handlers with limits of their own.
func clearBodyDeadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // fails only with the connection
}

// deadlineBody removes the read deadline at the end of the body. Afterwards net/http reads from
// the connection to detect a disconnect, and an expired deadline would look like a disconnect.
type deadlineBody struct {
	io.ReadCloser
	w     http.ResponseWriter
	ended atomic.Bool
}

func (b *deadlineBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
		clearBodyDeadline(b.w)
	}
	return n, err
}

// Bounded limits the open connections of l: all in total, and ofOne per client (see
// access.Block). Further connections are closed on arrival. Connections from an address for
// which shared is true, such as a proxy's, count only towards the total.
func Bounded(l net.Listener, all, ofOne int, shared func(netip.Addr) bool) net.Listener {
	return &boundedListener{
		Listener: l, shared: shared,
		slots: intake.Slots[netip.Prefix]{All: all, Of: ofOne, Shared: func(p netip.Prefix) bool { return !p.IsValid() }},
	}
}

type boundedListener struct {
	net.Listener
	shared func(netip.Addr) bool
	slots  intake.Slots[netip.Prefix] // keyed by client; the zero prefix stands for all shared addresses
}

// Accept waits for a connection within the limits.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if leave, ok := l.enter(c.RemoteAddr()); ok {
			return &boundedConn{c, leave}, nil
		}
		_ = c.Close() // nothing was sent
	}
}

func (l *boundedListener) enter(from net.Addr) (leave func(), ok bool) {
	var client netip.Prefix
	if at, err := netip.ParseAddrPort(from.String()); err == nil && !l.shared(at.Addr().Unmap()) {
		client = access.Block(at.Addr())
	}
	return l.slots.Enter(client)
}

type boundedConn struct {
	net.Conn
	leave func()
}

// Close closes the connection and releases its slot.
func (c *boundedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite shuts down the write side, or returns ErrUnsupported.
func (c *boundedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
