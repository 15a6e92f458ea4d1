package channel

import (
	"fmt"
	"io"
	"sync"
)

// inbox holds the body being received for one invocation: what has arrived
// and was not read yet, at most one first frame and Window.
type inbox struct {
	from  sender
	pipes *pipes // nil: all is kept in memory

	mu      sync.Mutex
	changed sync.Cond // L is &mu

	// What is unread: buf[off:], then inPipe bytes of pipe, then after, which did not go
	// into it.
	buf    []byte
	off    int
	pipe   *pipe
	inPipe int
	after  []byte

	spare  []byte // for buf
	hands  int    // that use the pipe without the lock
	ending bool   // the pipe is to be given back

	first    int   // unread bytes of the first frame, which are not granted again
	window   int   // bytes of DATA that may still come
	consumed int   // bytes read since the last grant
	ended    bool  // all of the body is here
	err      error // the rest will never come
}

// sender is who sends a body.
type sender interface {
	grant(n int) // lets it send n bytes more
}

func (b *inbox) init(first []byte, more bool, from sender) {
	b.changed.L = &b.mu
	b.buf, b.first, b.window, b.ended, b.from = append([]byte(nil), first...), len(first), Window, !more, from
}

// expect says whether a DATA frame of n bytes may come; data, or piped, has to follow.
func (b *inbox) expect(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return fmt.Errorf("%w: data after the end of a body", ErrProtocol)
	}
	if b.window -= n; b.window < 0 {
		return fmt.Errorf("%w: data beyond the window", ErrProtocol)
	}
	return nil
}

// data takes the next part of the body; more says that it is not the last.
func (b *inbox) data(p []byte, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = !more
	switch {
	case b.err != nil: // nobody reads it
		return
	case b.inPipe > 0 || len(b.after) > 0:
		b.after = append(b.after, p...)
	default:
		if b.off > 0 && len(b.buf)+len(p) > cap(b.buf) {
			b.buf = b.buf[:copy(b.buf, b.buf[b.off:])]
			b.off = 0
		}
		b.buf = append(b.buf, p...)
	}
	b.changed.Broadcast()
}

// borrow returns a pipe for the next part of the body, until piped says how much of it
// is there; nil if data is to take it.
func (b *inbox) borrow() *pipe {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pipes == nil || b.err != nil || len(b.after) > 0 {
		return nil
	}
	if b.pipe == nil {
		b.pipe = b.pipes.get()
	}
	if b.pipe != nil {
		b.hands++
	}
	return b.pipe
}

// piped gives the pipe back, in which n bytes more are.
func (b *inbox) piped(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inPipe += n
	b.hands--
	b.giveBackLocked()
	b.changed.Broadcast()
}

// giveBackLocked parts with the pipe once nobody wants what is in it.
func (b *inbox) giveBackLocked() {
	if b.ending && b.hands == 0 && b.pipe != nil {
		b.pipes.put(b.pipe, b.inPipe == 0)
		b.pipe, b.inPipe = nil, 0
	}
}

// abort makes Read return err; what has arrived is dropped.
func (b *inbox) abort(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	b.buf, b.off, b.after, b.spare = nil, 0, nil, nil
	b.ending = true
	b.giveBackLocked()
	b.changed.Broadcast()
}

// fail makes Read return err after what has arrived.
func (b *inbox) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil && !b.ended {
		b.err = err
		b.changed.Broadcast()
	}
}

// waitLocked waits until something is unread, in buf or the pipe; else it returns why
// nothing will be.
func (b *inbox) waitLocked() error {
	for {
		switch {
		case b.ending:
			return b.err
		case b.off < len(b.buf), b.inPipe > 0:
			return nil
		case len(b.after) > 0:
			b.buf, b.off, b.after = b.after, 0, b.buf[:0]
			return nil
		case b.err != nil:
			return b.err
		case b.ended:
			return io.EOF
		}
		b.changed.Wait()
	}
}

func (b *inbox) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.mu.Lock()
	err := b.waitLocked()
	if err != nil {
		b.mu.Unlock()
		return 0, err
	}
	var n int
	if b.off < len(b.buf) {
		n = copy(p, b.buf[b.off:])
		if b.off += n; b.off == len(b.buf) {
			b.buf, b.off = b.buf[:0], 0
		}
	} else {
		n, err = b.pipe.r.Read(p[:min(len(p), b.inPipe)]) // which are there
		b.inPipe -= n
	}
	grant := b.tookLocked(n)
	b.mu.Unlock()
	if grant > 0 {
		b.from.grant(grant)
	}
	return n, err
}

// tookLocked notes that n bytes were read, and says how much is to be granted for it.
func (b *inbox) tookLocked(n int) (grant int) {
	free := min(n, b.first)
	b.first -= free
	b.consumed += n - free
	if b.consumed >= chunk && !b.ended {
		grant, b.consumed = b.consumed, 0
		b.window += grant
	}
	return grant
}

// writeTo writes the body to w as it comes.
func (b *inbox) writeTo(w io.Writer) (written int64, err error) {
	for err == nil {
		var n int
		n, err = b.writeNext(w)
		written += int64(n)
	}
	if err == io.EOF { //nolint:errorlint // waitLocked's own
		err = nil
	}
	return written, err
}

// writeNext writes what is there, all that is in memory or all that is in the pipe.
func (b *inbox) writeNext(w io.Writer) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.waitLocked(); err != nil {
		return 0, err
	}
	if b.off < len(b.buf) {
		p := b.buf
		from := b.off
		b.buf, b.off, b.spare = b.spare[:0], 0, nil
		b.mu.Unlock()
		n, err = w.Write(p[from:])
		b.mu.Lock()
		b.spare = p[:0]
	} else {
		pipe, have := b.pipe, b.inPipe
		b.hands++
		b.mu.Unlock()
		n, err = WritePipe(w, pipe.r, have)
		b.mu.Lock()
		b.hands--
		b.inPipe -= n
		b.giveBackLocked()
	}
	if grant := b.tookLocked(n); grant > 0 {
		b.mu.Unlock()
		b.from.grant(grant)
		b.mu.Lock()
	}
	return n, err
}

// credit is what the other side's window lets this side send.
type credit struct {
	mu      sync.Mutex
	changed sync.Cond // L is &mu
	n       int
	err     error
}

func (c *credit) init() {
	c.changed.L = &c.mu
	c.n = Window
}

// take waits until something may be sent and returns at most max of it.
func (c *credit) take(most int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.n == 0 && c.err == nil {
		c.changed.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	n := min(c.n, most)
	c.n -= n
	return n, nil
}

func (c *credit) add(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n += n; c.n > 1<<31 {
		return fmt.Errorf("%w: window of %d bytes", ErrProtocol, c.n)
	}
	c.changed.Broadcast()
	return nil
}

func (c *credit) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		c.changed.Broadcast()
	}
}
