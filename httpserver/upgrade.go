package httpserver

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ErrNoSwitch is what [Exchange.Switch] returns where the connection cannot change to
// another protocol.
var ErrNoSwitch = errors.New("the connection cannot change its protocol")

// Tunnel is a connection that has left HTTP: bytes both ways. One goroutine may read
// and another write; any may close it. It is closed when the handler returns, and the
// connection with it.
type Tunnel struct {
	c    *conn
	idle time.Duration
	last atomic.Int64 // when something was written, in nanoseconds since 1970

	mu      sync.Mutex
	closed  bool
	reading bool
	read    sync.Cond // on mu: reading is over
}

// Switch answers 101 (RFC 9110 section 15.2.2) with the fields that were set, among them
// Upgrade, and makes a tunnel of the connection, which ends when nothing has moved for
// idle. [ErrNoSwitch], with nothing sent, where the request does not ask for it, has a
// body, or is no HTTP/1.1.
func (x *Exchange) Switch(idle time.Duration) (*Tunnel, error) {
	c, ok := x.over.(*conn)
	if !ok || x.begun || x.err != nil || !x.Upgrade || x.Minor != 1 || x.Body != nil {
		return nil, ErrNoSwitch
	}
	c.unwatch()
	x.begun, x.closes, x.hollow, x.missing = true, true, true, 0
	b := append(c.out[:0], "HTTP/1.1 101 "...)
	b = append(b, http.StatusText(http.StatusSwitchingProtocols)...)
	b = append(b, "\r\nDate: "...)
	b = append(b, date()...)
	b = append(b, "\r\nConnection: Upgrade\r\n"...)
	b = append(b, x.fields...)
	c.out = append(b, "\r\n"...)
	if err := x.sent(c.write(c.out)); err != nil {
		return nil, err
	}
	t := &Tunnel{c: c, idle: idle}
	t.read.L = &t.mu
	t.last.Store(time.Now().UnixNano())
	x.tunnel = t
	return t, nil
}

// Read reads what the client sends; io.EOF once it sends no more, or the tunnel is
// closed, os.ErrDeadlineExceeded once nothing has moved for too long, either way.
func (t *Tunnel) Read(p []byte) (int, error) {
	t.mu.Lock()
	if t.closed || len(p) == 0 {
		defer t.mu.Unlock()
		if t.closed {
			return 0, io.EOF
		}
		return 0, nil
	}
	if t.reading {
		t.mu.Unlock()
		panic("httpserver: two goroutines read a tunnel at once")
	}
	t.reading = true
	t.mu.Unlock()
	n, err := t.take(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reading = false
	t.read.Broadcast()
	if t.closed && n == 0 {
		err = io.EOF
	}
	return n, err
}

func (t *Tunnel) take(p []byte) (int, error) {
	c := t.c
	if c.end > c.start { // came with the request
		n := copy(p, c.in[c.start:c.end])
		c.start += n
		return n, nil
	}
	for begun := time.Now(); ; {
		quiet := begun
		if last := time.Unix(0, t.last.Load()); last.After(quiet) {
			quiet = last
		}
		left := t.idle - time.Since(quiet)
		if left <= 0 {
			return 0, os.ErrDeadlineExceeded
		}
		t.mu.Lock()
		if t.closed { // whose deadline this one must not replace
			t.mu.Unlock()
			return 0, io.EOF
		}
		err := c.nc.SetReadDeadline(time.Now().Add(left))
		t.mu.Unlock()
		if err != nil {
			return 0, err
		}
		n, err := c.read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}

// Write sends p to the client.
func (t *Tunnel) Write(p []byte) (int, error) {
	if err := t.c.write(p); err != nil {
		return 0, err
	}
	t.last.Store(time.Now().UnixNano())
	return len(p), nil
}

// Close ends a Read that is under way, and all that come.
func (t *Tunnel) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if !t.reading {
		return nil
	}
	return t.c.nc.SetReadDeadline(time.Unix(1, 0))
}

// end takes the connection's input back.
func (t *Tunnel) end() {
	if t == nil {
		return
	}
	_ = t.Close() // fails where the connection is closed, which ends the Read too
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.reading {
		t.read.Wait()
	}
}
