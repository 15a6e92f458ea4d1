package httpserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"
)

// smallBody is the longest body, in bytes, that is copied behind its head.
const smallBody = 4 << 10

// conn is one connection and its goroutine.
type conn struct {
	link
	s    *service
	slot slot

	fresh bool   // no request has arrived yet
	http2 bool   // the client speaks HTTP/2
	addr  string // address of the client, once asked for

	out []byte // head of the answer

	ctx  context.Context         // context of every exchange; nil until asked for
	gone context.CancelCauseFunc // ends ctx

	x       Exchange
	body    *connBody // body of x; nil if none
	tunnel  *Tunnel   // of x; nil before Switch
	watcher watcher   // watches the client of x
}

// newConn takes nc. The connection counts for the client.
func newConn(s *service, nc net.Conn, client netip.Addr) *conn {
	c := &conn{s: s, fresh: true}
	c.open(&s.pool, nc, s.cfg.TLS, s.cfg.StallTimeout)
	c.slot.nc, c.slot.client = c.nc, client
	c.slot.vacate(time.Now())
	c.x.over = c
	c.watcher.l = &c.link
	return c
}

// close closes the connection after the last handler has returned.
func (c *conn) close() {
	if c.lent { // the process may have kept the socket
		c.shutdown()
	}
	_ = c.nc.Close()
	c.release()
	if c.gone != nil {
		c.gone(nil)
	}
}

// handshake performs the TLS handshake, if any. It returns false if the connection is over. A
// client may choose HTTP/2 in the handshake (RFC 7301).
func (c *conn) handshake() bool {
	t, ok := c.nc.(*tls.Conn)
	if !ok {
		return true
	}
	ctx, cancel := context.WithTimeout(c.s.ctx, c.s.cfg.HeadTimeout)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok && plain.Conn != nil && isMethod(plain.RecordHeader[:]) {
			_, _ = io.WriteString(plain.Conn, "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\nuse https://\n")
			linger(plain.Conn, c.in)
		}
		return false
	}
	c.http2 = t.ConnectionState().NegotiatedProtocol == "h2"
	return true
}

// exchange has the handler answer a request, and reports whether the connection can be reused. If
// not, the bytes sent so far still reach the client.
func (c *conn) exchange() (again bool) {
	c.begin()
	c.answer()
	if c.x.err == nil && !c.x.closes && c.body.drain() {
		return true
	}
	linger(c.nc, c.in)
	return false
}

// answer calls the handler. A panic breaks the answer off.
func (c *conn) answer() {
	x := &c.x
	defer func() {
		x.end()
		if v := recover(); v != nil {
			x.Abort()
			c.s.cfg.Log.Error("a handler panicked: connection closed", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	c.s.cfg.Handler.Serve(x)
	x.finish()
}

func (c *conn) begin() {
	c.tunnel = nil
	if cap(c.out) > keptHead {
		c.out = nil
	}
	if c.body = newConnBody(&c.link, &c.x.Head); c.body == nil {
		c.x.begin(nil)
		return
	}
	c.x.begin(&c.body.Body)
}

func (c *conn) memory() *pool    { return c.pool }
func (c *conn) protocol() string { return "HTTP/1.1" }

func (c *conn) remoteAddr() string {
	if c.addr == "" {
		c.addr = c.nc.RemoteAddr().String()
	}
	return c.addr
}

func (c *conn) secure() bool { return isTLS(c.nc) }

func (c *conn) unwatch() {
	c.watcher.stop()
	c.tunnel.end()
}

func (c *conn) context() context.Context {
	if c.ctx == nil {
		c.ctx, c.gone = context.WithCancelCause(c.s.ctx)
	}
	if c.raw != nil { // TLS cannot be peeked at without consuming bytes
		c.watcher.start(c.body, c.gone)
	}
	return c.ctx
}

// head builds the head in the connection's buffer.
func (c *conn) head(x *Exchange, status int, length int64, bodyless bool) []byte {
	if !c.body.answered() || c.s.closing.Load() {
		x.closes = true
	}
	b := append(c.out[:0], "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, http.StatusText(status)...)
	b = append(b, "\r\nDate: "...)
	b = append(b, date()...)
	b = append(b, "\r\n"...)
	b = append(b, x.fields...)
	switch {
	case bodyless:
	case length >= 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, length, 10)
		b = append(b, "\r\n"...)
	case x.Minor == 1:
		x.chunked = true
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	default: // the body ends with the connection
		x.closes = true
	}
	switch {
	case x.closes:
		b = append(b, "Connection: close\r\n"...)
	case x.Minor == 0:
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	c.out = append(b, "\r\n"...)
	return c.out
}

func (c *conn) send(head, body []byte, _ bool) error {
	switch {
	case len(body) == 0:
		return c.write(head)
	case len(head) == 0:
		return c.write(body)
	}
	// No body follows, so the input buffer is free: copy head and body there and write once. One
	// iovec is cheaper than two.
	if c.raw != nil && c.body == nil && len(body) <= smallBody { // a body's reader may be using the buffer
		if room := c.in[c.end:]; len(head)+len(body) <= len(room) {
			return c.write(room[:copy(room, head)+copy(room[len(head):], body)])
		}
	}
	return c.write(head, body)
}

func (c *conn) chunk(p []byte) error {
	if len(p) == 0 {
		return c.write(lastChunk)
	}
	c.out = strconv.AppendInt(c.out[:0], int64(len(p)), 16)
	c.out = append(c.out, "\r\n"...)
	return c.write(c.out, p, crlf)
}

func (c *conn) canLend() bool { return c.raw != nil }

var (
	crlf      = []byte("\r\n")
	lastChunk = []byte("0\r\n\r\n")
)

// next reads the head of the next request and refuses malformed ones. It returns false if the
// connection ends.
func (c *conn) next() bool {
	look := c.rewind() // the bytes since the last look may complete a head
	if !c.awaitHead(look) {
		return false
	}
	for begins := false; ; { // the last read brought the first bytes of a head
		if look {
			if over, ok := c.parseHead(); over {
				return ok
			}
		}
		n, ok := c.readHead(begins)
		if !ok {
			return false
		}
		if begins = n > 0 && c.slot.idle.Load(); begins {
			c.slot.idle.Store(false)
		}
		look = bytes.IndexByte(c.in[c.end-n:c.end], '\n') >= 0 || c.end-c.start >= c.s.cfg.Limits.Target
	}
}

// rewind frees the memory of the last head, and reports whether bytes of the next one are here.
func (c *conn) rewind() bool {
	c.base = 0
	if c.outgrown != nil {
		c.outgrown.Release()
		c.outgrown = nil
	}
	if c.start == c.end {
		c.start, c.end = 0, 0
	}
	return c.end > c.start
}

// awaitHead marks the connection as idle, unless a part of the next head is here, and sets the
// deadline. It returns false if the connection ends.
func (c *conn) awaitHead(here bool) bool {
	c.slot.idle.Store(!here)
	deadline := c.s.cfg.IdleTimeout
	if here {
		deadline = c.s.cfg.HeadTimeout
	}
	now := time.Now()
	c.slot.vacate(now)
	return c.nc.SetReadDeadline(now.Add(deadline)) == nil && (here || !c.s.closing.Load()) && !c.slot.lost()
}

// parseHead parses the head if its last line is here. over means that next is over, with ok as its
// result.
func (c *conn) parseHead() (over, ok bool) {
	if c.fresh && bytes.HasPrefix(c.in[c.start:c.end], []byte(prefaceLine)) {
		c.http2 = true
		return true, false
	}
	n, err := c.x.Parse(c.in[c.start:c.end], &c.s.cfg.Limits)
	if err != nil {
		c.refuse(err)
		return true, false
	}
	if n == 0 {
		return false, false
	}
	c.start += n
	c.base = c.start
	c.fresh = false
	return true, c.slot.occupy()
}

// readHead reads more of a head. begins means that the last read brought its first bytes. It
// returns false if the connection ends.
func (c *conn) readHead(begins bool) (n int, ok bool) {
	if begins && (c.nc.SetReadDeadline(time.Now().Add(c.s.cfg.HeadTimeout)) != nil || c.slot.lost()) {
		return 0, false
	}
	if c.start == c.end && !c.fresh {
		// Let other goroutines run first. The next request may have arrived by then, which
		// saves a read in vain, a wait in the poller, and the release and return of memory.
		runtime.Gosched()
	}
	n, err := c.fill()
	switch {
	case n > 0 || err == nil:
		return n, true
	case errors.Is(err, ErrNoMemory):
		c.refuse(&RequestError{http.StatusServiceUnavailable, ErrNoMemory.Error()})
	case errors.Is(err, os.ErrDeadlineExceeded) && c.end > c.start && !c.slot.lost():
		c.refuse(&RequestError{http.StatusRequestTimeout, "the head of the request took too long"})
	}
	return 0, false
}

// refuse answers a request that no handler sees, and gives the client time to read the answer.
func (c *conn) refuse(err error) {
	refused, ok := errors.AsType[*RequestError](err)
	if !ok {
		return
	}
	c.x.Length = 0 // ignore any body that the head announced
	c.begin()
	defer c.x.end()
	c.x.closes = true
	kind, body := c.s.cfg.Refuse(&c.x, refused)
	c.x.Set("Content-Type", kind)
	if c.x.Send(refused.Status, body) == nil {
		linger(c.nc, c.in)
	}
}
