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
	// quantum limits the bytes of a body per write. A write that never blocks would starve other
	// connections on the same thread.
	quantum = 512 << 10

	// smallBody is the longest body, in bytes, that is copied behind its head.
	smallBody = 4 << 10

	// drained limits, in bytes, and lingering limits in time, how much of an unread body the
	// server reads to keep the connection usable.
	drained   = 256 << 10
	lingering = 500 * time.Millisecond
)

// conn is one connection and its goroutine.
type conn struct {
	input
	slot   slot
	client netip.Addr  // client that the connection counts for; zero for none
	idle   atomic.Bool // waits for a request

	fresh bool   // no request has arrived yet
	http2 bool   // the client speaks HTTP/2
	addr  string // address of the client, once asked for

	out     []byte // head of the answer
	outlet  outlet
	vector  [3][]byte // parts passed to outlet
	sending sending
	sendFn  func(fd uintptr) bool // sendSome, allocated once
	socket  socket
	lent    bool // another process has had the socket

	ctx  context.Context         // context of every exchange; nil until asked for
	gone context.CancelCauseFunc // ends ctx

	x       Exchange
	body    *connBody // body of x; nil if none
	watcher watcher   // watches the client of x
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
	c.slot.vacate(time.Now())
	c.sendFn = c.sendSome
	c.socket.init()
	c.x.over = c
	c.watcher.c = c
	return c
}

// serve answers one request after another.
func (c *conn) serve() {
	defer c.s.leave(c)
	defer func() {
		if c.lent { // the process may have kept the socket
			c.shutdown()
		}
		_ = c.nc.Close()
		c.release() // the handlers have returned
		if c.gone != nil {
			c.gone(nil)
		}
	}()
	if !c.handshake() {
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
	if c.raw != nil { // TLS cannot be peeked at without consuming bytes
		c.watcher.start()
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

// lend lets another process send chunks. It makes the socket nonblocking again afterwards: both
// processes share one open file description.
func (c *conn) lend(to func(socket syscall.RawConn) (int64, error)) (n int64, err error) {
	c.lent = true
	patience := func(d time.Duration) {
		_ = c.raw.Control(func(fd uintptr) { // a Unix socket has no such option
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

// shutdown ends the connection for every process with the socket.
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

// next reads the head of the next request and refuses malformed ones. It returns false if the
// connection ends.
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
	c.slot.vacate(now)
	if c.nc.SetReadDeadline(now.Add(deadline)) != nil || c.s.closing.Load() && !look || c.slot.lost() {
		return false
	}
	begins := false // the last read brought the first bytes of a head
	for {
		if look && c.fresh && bytes.HasPrefix(c.in[c.start:c.end], []byte(prefaceLine)) {
			c.http2 = true
			return false
		}
		if look { // the last read brought a complete line
			n, err := c.x.Parse(c.in[c.start:c.end], &c.s.cfg.Limits)
			if err != nil {
				c.refuse(err)
				return false
			}
			if n > 0 {
				c.start += n
				c.base = c.start
				c.fresh = false
				return c.slot.occupy()
			}
		}
		if begins && (c.nc.SetReadDeadline(time.Now().Add(c.s.cfg.HeadTimeout)) != nil || c.slot.lost()) {
			return false
		}
		if c.start == c.end && !c.fresh {
			// Let other goroutines run first. The next request may have arrived by then, which
			// saves a read in vain, a wait in the poller, and the release and return of memory.
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
		case errors.Is(err, os.ErrDeadlineExceeded) && c.end > c.start && !c.slot.lost():
			c.refuse(&RequestError{http.StatusRequestTimeout, "the head of the request took too long"})
			return false
		default:
			return false
		}
	}
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

// linger closes the sending direction and reads for a moment. Closing with unread data would
// reset the connection and lose the answer.
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

// write sends all parts, in one system call if possible, and at most a quantum at once.
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

// writeCopied joins parts before it writes them: every Write makes TLS records of its own.
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
