package httpserver

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"golang.org/x/net/http2/hpack"
)

// goodbye limits the time to send the frame with the reason why the connection ends.
const goodbye = 5 * time.Second

// serveHTTP2 serves the input of c, buffered and to come, as HTTP/2.
func serveHTTP2(c *conn) {
	c.base = 0
	h := &h2conn{input: &c.input, s: c.s, outlet: &c.outlet, slot: &c.slot, streams: map[uint32]*stream{}, credit: maxCredit, counted: time.Now(), recv: connWindow}
	h.quiet.L = &h.mu
	h.fields.limits = &c.s.cfg.Limits
	h.decoder = hpack.NewDecoder(defaultTable, func(f hpack.HeaderField) {
		if !h.fields.add(f) {
			h.decoder.SetEmitEnabled(false)
		}
	})
	h.decoder.SetMaxStringLength(2 * c.s.cfg.Limits.Head)
	h.initSender()
	c.slot.idle.Store(true) // lets Shutdown wake the reader at any time
	err := h.read()
	h.finish(err)
}

// read handles frames until the connection ends. It never returns nil; errOver means a regular
// end.
func (c *h2conn) read() error {
	c.pressing = time.Now().Add(c.s.cfg.HeadTimeout)
	c.mu.Lock()
	c.control = appendSettings(c.control, settingStreams, uint32(c.s.cfg.MaxStreams), settingWindow, streamWindow, settingHeadSize, uint32(c.s.cfg.Limits.Head))
	c.control = appendWindowUpdate(c.control, 0, connWindow-initialWindow)
	c.mu.Unlock()
	if err := c.readPreface(); err != nil {
		return err
	}
	for {
		f, n, err := parseFrame(c.in[c.start:c.end])
		if err != nil {
			return err
		}
		if n == 0 {
			c.press(&f)
			if err := c.more(); err != nil {
				return err
			}
			continue
		}
		if !c.settled && (f.kind != frameSettings || f.flags&flagAck != 0) {
			return &connError{codeProtocol, "the first frame is not SETTINGS"}
		}
		c.settled = true
		c.start += n
		if err := c.frame(&f); err != nil {
			return err
		}
		if c.block.id == 0 {
			c.pressing = time.Time{}
		}
	}
}

// readPreface reads the client's preface (RFC 9113 section 3.4).
func (c *h2conn) readPreface() error {
	for c.end-c.start < len(preface) && string(c.in[c.start:c.end]) == preface[:c.end-c.start] {
		if err := c.more(); err != nil {
			return err
		}
	}
	if c.end-c.start < len(preface) || string(c.in[c.start:c.start+len(preface)]) != preface {
		return &connError{codeProtocol, "not the preface of HTTP/2"}
	}
	c.start += len(preface)
	return nil
}

// press sets the deadline of an incomplete frame. A body may arrive slowly, a head may not.
func (c *h2conn) press(f *frame) {
	if c.end == c.start || !c.pressing.IsZero() {
		return
	}
	patience := c.s.cfg.HeadTimeout
	if c.end-c.start >= frameHead && f.kind == frameData {
		patience = c.s.cfg.StallTimeout
	}
	c.pressing = time.Now().Add(patience)
}

// errOver ends a connection without open streams.
var errOver = errors.New("the connection is over")

// more reads more input behind the bytes not parsed yet.
func (c *h2conn) more() error {
	if c.start > 0 {
		c.end = copy(c.in, c.in[c.start:c.end])
		c.start = 0
	}
	for {
		if err := c.prepare(); err != nil {
			return err
		}
		n, err := c.fill()
		switch {
		case n > 0:
			return nil
		case errors.Is(err, ErrNoMemory):
			return &connError{codeCalm, err.Error()}
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.waits = time.Time{} // prepare finds out which timeout has passed
		case err == nil:
		default:
			return unexpected(err)
		}
	}
}

// prepare sends answers to control frames and sets the read deadline. It returns errOver if the
// connection is idle and leaving, idle for too long, or has lost its slot.
func (c *h2conn) prepare() error {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	closing := c.s.closing.Load()
	if closing && !c.leaving {
		c.leaving = true
		c.control = appendGoAway(c.control, c.last, codeNone, "")
	}
	c.flushControlLocked()
	if c.err != nil {
		return c.err
	}
	until, err := c.deadlineLocked(now)
	if err != nil {
		return err
	}
	// Keep a deadline that is neither too late nor near.
	if c.waits.After(until) || c.waits.Sub(now) < until.Sub(now)/2 {
		c.waits = until
		if err := c.nc.SetReadDeadline(until); err != nil {
			return err
		}
		if c.s.closing.Load() != closing || c.slot.lost() { // keep the deadline of Shutdown or eviction
			return c.nc.SetReadDeadline(time.Unix(1, 0))
		}
	}
	return nil
}

// deadlineLocked returns the time until which the reader waits for input, or why the connection
// ends now.
func (c *h2conn) deadlineLocked(now time.Time) (until time.Time, err error) {
	idle := c.idleLocked(now)
	switch {
	case idle && c.leaving && c.block.id == 0, c.slot.lost():
		return until, errOver
	case !c.pressing.IsZero():
		if !now.Before(c.pressing) {
			return until, &connError{codeNone, "the client took too long"}
		}
		return c.pressing, nil
	case idle:
		if until = c.idleSince.Add(c.s.cfg.IdleTimeout); !now.Before(until) {
			return until, errOver
		}
		return until, nil
	}
	return now.Add(c.s.cfg.IdleTimeout), nil
}

// idleLocked reports whether no stream is open, and records since when.
func (c *h2conn) idleLocked(now time.Time) bool {
	if c.running > 0 || len(c.streams) > 0 {
		c.idleSince = time.Time{}
		return false
	}
	if c.idleSince.IsZero() {
		c.idleSince = now
	}
	return true
}

// finish ends the connection and waits for its handlers.
func (c *h2conn) finish(err error) {
	c.mu.Lock()
	told := false
	if refused, ok := errors.AsType[*connError](err); ok {
		c.control = appendGoAway(c.control, c.last, refused.code, refused.reason)
		told = true
	} else if errors.Is(err, errOver) && !c.leaving {
		c.control = appendGoAway(c.control, c.last, codeNone, "")
		told = true
	}
	c.leaving = true
	for _, st := range c.streams {
		c.breakLocked(st, ErrClientGone)
	}
	if told || errors.Is(err, errOver) {
		_ = c.outlet.SetWriteDeadline(time.Now().Add(min(goodbye, c.s.cfg.StallTimeout))) // fails only if nothing can be sent
		c.flushControlLocked()
		for c.writing {
			c.quiet.Wait()
		}
		told = c.err == nil
	}
	c.failLocked(ErrClientGone)
	c.mu.Unlock()
	if told {
		linger(c.nc, c.in)
	}
	_ = c.nc.Close()
	c.mu.Lock()
	for c.running > 0 || c.writing {
		c.quiet.Wait()
	}
	c.mu.Unlock()
}

// frame handles one frame.
func (c *h2conn) frame(f *frame) error {
	if c.block.id != 0 && (f.kind != frameContinuation || f.id != c.block.id) {
		return &connError{codeProtocol, "a frame in the midst of a head"}
	}
	switch f.kind {
	case frameData:
		return c.dataFrame(f)
	case frameHeaders:
		return c.headersFrame(f)
	case frameContinuation:
		if c.block.id == 0 {
			return &connError{codeProtocol, "a CONTINUATION frame without a head"}
		}
		return c.fragment(f)
	case framePush:
		return &connError{codeProtocol, "a client cannot push"}
	case framePriority, frameReset, frameSettings, framePing, frameGoAway, frameWindow:
	}
	return c.controlFrame(f)
}

// dataFrame handles a part of a request's body (RFC 9113 section 6.1).
func (c *h2conn) dataFrame(f *frame) error {
	if f.id == 0 {
		return &connError{codeProtocol, "DATA without a stream"}
	}
	length := len(f.payload) // flow control counts the padding
	if err := f.unpad(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.control) > maxControl {
		return &connError{codeCalm, "the answers to control frames are not taken"}
	}
	if c.recv -= length; c.recv < 0 {
		return &connError{codeFlowControl, "more of bodies than the connection's window"}
	}
	ended := f.flags&flagEndStream != 0
	st := c.streams[f.id]
	if st == nil || st.gotEnd {
		c.takenLocked(nil, length)
		return c.lateLocked(f, "DATA")
	}
	if len(f.payload) > small {
		c.earnLocked(bodyCredit)
	} else if len(f.payload) == 0 && !ended {
		if err := c.payLocked(1); err != nil {
			return err
		}
	}
	if st.recv -= length; st.recv < 0 {
		c.takenLocked(nil, length)
		return c.resetLocked(st, codeFlowControl, bad("more of the body than the window"))
	}
	st.gotEnd = ended
	b := st.body // never nil: a head without a body sets gotEnd
	b.got += int64(len(f.payload))
	if b.size >= 0 && (b.got > b.size || ended && b.got < b.size) {
		c.takenLocked(nil, length)
		return c.resetLocked(st, codeProtocol, bad("the body is not as long as Content-Length says"))
	}
	c.takenLocked(st, length-len(f.payload))
	if n, err := b.addLocked(f.payload); err != nil {
		c.takenLocked(nil, len(f.payload)-n)
		if errors.Is(err, ErrNoMemory) {
			return c.resetLocked(st, codeInternal, &RequestError{http.StatusServiceUnavailable, err.Error()})
		}
	}
	if ended {
		b.endLocked(io.EOF)
		c.doneLocked(st)
	}
	return nil
}

// lateLocked handles a frame of a stream that the client has ended or never begun.
func (c *h2conn) lateLocked(f *frame, what string) error {
	if f.id > c.last || f.id%2 == 0 {
		return &connError{codeProtocol, what + " of an idle stream"}
	}
	if c.leaving {
		return nil // perhaps of an ignored stream
	}
	for _, id := range c.dropped {
		if id == f.id {
			return c.payLocked(1) // the client may not have seen the reset
		}
	}
	if st := c.streams[f.id]; st != nil {
		return c.resetLocked(st, codeStreamClosed, bad("%s after the end of the request", what))
	}
	c.control = appendReset(c.control, f.id, codeStreamClosed)
	return c.payLocked(resetCost)
}

// headersFrame begins a head (RFC 9113 section 6.2).
func (c *h2conn) headersFrame(f *frame) error {
	if f.id%2 == 0 {
		return &connError{codeProtocol, "HEADERS of a stream id not for clients"}
	}
	if err := f.unpad(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := headBlock{id: f.id, ended: f.flags&flagEndStream != 0}
	switch st := c.streams[f.id]; {
	case f.id > c.last:
		c.last = f.id
		// A head after GOAWAY must be decoded too: the header table depends on it.
		if !c.leaving {
			b.st = newStream(c, f.id)
		}
	case st == nil || st.gotEnd:
		dropped := false
		for _, id := range c.dropped {
			dropped = dropped || id == f.id
		}
		if !dropped {
			return &connError{codeStreamClosed, "HEADERS of a closed stream"}
		}
		b.trailer = true
	default:
		b.trailer = true
	}
	if b.st != nil {
		c.fields.begin(&b.st.x.Head, b.st.text, false)
	} else {
		c.fields.begin(nil, nil, true)
	}
	c.block = b
	c.decoder.SetEmitEnabled(true)
	c.pressing = time.Now().Add(c.s.cfg.HeadTimeout)
	return c.fragmentLocked(f)
}

func (c *h2conn) fragment(f *frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fragmentLocked(f)
}

// fragmentLocked handles a part of a head.
func (c *h2conn) fragmentLocked(f *frame) error {
	b := &c.block
	b.size += len(f.payload)
	if b.frames++; b.frames > maxBlockFrames || b.size > 2*c.s.cfg.Limits.Head+maxFrame {
		return &connError{codeCalm, "a head of too many bytes or frames"}
	}
	if _, err := c.decoder.Write(f.payload); err != nil {
		return &connError{codeCompression, "the head cannot be decompressed"}
	}
	if f.flags&flagEndHeaders == 0 {
		return nil
	}
	if c.decoder.Close() != nil {
		return &connError{codeCompression, "the head ends in the midst of a field"}
	}
	done := *b
	*b = headBlock{}
	switch {
	case done.trailer:
		return c.trailerLocked(&done)
	case done.st == nil: // after GOAWAY
		return c.payLocked(resetCost)
	}
	return c.requestLocked(&done)
}

// trailerLocked ends a body. The trailer fields are discarded.
func (c *h2conn) trailerLocked(b *headBlock) error {
	st := c.streams[b.id]
	if st == nil { // reset meanwhile
		return c.payLocked(1)
	}
	if c.fields.finish(b.ended) != nil {
		return c.resetLocked(st, codeProtocol, bad("the trailer is malformed"))
	}
	st.gotEnd = true
	if st.body.size >= 0 && st.body.got < st.body.size {
		return c.resetLocked(st, codeProtocol, bad("the body is not as long as Content-Length says"))
	}
	st.body.endLocked(io.EOF)
	c.doneLocked(st)
	return nil
}

// requestLocked passes a request to a worker.
func (c *h2conn) requestLocked(b *headBlock) error {
	st := b.st
	st.text = c.fields.text
	if len(c.streams) >= c.s.cfg.MaxStreams || c.running >= 2*c.s.cfg.MaxStreams {
		// Handlers of reset streams count until they return.
		c.dropLocked(st.id)
		c.control = appendReset(c.control, st.id, codeRefused)
		st.release()
		return c.payLocked(resetCost)
	}
	err := c.fields.finish(b.ended)
	if errors.Is(err, errMalformed) {
		c.dropLocked(st.id)
		c.control = appendReset(c.control, st.id, codeProtocol)
		st.release()
		return c.payLocked(resetCost)
	}
	if !c.slot.occupy() { // the connection ends; the client may retry on another
		c.dropLocked(st.id)
		c.control = appendReset(c.control, st.id, codeRefused)
		st.release()
		return nil
	}
	st.refused, _ = errors.AsType[*RequestError](err)
	st.gotEnd = b.ended
	st.window = c.initialWindow
	st.recv = streamWindow
	if !b.ended {
		if st.refused != nil {
			st.x.Length = -1
		}
		st.body = newStreamBody(st)
	}
	c.streams[st.id] = st
	c.running++
	c.s.work(st)
	return nil
}
