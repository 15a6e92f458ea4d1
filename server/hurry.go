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
	// bodyPatience is how long a request's body may take, unless its handler says otherwise.
	bodyPatience = time.Minute
	// leftPatience is how long what no handler has read of it may take to come.
	leftPatience = time.Second
)

// hurried has clients send what they have begun to within body, and what no handler has read of
// it within left: net/http, which reads that before it answers, would wait for ever, for whoever
// has connected.
func hurried(next http.Handler, body, left time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(body)) // fails with the connection, as below
		sent := &hurriedBody{ReadCloser: r.Body, w: w}
		r.Body = sent
		next.ServeHTTP(w, r)
		if !sent.ended.Load() {
			_ = control.SetReadDeadline(time.Now().Add(left))
		}
	})
}

// unhurried is for bodies that may take longer: who reads them has bounds of its own.
func unhurried(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // fails with the connection
}

// hurriedBody lifts the deadline at its end: from there on net/http reads to learn whether the
// client has gone, and a deadline would mean that.
type hurriedBody struct {
	io.ReadCloser
	w     http.ResponseWriter
	ended atomic.Bool
}

func (b *hurriedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
		unhurried(b.w)
	}
	return n, err
}

// Bounded is l with at most so many connections at once, and of one client (access.Block) ofOne;
// others are closed as they come. Those that are shared, as a proxy's, count among all alone.
func Bounded(l net.Listener, all, ofOne int, shared func(netip.Addr) bool) net.Listener {
	return &boundedListener{
		Listener: l, shared: shared,
		places: intake.Places[netip.Prefix]{All: all, Of: ofOne, Shared: func(p netip.Prefix) bool { return !p.IsValid() }},
	}
}

type boundedListener struct {
	net.Listener
	shared func(netip.Addr) bool
	places intake.Places[netip.Prefix] // by client; no prefix is many
}

// Accept waits for a connection that there is a place for.
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
	return l.places.Enter(client)
}

type boundedConn struct {
	net.Conn
	leave func()
}

// Close gives the place back.
func (c *boundedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite closes our direction, where that can be done alone.
func (c *boundedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
