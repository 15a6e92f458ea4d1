package channel

import (
	"fmt"
	"io"
	"sync"
)

// inbox holds the body being received for one invocation: what has arrived
// and was not read yet, at most one first frame and Window.
type inbox struct {
	grant func(n int) // lets the sender send n bytes more

	mu       sync.Mutex
	changed  sync.Cond // L is &mu
	buf      []byte    // buf[off:] is unread
	off      int
	first    int   // unread bytes of the first frame, which are not granted again
	window   int   // bytes of DATA that may still come
	consumed int   // bytes read since the last grant
	ended    bool  // all of the body is here
	err      error // the rest will never come
}

func (b *inbox) init(first []byte, more bool, grant func(int)) {
	b.changed.L = &b.mu
	b.buf, b.first, b.window, b.ended, b.grant = append([]byte(nil), first...), len(first), Window, !more, grant
}

// expect says whether a DATA frame of n bytes may come; data has to follow.
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

// data takes one DATA frame.
func (b *inbox) data(p []byte, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = !more
	if b.err != nil { // nobody reads it
		return
	}
	if b.off > 0 && len(b.buf)+len(p) > cap(b.buf) {
		b.buf = b.buf[:copy(b.buf, b.buf[b.off:])]
		b.off = 0
	}
	b.buf = append(b.buf, p...)
	b.changed.Broadcast()
}

// abort makes Read return err; what has arrived is dropped.
func (b *inbox) abort(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	b.buf, b.off = nil, 0
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

func (b *inbox) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.mu.Lock()
	for b.off == len(b.buf) && !b.ended && b.err == nil {
		b.changed.Wait()
	}
	n := copy(p, b.buf[b.off:])
	if n == 0 {
		defer b.mu.Unlock()
		if b.err != nil {
			return 0, b.err
		}
		return 0, io.EOF
	}
	if b.off += n; b.off == len(b.buf) {
		b.buf, b.off = b.buf[:0], 0
	}
	free := min(n, b.first)
	b.first -= free
	b.consumed += n - free
	grant := 0
	if b.consumed >= chunk && !b.ended {
		grant, b.consumed = b.consumed, 0
		b.window += grant
	}
	b.mu.Unlock()
	if grant > 0 {
		b.grant(grant)
	}
	return n, nil
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
