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

// ErrNoSwitch means that the connection cannot change protocols.
var ErrNoSwitch = errors.New("the connection cannot change protocols")

// Tunnel is a connection that has left HTTP: bytes in both directions. One goroutine may read,
// one may write, and any may close it. It and its connection are closed when the handler returns.
type Tunnel struct {
	c    *conn
	idle time.Duration
	last atomic.Int64 // time of the last write in Unix nanoseconds

	mu      sync.Mutex
	closed  bool
	reading bool
	read    sync.Cond // on mu: the Read has ended
}

// Switch answers 101 (RFC 9110 section 15.2.2) with the fields set so far, including Upgrade, and
// turns the connection into a tunnel. The tunnel ends when no byte has moved for idle. Switch
// returns [ErrNoSwitch], and sends nothing, if the request does not ask for an upgrade, has a
// body, or is not HTTP/1.1.
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

// Read reads from the client. It returns io.EOF after the client's end or Close, and
// os.ErrDeadlineExceeded if no byte has moved in either direction for the idle time.
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
	if c.end > c.start { // arrived with the request
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
		if t.closed { // must not replace the deadline of Close
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

// Close ends a pending Read and all later Reads.
func (t *Tunnel) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if !t.reading {
		return nil
	}
	return t.c.nc.SetReadDeadline(time.Unix(1, 0))
}

// end returns the connection's input to the connection.
func (t *Tunnel) end() {
	if t == nil {
		return
	}
	_ = t.Close() // fails only on a closed connection, which ends the Read too
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.reading {
		t.read.Wait()
	}
}
