package httpserver

import (
	"runtime"
	"time"
)

const (
	// turn is what a stream sends before it is the next one's turn; batch what goes out
	// in one system call. In bytes.
	turn  = 64 << 10
	batch = 256 << 10

	// small is a body that is copied behind its head rather than sent from where it is.
	small = 512
)

// sender is the sending half of a connection of HTTP/2. Whoever has something to send
// queues it, and sends what is queued, others' too, unless somebody does already: then
// it waits until that one has sent it, or hands the task on when its own is done. So
// frames of many streams go out in one system call, in turns, and no goroutine sits
// between a handler and the socket.
//
//	handler A  queue ─ write [A] ──────── done, B goes on
//	handler B           queue ─ waits ─── write [B C] ─ done
//	handler C            queue ─ waits ──────────────── done
type sender struct {
	writing bool      // somebody is
	control []byte    // frames that go before the others
	queue   []*stream // with something to send, the next one's turn first
	went    time.Time // when something of theirs has gone out

	window        int64 // what the client takes on all streams
	initialWindow int64 // and on each, at first
	frameSize     int
	table         uint32 // of header fields, in bytes, that the client has for us
	shrunk        bool   // the client has made the table smaller, and has to be answered

	// Of whoever writes.
	scratch []byte    // frame heads, and all that is small
	parts   []part    // what is sent: a part of scratch, and then data
	sent    []*stream // whose it is
	vector  [][]byte
}

type part struct {
	end  int // in scratch, from the part's before on
	data []byte
}

func (s *sender) initSender() {
	s.window, s.initialWindow, s.frameSize, s.table = initialWindow, initialWindow, maxFrame, defaultTable
}

// outgoing is what a stream sends; the connection's mu guards it.
type outgoing struct {
	head    []byte
	data    []byte
	last    bool
	pending bool // there is something
	queued  bool // it is in the queue; not so while it is being written
	written bool // somebody writes it
	baton   bool // the stream's goroutine is to go on writing
	moved   bool // something went out
	whole   bool // all of it did
}

// write sends a head, a part of a body or both, and returns when they are not needed any
// more.
func (st *stream) write(head, data []byte, last bool) error {
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.err != nil {
		return st.err
	}
	o := &st.out
	o.head, o.data, o.last, o.pending, o.queued, o.moved, o.whole = head, data, last, true, true, false, false
	if len(head) > 0 {
		st.begun = true
	}
	c.queue = append(c.queue, st)
	if !c.writing {
		c.writing = true
		c.flushLocked(st)
	}
	for o.pending || o.baton {
		if o.baton {
			o.baton = false
			c.flushLocked(st)
			continue
		}
		c.mu.Unlock()
		stalled := st.wait()
		c.mu.Lock()
		if stalled && c.stalledLocked(st) {
			_ = c.resetLocked(st, codeCancel, errStalled) // the reader looks at the credit
			c.flushControlLocked()
		}
		o.moved = false
	}
	o.head, o.data = nil, nil
	if o.whole {
		return nil
	}
	return st.err
}

// stalledLocked says whether a stream that has waited for the time to stall has waited for
// its client: that has the stream's window shut, or the connection's, and takes nothing of
// other streams either. One that could be sent waits for its turn. Whether the client takes
// what is being written is seen by whoever writes (see outlet).
func (c *h2conn) stalledLocked(st *stream) bool {
	if !st.out.queued || st.out.moved || c.canLocked(st) {
		return false
	}
	return st.window <= 0 || !c.writing && time.Since(c.went) >= c.s.cfg.StallTimeout
}

// nextLocked is the stream whose turn it is, of those that can send; nil for none.
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

// kickLocked has somebody write who can by now.
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

// flushControlLocked sends the control frames, unless somebody is about to.
func (c *h2conn) flushControlLocked() {
	if len(c.control) > 0 && !c.writing && c.err == nil {
		c.writing = true
		c.flushLocked(nil)
	}
}

// flushLocked writes as the one who does, until own has nothing more to send, or cannot;
// then the next goes on. It lets go of mu meanwhile.
func (c *h2conn) flushLocked(own *stream) {
	written := 0
	for c.err == nil {
		if own != nil && (!own.out.queued || !c.canLocked(own)) {
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

// gatherLocked takes from the queue what goes out at once, and returns its size in
// bytes.
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
			st.out.queued, st.out.written = false, true
			c.sent = append(c.sent, st)
			size += c.takeLocked(st)
		}
	}
	if n := len(c.scratch); n > 0 && (len(c.parts) == 0 || c.parts[len(c.parts)-1].end < n) {
		c.parts = append(c.parts, part{end: n})
	}
	return size
}

// takeLocked makes frames of what a stream sends in its turn.
func (c *h2conn) takeLocked(st *stream) (size int) {
	o := &st.out
	if block := o.head; len(block) > 0 {
		block = c.blockLocked(block)
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
				break
			}
			kind, flags = frameContinuation, 0
		}
		o.head = nil
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

// blockLocked is a block as it is sent: the first after the client has made its table
// smaller says that none is used (RFC 7541 section 4.2).
func (c *h2conn) blockLocked(block []byte) []byte {
	if !c.shrunk {
		return block
	}
	c.shrunk = false
	return append([]byte{0x20}, block...)
}

// writeBatch sends what was gathered.
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
		err = c.s.writeCopied(c.nc, v...)
	} else {
		err = c.outlet.send(v)
	}
	clear(v)
	return err
}

// settleLocked notes that what was gathered is sent, or that it cannot be.
func (c *h2conn) settleLocked(own *stream, err error) {
	if err != nil {
		c.failLocked(err)
	} else if len(c.sent) > 0 {
		c.went = time.Now()
	}
	for i, st := range c.sent {
		c.sent[i] = nil
		o := &st.out
		o.written, o.moved = false, true
		switch {
		case err == nil && len(o.head) == 0 && len(o.data) == 0:
			o.pending, o.whole = false, true
			if o.last {
				c.doneLocked(st)
			}
		case st.err != nil:
			o.pending = false
		default:
			o.queued = true
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
		_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // the reader ends the connection
	}
}

// dequeueLocked gives up what a stream has to send, but for what is being written.
func (c *h2conn) dequeueLocked(st *stream) {
	o := &st.out
	if o.queued {
		for i, other := range c.queue {
			if other == st {
				c.queue = append(c.queue[:i], c.queue[i+1:]...)
				break
			}
		}
		o.queued = false
	}
	if o.pending && !o.written {
		o.pending = false
		st.notify()
	}
}
