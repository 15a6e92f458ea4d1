package httpserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrClientGone is why an exchange ends whose client has closed the connection: nobody
// wants it any more.
var ErrClientGone = fmt.Errorf("the client has gone: %w", context.Canceled)

// patience is how long an exchange goes on unwatched: most are over by then.
const patience = 50 * time.Millisecond

// watcher ends a connection's exchange when the client closes that, once the request's
// body has been read. A client that sends its next request meanwhile is there.
type watcher struct {
	c     *conn
	timer *time.Timer // calls look; made by the first start

	mu      sync.Mutex
	started bool
	quit    chan struct{} // closed by stop; nil as long as there is no goroutine
	done    chan struct{} // closed by the goroutine
}

// start has the exchange under way be watched until stop.
func (w *watcher) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started = true
	if w.timer == nil {
		w.timer = time.AfterFunc(patience, w.look)
	} else {
		w.timer.Reset(patience)
	}
}

// look begins to watch. It may come late, when the next exchange is watched: early then.
func (w *watcher) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started && w.done == nil {
		w.quit, w.done = make(chan struct{}), make(chan struct{})
		go w.run(w.c.body, w.quit, w.done)
	}
}

func (w *watcher) run(b *connBody, quit <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	if whole := b.untilWhole(); whole != nil { // until then whoever reads it notices
		select {
		case <-whole:
		case <-quit:
			return
		}
	}
	w.mu.Lock()
	look := w.started && w.c.end == w.c.start && w.c.nc.SetReadDeadline(time.Time{}) == nil
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
			w.c.gone(ErrClientGone)
		}
		return true
	})
}

// stop waits until nothing looks at the connection's input any more.
func (w *watcher) stop() {
	w.mu.Lock()
	if !w.started {
		w.mu.Unlock()
		return
	}
	w.started = false
	w.timer.Stop()
	done := w.done
	if done != nil {
		close(w.quit)
		_ = w.c.nc.SetReadDeadline(time.Unix(1, 0)) // fails on a dead connection, which ends the look too
	}
	w.mu.Unlock()
	if done != nil {
		<-done
		w.mu.Lock()
		w.quit, w.done = nil, nil
		w.mu.Unlock()
	}
}
