package httpserver

import (
	"errors"
	"io"
	"sync"
	"time"
)

// connBody is the body of a request on an HTTP/1.1 connection; nil if the request has none.
type connBody struct {
	Body
	l *link

	mu        sync.Mutex
	left      int64 // bytes not read yet; -1 if chunked
	chunks    Chunks
	continued bool          // 100 (Continue) was sent, or the client does not wait for it
	begun     bool          // the answer has begun
	torn      bool          // the body broke off: the connection cannot be reused
	draining  bool          // the server drains the body with a short timeout
	closed    bool          // the rest is unwanted
	reading   bool          // a Read is under way
	over      sync.Cond     // on mu: the Read has ended
	whole     chan struct{} // closed when the whole body has been read; nil unless awaited
}

func newConnBody(l *link, h *Head) *connBody {
	if h.Length == 0 {
		return nil
	}
	b := &connBody{l: l, left: h.Length, continued: !h.Expects}
	b.Body = Body{size: h.Length, from: b}
	b.over.L = &b.mu
	return b
}

func (b *connBody) read(p []byte) (int, error) {
	b.mu.Lock()
	switch {
	case b.closed:
		b.mu.Unlock()
		return 0, ErrBodyClosed
	case b.torn:
		b.mu.Unlock()
		return 0, io.ErrUnexpectedEOF
	case b.left == 0:
		b.mu.Unlock()
		return 0, io.EOF
	case len(p) == 0:
		b.mu.Unlock()
		return 0, nil
	case b.reading:
		b.mu.Unlock()
		panic("httpserver: two goroutines read a body at once")
	}
	if !b.continued && !b.begun {
		// Under mu, so that the answer cannot begin before the 100.
		if err := b.l.write(continueHead); err != nil {
			b.torn = true
			b.mu.Unlock()
			return 0, err
		}
	}
	b.continued = true
	b.reading = true
	b.mu.Unlock()

	n, left, err := b.take(p)

	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	b.over.Broadcast()
	b.left = left
	if err != nil && !errors.Is(err, io.EOF) {
		b.torn = true
		if b.closed {
			err = ErrBodyClosed
		}
	}
	if left == 0 && b.whole != nil {
		close(b.whole)
		b.whole = nil
	}
	return n, err
}

func (b *connBody) here() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.torn || b.left == 0 {
		return true
	}
	if b.reading || !b.continued {
		return false
	}
	in := b.l.in[b.l.start:b.l.end]
	if b.left > 0 {
		return b.left <= int64(len(in))
	}
	return b.chunks.end(in)
}

var continueHead = []byte("HTTP/1.1 100 Continue\r\n\r\n")

// take reads from the connection. The connection's input belongs to the body's reader until the
// body ends.
func (b *connBody) take(p []byte) (n int, left int64, err error) {
	l := b.l
	if b.left > 0 {
		n, err := b.known(p[:min(int64(len(p)), b.left)])
		return n, b.left - int64(n), err
	}
	for {
		used, data, err := b.chunks.Next(l.in[l.start:l.end])
		if err != nil {
			return 0, -1, err
		}
		if len(data) > len(p) { // the rest stays in the chunk
			b.chunks.giveBack(len(data) - len(p))
			used -= len(data) - len(p)
			data = data[:len(p)]
		}
		n := copy(p, data)
		l.start += used
		if n > 0 {
			return n, -1, nil
		}
		if b.chunks.Done() {
			return 0, 0, io.EOF
		}
		if used == 0 {
			if err := b.more(); err != nil {
				return 0, -1, err
			}
		}
	}
}

func (b *connBody) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closeLocked()
}

func (b *connBody) closeLocked() error {
	b.closed = true
	if !b.reading {
		return nil
	}
	return b.l.nc.SetReadDeadline(time.Unix(1, 0))
}

// answered records that the answer begins and reports whether the connection can be reused. If
// the client has not sent the body yet, it may never do so, and the start of the next request
// cannot be found.
func (b *connBody) answered() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begun = true
	return !b.torn && (b.left == 0 || b.continued && 0 < b.left && b.left <= drained)
}

// end returns the connection's input to the connection.
func (b *connBody) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.closeLocked() // fails only on a closed connection, which ends the Read too
	for b.reading {
		b.over.Wait()
	}
}

// drain reads a short unread rest of the body. It returns false if the connection cannot be
// reused.
func (b *connBody) drain() bool {
	if b == nil || b.left == 0 {
		return true
	}
	if b.torn || b.left > drained {
		return false
	}
	b.draining = true
	buf, err := b.l.pool.tryAcquire(copySize)
	if err != nil {
		return false
	}
	defer buf.Release()
	for deadline := time.Now().Add(lingering); b.left != 0; {
		var err error
		if _, b.left, err = b.take(buf.Bytes()); err != nil && !errors.Is(err, io.EOF) || time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// known reads from a body of known length. It waits only if no byte is buffered.
func (b *connBody) known(p []byte) (int, error) {
	if l := b.l; l.end > l.start {
		n := copy(p, l.in[l.start:l.end])
		l.start += n
		return n, nil
	}
	return b.wait(p)
}

// more reads more input behind the bytes not parsed yet.
func (b *connBody) more() error {
	l := b.l
	if l.start == l.end {
		l.start, l.end = l.base, l.base
	}
	if l.end == len(l.in) {
		if err := l.grow(); err != nil {
			return err
		}
	}
	n, err := b.wait(l.in[l.end:])
	l.end += n
	return err
}

// wait reads from the connection until Close.
func (b *connBody) wait(p []byte) (int, error) {
	b.mu.Lock()
	patience := b.l.patience
	if b.draining {
		patience = lingering
	} else if b.closed { // must not replace the deadline of Close
		b.mu.Unlock()
		return 0, ErrBodyClosed
	}
	err := b.l.nc.SetReadDeadline(time.Now().Add(patience))
	b.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := b.l.receive(p)
	if n > 0 {
		return n, nil
	}
	return 0, unexpected(err)
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) || err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}

// untilWhole returns a channel that is closed once the whole body has been read; nil if it has
// been.
func (b *connBody) untilWhole() <-chan struct{} {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left != 0 && b.whole == nil {
		b.whole = make(chan struct{})
	}
	return b.whole
}
