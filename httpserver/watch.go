package httpserver

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrClientGone is why an exchange ends whose client has closed the connection.
var ErrClientGone = errors.New("the client has gone")

// patience is how long an exchange goes on unwatched: most are over by then.
const patience = 50 * time.Millisecond

// watcher ends an exchange whose client closes the connection.
type watcher struct {
	c     *conn
	timer *time.Timer

	mu      sync.Mutex
	stopped bool
	quit    chan struct{} // closed by stop; nil as long as there is no goroutine
	done    chan struct{} // closed by the goroutine
}

// watch has gone called once the client has closed the connection, from when on b has
// been read. A client that sends its next request meanwhile is there.
func watch(c *conn, b *connBody, gone context.CancelCauseFunc) *watcher {
	if c.raw == nil {
		return nil // TLS: what comes cannot be looked at without taking it
	}
	w := &watcher{c: c}
	w.timer = time.AfterFunc(patience, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.stopped {
			w.quit, w.done = make(chan struct{}), make(chan struct{})
			go w.run(b, gone)
		}
	})
	return w
}

func (w *watcher) run(b *connBody, gone context.CancelCauseFunc) {
	defer close(w.done)
	if whole := b.untilWhole(); whole != nil { // until then whoever reads it notices
		select {
		case <-whole:
		case <-w.quit:
			return
		}
	}
	w.mu.Lock()
	look := !w.stopped && w.c.end == w.c.start && w.c.nc.SetReadDeadline(time.Time{}) == nil
	w.mu.Unlock()
	if !look {
		return
	}
	var one [1]byte
	_ = w.c.raw.Read(func(fd uintptr) bool { // its error is the deadline that stop sets
		n, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			return false
		case err != nil || n == 0:
			gone(ErrClientGone)
		}
		return true
	})
}

// stop waits until nothing looks at the connection's input any more.
func (w *watcher) stop() {
	if w == nil {
		return
	}
	w.timer.Stop()
	w.mu.Lock()
	again := w.stopped
	w.stopped = true
	done := w.done
	if done != nil && !again {
		close(w.quit)
		_ = w.c.nc.SetReadDeadline(time.Unix(1, 0)) // fails on a dead connection, which ends the look too
	}
	w.mu.Unlock()
	if done != nil {
		<-done
	}
}
