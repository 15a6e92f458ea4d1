package httpserver

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2/hpack"
)

// What clients of HTTP/2 may do (RFC 9113 sections 5.2, 10.5).
const (
	streamWindow = 256 << 10 // bytes of a request's body that a client may send unread
	connWindow   = 1 << 20   // and of all of a connection's

	// maxControl bounds the answers to control frames that a client does not take, in
	// bytes; maxBlockFrames the frames of a head.
	maxControl     = 64 << 10
	maxBlockFrames = 64

	// What a client asks for and what costs work without bringing any is paid for: a
	// frame 1, a stream that it resets or that is refused resetCost. What is spent comes
	// back with time, and by the frames of bodies that go either way.
	maxCredit       = 4000
	creditPerSecond = 400
	resetCost       = 8
	bodyCredit      = 4

	// What is sent of bodies brings frames that open the windows again, which are not
	// paid for: two for each frame, one for each window, as clients send them that
	// count frames, and one more for so many bytes, for clients that read little at a
	// time (Go's sends two for each 4 KiB, and one for each read where it is the slower
	// side). They may come long after, when the client reads.
	updatesPerFrame = 2
	updateBytes     = 256
)

// goodbye is how long a client may take for the frame that says why its connection ends.
const goodbye = 5 * time.Second

// h2conn is a connection of HTTP/2. A goroutine reads it; what is sent is sent by the
// handlers' goroutines (see writer.go). Lock order: nothing is locked under mu.
type h2conn struct {
	*input // of its conn, whose base is 0; the reader's, but for s, nc and raw
	outlet *outlet
	place  *place

	// The reader's.
	decoder   *hpack.Decoder
	fields    fieldReader
	block     headBlock
	greeted   bool      // SETTINGS have come
	pressing  time.Time // until when a frame, a head or the first SETTINGS have to be whole; zero for none
	waits     time.Time // the deadline of reading that is set
	idleSince time.Time // zero while there are streams

	mu      sync.Mutex
	quiet   sync.Cond // on mu: nobody writes, or a handler less runs
	streams map[uint32]*stream
	running int // handlers
	last    uint32
	dropped [64]uint32 // streams that were reset by the server, of which frames may still come
	drops   int
	leaving bool  // GOAWAY is sent
	err     error // the connection is of no use any more
	credit  int
	counted time.Time // when the credit was
	updates int       // of windows, that what was sent may still bring

	recv, unacked int // what the client may send of bodies; what was taken and not told yet
	sender
}

// headBlock is a head that is coming.
type headBlock struct {
	stream  uint32  // 0: none is
	st      *stream // that it begins; nil for none
	ended   bool    // no body follows
	trailer bool
	size    int
	frames  int
}

// serveHTTP2 serves what c has read and will.
func (c *conn) serveHTTP2() {
	c.base = 0
	h := &h2conn{input: &c.input, outlet: &c.outlet, place: &c.place, streams: map[uint32]*stream{}, credit: maxCredit, counted: time.Now(), recv: connWindow}
	h.quiet.L = &h.mu
	h.fields.limits = &c.s.cfg.Limits
	h.decoder = hpack.NewDecoder(defaultTable, func(f hpack.HeaderField) {
		if !h.fields.add(f) {
			h.decoder.SetEmitEnabled(false)
		}
	})
	h.decoder.SetMaxStringLength(2 * c.s.cfg.Limits.Head)
	h.initSender()
	c.idle.Store(true) // which has Shutdown wake the reader, at any time
	err := h.read()
	h.finish(err)
}

// read answers frames until the connection is over: with nil where the client or the
// server has no more to say.
func (c *h2conn) read() error {
	c.pressing = time.Now().Add(c.s.cfg.HeadTimeout)
	c.mu.Lock()
	c.control = appendSettings(c.control, settingStreams, uint32(c.s.cfg.MaxStreams), settingWindow, streamWindow, settingHeadSize, uint32(c.s.cfg.Limits.Head))
	c.control = appendWindowUpdate(c.control, 0, connWindow-initialWindow)
	c.mu.Unlock()
	for c.end-c.start < len(preface) {
		if string(c.in[c.start:c.end]) != preface[:c.end-c.start] {
			break
		}
		if err := c.more(); err != nil {
			return err
		}
	}
	if c.end-c.start < len(preface) || string(c.in[c.start:c.start+len(preface)]) != preface {
		return &connError{codeProtocol, "not the preface of HTTP/2"}
	}
	c.start += len(preface)
	for {
		f, n, err := parseFrame(c.in[c.start:c.end])
		if err != nil {
			return err
		}
		if n == 0 {
			if c.end > c.start && c.pressing.IsZero() {
				// A body may come slowly, a head may not.
				patience := c.s.cfg.HeadTimeout
				if c.end-c.start >= frameHead && f.kind == frameData {
					patience = c.s.cfg.StallTimeout
				}
				c.pressing = time.Now().Add(patience)
			}
			if err := c.more(); err != nil {
				return err
			}
			continue
		}
		if !c.greeted && (f.kind != frameSettings || f.flags&flagAck != 0) {
			return &connError{codeProtocol, "the first frame is not SETTINGS"}
		}
		c.greeted = true
		c.start += n
		if err := c.frame(&f); err != nil {
			return err
		}
		if c.block.stream == 0 {
			c.pressing = time.Time{}
		}
	}
}

// errOver ends a connection on which nothing is under way.
var errOver = errors.New("the connection is over")

// more reads more of what is not understood yet.
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
			c.waits = time.Time{} // whose it was shows
		case err == nil:
		default:
			return unexpected(err)
		}
	}
}

// prepare sends what control frames ask for, and sets the time until when the client
// has to send more; errOver where that has passed.
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
	idle := c.running == 0 && len(c.streams) == 0
	if !idle {
		c.idleSince = time.Time{}
	} else if c.idleSince.IsZero() {
		c.idleSince = now
	}
	until := now.Add(c.s.cfg.IdleTimeout)
	switch {
	case idle && c.leaving && c.block.stream == 0, c.place.lost():
		return errOver
	case !c.pressing.IsZero():
		if !now.Before(c.pressing) {
			return &connError{codeNone, "the client took too long"}
		}
		until = c.pressing
	case idle:
		if until = c.idleSince.Add(c.s.cfg.IdleTimeout); !now.Before(until) {
			return errOver
		}
	}
	// One that is set may stay where it is not too late and not soon.
	if c.waits.After(until) || c.waits.Sub(now) < until.Sub(now)/2 {
		c.waits = until
		if err := c.nc.SetReadDeadline(until); err != nil {
			return err
		}
		if c.s.closing.Load() != closing || c.place.lost() { // whose deadline this one must not replace
			return c.nc.SetReadDeadline(time.Unix(1, 0))
		}
	}
	return nil
}

// finish ends the connection, and waits for its handlers.
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
		_ = c.outlet.SetWriteDeadline(time.Now().Add(min(goodbye, c.s.cfg.StallTimeout))) // fails where nothing can be sent
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

// failLocked ends what waits for the connection.
func (c *h2conn) failLocked(err error) {
	if c.err == nil {
		c.err = err
	}
	for _, st := range c.streams {
		c.breakLocked(st, err)
	}
}

// payLocked takes from the client's credit.
func (c *h2conn) payLocked(cost int) error {
	if c.credit -= cost; c.credit >= 0 {
		return nil
	}
	now := time.Now()
	earned := int(now.Sub(c.counted).Seconds() * creditPerSecond)
	if c.credit = min(c.credit+earned, maxCredit); c.credit < 0 {
		return &connError{codeCalm, "too many frames that ask for work"}
	}
	c.counted = now
	return nil
}

func (c *h2conn) earnLocked(n int) { c.credit = min(c.credit+n, maxCredit) }

// frame answers one.
func (c *h2conn) frame(f *frame) error {
	if c.block.stream != 0 && (f.kind != frameContinuation || f.stream != c.block.stream) {
		return &connError{codeProtocol, "a frame in the midst of a head"}
	}
	switch f.kind {
	case frameData:
		return c.data(f)
	case frameHeaders:
		return c.headers(f)
	case frameContinuation:
		if c.block.stream == 0 {
			return &connError{codeProtocol, "a CONTINUATION frame without a head"}
		}
		return c.fragment(f)
	case framePush:
		return &connError{codeProtocol, "a client cannot push"}
	case framePriority, frameReset, frameSettings, framePing, frameGoAway, frameWindow:
	}
	return c.controlFrame(f)
}

// data takes a part of a request's body (RFC 9113 section 6.1).
func (c *h2conn) data(f *frame) error {
	if f.stream == 0 {
		return &connError{codeProtocol, "DATA without a stream"}
	}
	length := len(f.payload) // as flow control counts
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
	st := c.streams[f.stream]
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
	b := st.body // there is one: else the head would have ended the stream
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

// takenLocked gives the client back n bytes of its windows, in steps; st is nil where
// the stream's own is of no interest any more.
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

// lateLocked answers a frame of a stream that the client has ended or never begun.
func (c *h2conn) lateLocked(f *frame, what string) error {
	if f.stream > c.last || f.stream%2 == 0 {
		return &connError{codeProtocol, what + " of a stream that was not begun"}
	}
	if c.leaving {
		return nil // of a stream that was ignored, maybe
	}
	for _, id := range c.dropped {
		if id == f.stream {
			return c.payLocked(1) // it may not have known
		}
	}
	if st := c.streams[f.stream]; st != nil {
		return c.resetLocked(st, codeStreamClosed, bad("%s after the end of the request", what))
	}
	c.control = appendReset(c.control, f.stream, codeStreamClosed)
	return c.payLocked(resetCost)
}

// headers begins a head (RFC 9113 section 6.2).
func (c *h2conn) headers(f *frame) error {
	if f.stream%2 == 0 {
		return &connError{codeProtocol, "HEADERS of a stream that is none of a client's"}
	}
	if err := f.unpad(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := headBlock{stream: f.stream, ended: f.flags&flagEndStream != 0}
	switch st := c.streams[f.stream]; {
	case f.stream > c.last:
		c.last = f.stream
		// Where the client goes on after GOAWAY, its heads are read for the table's sake.
		if !c.leaving {
			b.st = newStream(c, f.stream)
		}
	case st == nil || st.gotEnd:
		dropped := false
		for _, id := range c.dropped {
			dropped = dropped || id == f.stream
		}
		if !dropped {
			return &connError{codeStreamClosed, "HEADERS of a stream that has ended"}
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

// fragmentLocked takes a part of a head.
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

// trailerLocked ends a body; what the trailer says nobody reads.
func (c *h2conn) trailerLocked(b *headBlock) error {
	st := c.streams[b.stream]
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

// requestLocked has a request answered.
func (c *h2conn) requestLocked(b *headBlock) error {
	st := b.st
	st.text = c.fields.text
	if len(c.streams) >= c.s.cfg.MaxStreams || c.running >= 2*c.s.cfg.MaxStreams {
		// The handlers of streams that were reset count until they notice.
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
	if !c.place.occupy() { // the connection ends, and the client may ask on another one
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

func (c *h2conn) dropLocked(id uint32) {
	c.dropped[c.drops%len(c.dropped)] = id
	c.drops++
}

// resetLocked ends a stream with a frame that says so.
func (c *h2conn) resetLocked(st *stream, code errorCode, cause error) error {
	if st.closed {
		return nil
	}
	c.dropLocked(st.id)
	c.control = appendReset(c.control, st.id, code)
	c.breakLocked(st, cause)
	if code == codeNone || code == codeInternal { // which is not the client's doing
		return nil
	}
	return c.payLocked(resetCost)
}

// breakLocked ends a stream without a word.
func (c *h2conn) breakLocked(st *stream, cause error) {
	if st.closed {
		return
	}
	st.closed = true
	delete(c.streams, st.id)
	if st.err == nil {
		st.err = cause
	}
	if st.gone != nil {
		st.gone(cause)
	}
	if st.body != nil {
		if refused, ok := errors.AsType[*RequestError](cause); ok {
			st.body.endLocked(refused)
		} else {
			st.body.endLocked(io.ErrUnexpectedEOF)
		}
	}
	c.dequeueLocked(st)
}

// doneLocked ends a stream that both sides have ended.
func (c *h2conn) doneLocked(st *stream) {
	if st.gotEnd && st.sentEnd && !st.closed {
		st.closed = true
		delete(c.streams, st.id)
		c.earnLocked(1)
	}
}
