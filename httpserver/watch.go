package httpserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrClientGone ends an exchange whose client has closed the connection.
var ErrClientGone = fmt.Errorf("the client has gone: %w", context.Canceled)

// patience is how long an exchange runs unwatched. Most end earlier.
const patience = 50 * time.Millisecond

// watcher ends an exchange when the client closes the connection, once the request's body has
// been read. A client that already sends its next request counts as present.
type watcher struct {
	l     *link
	timer *time.Timer // calls look; made by the first start

	mu      sync.Mutex
	started bool
	body    *connBody               // of the exchange
	gone    context.CancelCauseFunc // ends the exchange's context
	quit    chan struct{}           // closed by stop; nil without a goroutine
	done    chan struct{}           // closed by the goroutine
}

// start watches an exchange until stop.
func (w *watcher) start(b *connBody, gone context.CancelCauseFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started, w.body, w.gone = true, b, gone
	if w.timer == nil {
		w.timer = time.AfterFunc(patience, w.look)
	} else {
		w.timer.Reset(patience)
	}
}

// look begins to watch. A late call may come during the next exchange, and then merely begins
// early.
func (w *watcher) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started && w.done == nil {
		w.quit, w.done = make(chan struct{}), make(chan struct{})
		go w.run(w.body, w.gone, w.quit, w.done)
	}
}

func (w *watcher) run(b *connBody, gone context.CancelCauseFunc, quit <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	if whole := b.untilWhole(); whole != nil { // until then the body's reader notices
		select {
		case <-whole:
		case <-quit:
			return
		}
	}
	w.mu.Lock()
	look := w.started && w.l.end == w.l.start && w.l.nc.SetReadDeadline(time.Time{}) == nil
	w.mu.Unlock()
	if !look {
		return
	}
	var one [1]byte
	_ = w.l.raw.Read(func(fd uintptr) bool { // the error is the deadline set by stop
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

// stop ends watching and waits until the connection's input is free.
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
		_ = w.l.nc.SetReadDeadline(time.Unix(1, 0)) // fails only on a dead connection, which ends run too
	}
	w.mu.Unlock()
	if done != nil {
		<-done
		w.mu.Lock()
		w.quit, w.done = nil, nil
		w.mu.Unlock()
	}
}
