package httpserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// quantum is how much of a body goes out at once, in bytes: a write that never
	// blocks would starve the other connections of the same thread.
	quantum = 512 << 10

	// smallBody is how long a body may be that is copied behind its head, in bytes.
	smallBody = 4 << 10

	// drained is how much of a body that the handler did not read is read for the
	// connection's sake, in bytes, and lingering for how long.
	drained   = 256 << 10
	lingering = 500 * time.Millisecond
)

// conn is one connection and its goroutine.
type conn struct {
	input
	place  place
	client netip.Addr  // that it is counted for; zero for nobody
	idle   atomic.Bool // waits for a request

	fresh bool   // no request has come
	http2 bool   // is what the client speaks
	addr  string // the client's, once somebody has asked

	out     []byte // the head of the answer
	outlet  outlet
	vector  [3][]byte // what goes to it
	sending sending
	sendFn  func(fd uintptr) bool // sendSome, made once
	socket  socket
	lent    bool // another process has had the socket

	ctx  context.Context         // of every exchange; nil until somebody asks
	gone context.CancelCauseFunc // ends it

	x       Exchange
	body    *connBody // of x; nil without one
	watcher watcher   // of x
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{fresh: true, client: s.clientOf(nc)}
	c.outlet.open(nc, s.cfg.StallTimeout)
	switch {
	case s.cfg.TLS != nil:
		c.open(s, tls.Server(&c.outlet, s.cfg.TLS), nil)
	case c.outlet.raw == nil:
		c.open(s, &c.outlet, nil)
	default:
		c.open(s, nc, c.outlet.raw)
	}
	c.place.vacate(time.Now())
	c.sendFn = c.sendSome
	c.socket.init()
	c.x.over = c
	c.watcher.c = c
	return c
}

// serve answers one request after the other.
func (c *conn) serve() {
	defer c.s.leave(c)
	defer func() {
		if c.lent { // somebody may have kept it
			c.shutdown()
		}
		_ = c.nc.Close()
		c.release() // the handlers have returned
		if c.gone != nil {
			c.gone(nil)
		}
	}()
	if !c.greet() {
		return
	}
	for c.next() {
		if !c.exchange() {
			return
		}
	}
	if c.http2 {
		c.serveHTTP2()
	}
}

// exchange has the handler answer a request, and says whether the connection can
// take another. Where it cannot, what has been sent reaches the client all the same.
func (c *conn) exchange() (again bool) {
	c.begin()
	c.answer()
	if c.x.err == nil && !c.x.closes && c.body.drain() {
		return true
	}
	linger(c.nc, c.in)
	return false
}

// answer has the handler answer; one that panics breaks its answer off.
func (c *conn) answer() {
	x := &c.x
	defer func() {
		x.end()
		if v := recover(); v != nil {
			x.Abort()
			c.s.cfg.Log.Error("a handler panicked: its connection is closed", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	c.s.cfg.Handler.Serve(x)
	x.finish()
}

func (c *conn) begin() {
	if cap(c.out) > keptHead {
		c.out = nil
	}
	if c.body = newConnBody(c, &c.x.Head); c.body == nil {
		c.x.begin(nil)
		return
	}
	c.x.begin(&c.body.Body)
}

func (c *conn) server() *Server  { return c.s }
func (c *conn) protocol() string { return "HTTP/1.1" }

func (c *conn) remoteAddr() string {
	if c.addr == "" {
		c.addr = c.nc.RemoteAddr().String()
	}
	return c.addr
}

func (c *conn) secure() bool { return isTLS(c.nc) }

func (c *conn) unwatch() { c.watcher.stop() }

func (c *conn) context() context.Context {
	if c.ctx == nil {
		c.ctx, c.gone = context.WithCancelCause(c.s.ctx)
	}
	if c.raw != nil { // of what comes by TLS nothing can be looked at without taking it
		c.watcher.start()
	}
	return c.ctx
}

// head makes the head in the connection's buffer.
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
	default: // the connection's end is the body's
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
	// Where no more of the request comes, what comes is read into has room: for one part the
	// kernel has less to read than for two.
	if c.raw != nil && c.body == nil && len(body) <= smallBody { // else somebody may be reading a body there
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

// lend has another process send chunks. What it does to the socket's open file is undone:
// that is the same for both.
func (c *conn) lend(to func(socket syscall.RawConn) (int64, error)) (n int64, err error) {
	c.lent = true
	patience := func(d time.Duration) {
		_ = c.raw.Control(func(fd uintptr) { // of a Unix socket there is none
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		})
	}
	patience(c.s.cfg.StallTimeout)
	n, err = to(c.raw)
	patience(0)
	var nonblock error
	cerr := c.raw.Control(func(fd uintptr) { nonblock = unix.SetNonblock(int(fd), true) })
	if err = cmp.Or(err, cerr, nonblock); err != nil {
		c.shutdown()
	}
	return n, err
}

// shutdown ends the connection for all who have its socket.
func (c *conn) shutdown() {
	_ = c.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}

var (
	crlf      = []byte("\r\n")
	lastChunk = []byte("0\r\n\r\n")
)

// closeIdle closes the connection if it waits for a request.
func (c *conn) closeIdle() {
	if c.idle.Load() {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	}
}

// next reads the next request's head. It answers what cannot be one; false ends the
// connection.
func (c *conn) next() bool {
	c.base = 0
	if c.outgrown != nil {
		c.outgrown.Release()
		c.outgrown = nil
	}
	if c.start == c.end {
		c.start, c.end = 0, 0
	}
	look := c.end > c.start
	c.idle.Store(!look)
	deadline := c.s.cfg.IdleTimeout
	if look {
		deadline = c.s.cfg.HeadTimeout
	}
	now := time.Now()
	c.place.vacate(now)
	if c.nc.SetReadDeadline(now.Add(deadline)) != nil || c.s.closing.Load() && !look || c.place.lost() {
		return false
	}
	begins := false // a head has begun to come, and is not whole
	for {
		if look && c.fresh && bytes.HasPrefix(c.in[c.start:c.end], []byte(prefaceLine)) {
			c.http2 = true
			return false
		}
		if look { // there is a line more than at the last time
			n, err := c.x.Parse(c.in[c.start:c.end], &c.s.cfg.Limits)
			if err != nil {
				c.refuse(err)
				return false
			}
			if n > 0 {
				c.start += n
				c.base = c.start
				c.fresh = false
				return c.place.occupy()
			}
		}
		if begins && (c.nc.SetReadDeadline(time.Now().Add(c.s.cfg.HeadTimeout)) != nil || c.place.lost()) {
			return false
		}
		if c.start == c.end && !c.fresh {
			// Others have their turn first: by then the next request may be there, without a
			// read in vain, a wait for the poller and memory given back and taken again.
			runtime.Gosched()
		}
		n, err := c.fill()
		if begins = n > 0 && c.idle.Load(); begins {
			c.idle.Store(false)
		}
		look = bytes.IndexByte(c.in[c.end-n:c.end], '\n') >= 0 || c.end-c.start >= c.s.cfg.Limits.Target
		switch {
		case n > 0 || err == nil:
		case errors.Is(err, ErrNoMemory):
			c.refuse(&RequestError{http.StatusServiceUnavailable, ErrNoMemory.Error()})
			return false
		case errors.Is(err, os.ErrDeadlineExceeded) && c.end > c.start && !c.place.lost():
			c.refuse(&RequestError{http.StatusRequestTimeout, "the head of the request took too long"})
			return false
		default:
			return false
		}
	}
}

// refuse answers a request that no handler sees, and lets the client read it.
func (c *conn) refuse(err error) {
	refused, ok := errors.AsType[*RequestError](err)
	if !ok {
		return
	}
	c.x.Length = 0 // whatever the head said of a body, none is looked for
	c.begin()
	defer c.x.end()
	c.x.closes = true
	kind, body := c.s.cfg.Refuse(&c.x, refused)
	c.x.Set("Content-Type", kind)
	if c.x.Send(refused.Status, body) == nil {
		linger(c.nc, c.in)
	}
}

// linger closes our direction and reads what the client still sends for a moment: a
// close with data unread would reset the connection, and take the answer with it.
func linger(nc net.Conn, buf []byte) {
	half, ok := nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if nc.SetReadDeadline(time.Now().Add(lingering)) != nil {
		return
	}
	if len(buf) == 0 {
		buf = make([]byte, 512)
	}
	for total := 0; total < drained; {
		n, err := nc.Read(buf)
		if err != nil {
			return
		}
		total += n
	}
}

// write sends all of them, in one system call if it can, and no more than a quantum at
// once.
func (c *conn) write(parts ...[]byte) error {
	if c.raw == nil {
		return c.s.writeCopied(c.nc, parts...)
	}
	defer clear(c.vector[:])
	for left := c.vector[:copy(c.vector[:], parts)]; len(left) > 0; {
		n, size := 0, 0
		for n < len(left) && size+len(left[n]) <= quantum {
			size += len(left[n])
			n++
		}
		var rest []byte
		if n < len(left) {
			rest = left[n][quantum-size:]
			left[n] = left[n][:quantum-size]
			n++
		}
		if err := c.outlet.send(left[:n]); err != nil {
			return err
		}
		if rest != nil {
			n--
			left[n] = rest
			runtime.Gosched()
		}
		left = left[n:]
	}
	return nil
}

// writeCopied sends them in as few pieces as it can: TLS makes records of each.
func (s *Server) writeCopied(nc net.Conn, parts ...[]byte) error {
	b, err := s.acquire(copySize)
	if err != nil {
		return err
	}
	defer b.Release()
	buf := b.Bytes()[:copySize]
	n := 0
	for _, p := range parts {
		for len(p) > 0 {
			m := copy(buf[n:], p)
			p, n = p[m:], n+m
			if n == len(buf) {
				n = 0
				if _, err := nc.Write(buf); err != nil {
					return err
				}
			}
		}
	}
	if n == 0 {
		return nil
	}
	_, err = nc.Write(buf[:n])
	return err
}
