package httpserver

import (
	"runtime"
	"time"
)

const (
	// turn limits the bytes of one stream before the next stream's turn; batch limits the bytes
	// of one system call.
	turn  = 64 << 10
	batch = 256 << 10

	// small is the longest body, in bytes, that is copied behind its frame head.
	small = 512
)

// write sends a head, a part of a body, or both. After it returns, head and data may be reused.
func (st *stream) write(head, data []byte, last bool) error {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.err != nil {
		return st.err
	}
	o := &st.out
	o.head, o.data, o.last, o.moved = head, data, last, false
	o.become(outQueued)
	if len(head) > 0 {
		st.begun = true
	}
	c.queue = append(c.queue, st)
	if !c.writing {
		c.writing = true
		c.flushLocked(st)
	}
	for o.state.waits() || o.baton {
		if o.baton {
			o.baton = false
			c.flushLocked(st)
			continue
		}
		c.mu.Unlock()
		stalled := st.wait()
		c.mu.Lock()
		if stalled && c.stalledLocked(st) {
			_ = c.resetLocked(st, codeCancel, errStalled) // the reader checks the credit
			c.flushControlLocked()
		}
		o.moved = false
	}
	o.head, o.data = nil, nil
	if o.state == outSent {
		return nil
	}
	return st.err
}

// stalledLocked reports whether the client is the cause of a wait of StallTimeout. Either the
// stream's window is shut, or the connection's window is shut and the client has read nothing of
// other streams. A stream with open windows merely waits for its turn. The outlet detects a
// client that does not read the bytes being written.
func (c *h2conn) stalledLocked(st *stream) bool {
	if st.out.state != outQueued || st.out.moved || c.canLocked(st) {
		return false
	}
	return st.window <= 0 || !c.writing && time.Since(c.went) >= c.s.cfg.StallTimeout
}

// nextLocked returns the first queued stream that can send; nil for none.
func (c *h2conn) nextLocked() *stream {
	for _, st := range c.queue {
		if c.canLocked(st) {
			return st
		}
	}
	return nil
}

func (c *h2conn) canLocked(st *stream) bool {
	return len(st.out.head) > 0 || len(st.out.data) == 0 || st.window > 0 && c.window > 0
}

// kickLocked starts a writer if a stream can send.
func (c *h2conn) kickLocked() {
	if !c.writing {
		if next := c.nextLocked(); next != nil {
			c.writing = true
			c.passLocked(next)
		}
	}
}

func (c *h2conn) passLocked(next *stream) {
	next.out.baton = true
	next.notify()
}

// flushControlLocked sends the control frames, unless a writer is active.
func (c *h2conn) flushControlLocked() {
	if len(c.control) > 0 && !c.writing && c.err == nil {
		c.writing = true
		c.flushLocked(nil)
	}
}

// flushLocked is the writer's loop. It runs until own has no more to send or cannot send, and
// then passes the task to another stream. It releases mu during writes.
func (c *h2conn) flushLocked(own *stream) {
	written := 0
	for c.err == nil {
		if own != nil && (own.out.state != outQueued || !c.canLocked(own)) {
			if next := c.nextLocked(); next != nil {
				c.passLocked(next)
				return
			}
		}
		n := c.gatherLocked(own == nil)
		if n == 0 {
			break
		}
		c.mu.Unlock()
		if written += n; written >= quantum {
			written = 0
			runtime.Gosched()
		}
		err := c.writeBatch()
		c.mu.Lock()
		c.settleLocked(own, err)
		if own == nil && len(c.control) == 0 {
			break
		}
	}
	c.writing = false
	c.quiet.Broadcast()
	c.kickLocked()
}

// gatherLocked moves the next batch from the queue to parts. It returns the size in bytes.
func (c *h2conn) gatherLocked(controlOnly bool) int {
	c.scratch = append(c.scratch[:0], c.control...)
	c.control = c.control[:0]
	c.parts = c.parts[:0]
	size := len(c.scratch)
	if !controlOnly {
		for range len(c.queue) {
			if size >= batch {
				break
			}
			st := c.queue[0]
			c.queue = c.queue[:copy(c.queue, c.queue[1:])]
			if !c.canLocked(st) {
				c.queue = append(c.queue, st)
				continue
			}
			st.out.become(outWriting)
			c.sent = append(c.sent, st)
			size += c.takeLocked(st)
		}
	}
	if n := len(c.scratch); n > 0 && (len(c.parts) == 0 || c.parts[len(c.parts)-1].end < n) {
		c.parts = append(c.parts, part{end: n})
	}
	return size
}

// takeLocked makes the frames of one turn of a stream.
func (c *h2conn) takeLocked(st *stream) (size int) {
	o := &st.out
	if len(o.head) > 0 {
		size = c.takeHeadLocked(st)
	}
	left := int(min(turn, int64(len(o.data)), max(0, st.window), max(0, c.window)))
	st.window -= int64(left)
	c.window -= int64(left)
	for left > 0 || len(o.data) == 0 && o.last && !st.sentEnd {
		n := min(left, c.frameSize)
		flags := uint8(0)
		if n == len(o.data) && o.last {
			flags, st.sentEnd = flagEndStream, true
		}
		c.scratch = appendFrameHead(c.scratch, n, frameData, flags, st.id)
		if data := o.data[:n]; n <= small {
			c.scratch = append(c.scratch, data...)
		} else {
			c.parts = append(c.parts, part{len(c.scratch), data})
		}
		o.data = o.data[n:]
		left -= n
		size += frameHead + n
		if n > 0 {
			c.updates += updatesPerFrame + n/updateBytes
		}
		if n > small {
			c.earnLocked(bodyCredit)
		}
	}
	return size
}

// takeHeadLocked makes the frames of the head.
func (c *h2conn) takeHeadLocked(st *stream) (size int) {
	o := &st.out
	block := c.blockLocked(o.head)
	o.head = nil
	kind, flags := frameHeaders, uint8(0)
	if len(o.data) == 0 && o.last {
		flags, st.sentEnd = flagEndStream, true
	}
	for {
		n := min(len(block), c.frameSize)
		if n == len(block) {
			flags |= flagEndHeaders
		}
		c.scratch = append(appendFrameHead(c.scratch, n, kind, flags, st.id), block[:n]...)
		size += frameHead + n
		if block = block[n:]; len(block) == 0 {
			return size
		}
		kind, flags = frameContinuation, 0
	}
}

// blockLocked returns a header block as sent. After the client has shrunk its table, the first
// block begins with a table size of 0 (RFC 7541 section 4.2).
func (c *h2conn) blockLocked(block []byte) []byte {
	if !c.shrunk {
		return block
	}
	c.shrunk = false
	return append([]byte{0x20}, block...)
}

// writeBatch sends the gathered parts.
func (c *h2conn) writeBatch() error {
	if len(c.parts) == 1 && c.parts[0].data == nil && c.raw == nil {
		_, err := c.nc.Write(c.scratch)
		return err
	}
	v := c.vector[:0]
	at := 0
	for _, p := range c.parts {
		if p.end > at {
			v = append(v, c.scratch[at:p.end])
			at = p.end
		}
		if p.data != nil {
			v = append(v, p.data)
		}
	}
	c.vector = v
	var err error
	if c.raw == nil {
		err = writeCopied(c.pool, c.nc, v...)
	} else {
		err = c.outlet.send(v)
	}
	clear(v)
	return err
}

// settleLocked records that the batch was sent, or the error.
func (c *h2conn) settleLocked(own *stream, err error) {
	if err != nil {
		c.failLocked(err)
	} else if len(c.sent) > 0 {
		c.went = time.Now()
	}
	for i, st := range c.sent {
		c.sent[i] = nil
		o := &st.out
		o.moved = true
		switch {
		case err == nil && len(o.head) == 0 && len(o.data) == 0:
			o.become(outSent)
			if o.last {
				c.doneLocked(st)
			}
		case st.err != nil:
			o.become(outDropped)
		default:
			o.become(outQueued)
			c.queue = append(c.queue, st)
			continue
		}
		if st != own {
			st.notify()
		}
	}
	c.sent = c.sent[:0]
	clear(c.parts)
	if err != nil {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // makes the reader end the connection
	}
}
