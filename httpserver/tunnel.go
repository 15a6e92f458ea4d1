package httpserver

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Tunnel is a connection that has left HTTP: bytes in both directions. One goroutine may read,
// one may write, and any may close it. It and its connection are closed when the handler returns.
type Tunnel struct {
	l    *link
	idle time.Duration
	last atomic.Int64 // time of the last write in Unix nanoseconds

	mu      sync.Mutex
	closed  bool
	reading bool
	read    sync.Cond // on mu: the Read has ended
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
	l := t.l
	if l.end > l.start { // arrived with the request
		n := copy(p, l.in[l.start:l.end])
		l.start += n
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
		err := l.nc.SetReadDeadline(time.Now().Add(left))
		t.mu.Unlock()
		if err != nil {
			return 0, err
		}
		n, err := l.receive(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}

// Write sends p to the client.
func (t *Tunnel) Write(p []byte) (int, error) {
	if err := t.l.write(p); err != nil {
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
	return t.l.nc.SetReadDeadline(time.Unix(1, 0))
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
