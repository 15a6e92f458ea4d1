package httpserver

import (
	"os"
	"sync"
	"time"
)

// pieceSize is the size of a buffer for unread body bytes.
const pieceSize = 16 << 10

// streamBody is the body of an HTTP/2 request. It holds the unread bytes, bounded by the windows.
type streamBody struct {
	Body
	c *h2conn

	// Guarded by the connection's mu.
	st          *stream // nil once the handler has returned
	pieces      []Buffer
	first, fill int   // start of the unread bytes in the first piece; their end in the last
	got         int64 // bytes received
	continued   bool  // 100 (Continue) was sent, or the client does not wait for it
	closed      bool
	reading     bool
	err         error // error of Read after the received bytes
	wake        chan struct{}
	over        sync.Cond // on the connection's mu: the Read has ended
}

func newStreamBody(st *stream) *streamBody {
	b := &streamBody{c: st.c, st: st, continued: !st.x.Expects, wake: make(chan struct{}, 1)}
	b.Body = Body{size: st.x.Length, from: b}
	b.over.L = &st.c.mu
	return b
}

// addLocked stores received bytes. It returns ErrBodyClosed if the body is closed, and
// ErrNoMemory if only the first n bytes found memory.
func (b *streamBody) addLocked(p []byte) (n int, err error) {
	if b.closed {
		return 0, ErrBodyClosed
	}
	for len(p) > 0 {
		if len(b.pieces) == 0 || b.fill == pieceSize {
			var piece Buffer
			if piece, err = b.c.pool.tryAcquire(pieceSize); err != nil {
				break
			}
			b.pieces = append(b.pieces, piece)
			b.fill = 0
		}
		m := copy(b.pieces[len(b.pieces)-1].Bytes()[b.fill:pieceSize], p)
		b.fill += m
		n += m
		p = p[m:]
	}
	b.notify()
	return n, err
}

// endLocked sets the error of Read after the received bytes.
func (b *streamBody) endLocked(err error) {
	if b.err == nil {
		b.err = err
	}
	b.notify()
}

func (b *streamBody) notify() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// takeLocked moves received bytes to p.
func (b *streamBody) takeLocked(p []byte) (n int) {
	for len(p) > 0 && len(b.pieces) > 0 {
		end := pieceSize
		if len(b.pieces) == 1 {
			end = b.fill
		}
		m := copy(p, b.pieces[0].Bytes()[b.first:end])
		n += m
		p = p[m:]
		if b.first += m; b.first == end {
			b.pieces[0].Release()
			b.pieces[0] = nil
			b.pieces = b.pieces[1:]
			b.first = 0
		}
	}
	return n
}

func (b *streamBody) here() bool {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	return b.closed || b.err != nil
}

func (b *streamBody) read(p []byte) (int, error) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	if b.reading {
		panic("httpserver: two goroutines read a body at once")
	}
	b.reading = true
	defer func() {
		b.reading = false
		b.over.Broadcast()
	}()
	var timer *time.Timer
	for {
		switch {
		case b.closed:
			return 0, ErrBodyClosed
		case len(p) == 0:
			return 0, nil
		}
		if n := b.takeLocked(p); n > 0 {
			b.c.takenLocked(b.st, n)
			b.c.flushControlLocked()
			return n, nil
		}
		if b.err != nil {
			return 0, b.err
		}
		if !b.continued && !b.st.begun {
			block := b.c.blockLocked(continueBlock)
			b.c.control = append(appendFrameHead(b.c.control, len(block), frameHeaders, flagEndHeaders, b.st.id), block...)
			b.c.flushControlLocked()
		}
		b.continued = true
		if timer == nil {
			timer = time.NewTimer(b.c.s.cfg.StallTimeout)
			defer timer.Stop()
		}
		b.c.mu.Unlock()
		stalled := false
		select {
		case <-b.wake:
		case <-timer.C:
			stalled = true
		}
		b.c.mu.Lock()
		if stalled && len(b.pieces) == 0 && b.err == nil && !b.closed {
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (b *streamBody) close() error {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.closeLocked()
	return nil
}

// closeLocked drops the unread bytes and grants them to the client again.
func (b *streamBody) closeLocked() {
	if b.closed {
		return
	}
	b.closed = true
	held := len(b.pieces)*pieceSize - b.first
	if len(b.pieces) == 0 {
		held = 0
	} else {
		held -= pieceSize - b.fill
	}
	b.c.takenLocked(nil, held)
	for _, piece := range b.pieces {
		piece.Release()
	}
	b.pieces = nil
	b.notify()
}

func (b *streamBody) end() {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.closeLocked()
	for b.reading {
		b.over.Wait()
	}
	b.st = nil
	b.c.flushControlLocked()
}

// takenLocked grants the client n consumed bytes again, in large steps. A nil st grants only the
// connection's window.
func (c *h2conn) takenLocked(st *stream, n int) {
	if c.unacked += n; c.unacked >= connWindow/2 {
		c.control = appendWindowUpdate(c.control, 0, c.unacked)
		c.recv += c.unacked
		c.unacked = 0
	}
	if st == nil || st.gotEnd || st.closed {
		return
	}
	if st.unacked += n; st.unacked >= streamWindow/2 {
		c.control = appendWindowUpdate(c.control, st.id, st.unacked)
		st.recv += st.unacked
		st.unacked = 0
	}
}
