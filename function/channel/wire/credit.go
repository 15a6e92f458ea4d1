package wire

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Credit counts the bytes that the peer's window allows this end to send.
type Credit struct {
	mu      sync.Mutex
	changed sync.Cond // L is &mu
	n       int
	err     error
}

// Init begins with a credit of Window bytes.
func (c *Credit) Init() {
	c.changed.L = &c.mu
	c.n = Window
}

// Take waits until the window is open and takes at most most bytes of it.
func (c *Credit) Take(most int) (int, error) {
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

// Add allows n more bytes. It returns ErrProtocol for an impossible window.
func (c *Credit) Add(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n += n; c.n > 1<<31 {
		return fmt.Errorf("%w: window of %d bytes", ErrProtocol, c.n)
	}
	c.changed.Broadcast()
	return nil
}

// Send sends the rest of a body after its first frame, until the Credit ends. If reading body
// fails, Send calls broken with the error.
func (c *Credit) Send(ctx context.Context, w *Writer, id uint64, body io.Reader, broken func(error)) {
	buf := make([]byte, Chunk)
	for {
		n, err := c.Take(Chunk)
		if err != nil {
			return // the invocation is over
		}
		got, rerr := body.Read(buf[:n])
		_ = c.Add(n - got) // cannot exceed the limit: Take has just returned these bytes
		more := uint8(FlagMore)
		switch {
		case rerr == io.EOF:
			more = 0
		case rerr != nil:
			if !c.Over() {
				broken(fmt.Errorf("read body: %w", rerr))
			}
			return
		case got == 0:
			continue
		}
		if w.Send(ctx, KindData, more, id, nil, buf[:got]) != nil || more == 0 {
			return
		}
	}
}

// Over reports whether sending has ended.
func (c *Credit) Over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// End ends sending: Take returns err.
func (c *Credit) End(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		c.changed.Broadcast()
	}
}

// AddWindow adds the bytes that the payload of WINDOW grants.
func (c *Credit) AddWindow(p []byte) error {
	if len(p) != 4 {
		return fmt.Errorf("%w: window of %d bytes", ErrProtocol, len(p))
	}
	return c.Add(int(binary.LittleEndian.Uint32(p)))
}
