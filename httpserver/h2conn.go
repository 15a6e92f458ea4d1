package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http2/hpack"
)

// Limits on HTTP/2 clients (RFC 9113 sections 5.2, 10.5).
const (
	streamWindow = 256 << 10 // unread bytes of one request's body
	connWindow   = 1 << 20   // unread bytes of all bodies on a connection

	// maxControl limits the unsent answers to control frames in bytes; maxBlockFrames limits the
	// frames of a head.
	maxControl     = 64 << 10
	maxBlockFrames = 64

	// Each connection has credit for frames that cause work without bringing any: a frame costs
	// 1, a reset or refused stream resetCost. Credit returns with time and with the frames of
	// bodies in either direction.
	maxCredit       = 4000
	creditPerSecond = 400
	resetCost       = 8
	bodyCredit      = 4

	// Sent body data entitles the client to free WINDOW_UPDATE frames: two for each DATA frame,
	// one per window, for clients that count frames, and one more per updateBytes for clients
	// that read little at a time. Go's client sends two per 4 KiB, and one per read if it is the
	// slower side. The updates may arrive long after, when the client reads.
	updatesPerFrame = 2
	updateBytes     = 256
)

// h2conn is an HTTP/2 connection. One goroutine reads; the handlers' goroutines write (see
// writer.go). Lock order: no lock is taken under mu.
type h2conn struct {
	*input // shared with conn, base is 0; for the reader goroutine, except pool, nc and raw
	s      *service
	outlet *outlet
	slot   *slot

	// For the reader goroutine only.
	decoder   *hpack.Decoder
	fields    fieldReader
	block     headBlock
	settled   bool      // SETTINGS was received
	pressing  time.Time // deadline of the current frame, head or first SETTINGS; zero for none
	waits     time.Time // read deadline of the socket
	idleSince time.Time // zero while streams are open

	mu      sync.Mutex
	quiet   sync.Cond // on mu: writing has stopped, or a handler has returned
	streams map[uint32]*stream
	running int // handlers
	last    uint32
	dropped [64]uint32 // streams that the server has reset recently: late frames may still arrive
	drops   int
	leaving bool  // GOAWAY was sent or received
	err     error // why the connection is unusable
	credit  int
	counted time.Time // when credit was last renewed
	updates int       // WINDOW_UPDATE frames that the client may still send for free

	recv, unacked int // body bytes the client may send; consumed bytes not yet granted again
	sender
}

// headBlock is a head being received.
type headBlock struct {
	id      uint32  // 0: no head
	st      *stream // the new stream; nil for none
	ended   bool    // no body follows
	trailer bool
	size    int
	frames  int
}

// payLocked charges the client's credit.
func (c *h2conn) payLocked(cost int) error {
	if c.credit -= cost; c.credit >= 0 {
		return nil
	}
	now := time.Now()
	earned := int(now.Sub(c.counted).Seconds() * creditPerSecond)
	if c.credit = min(c.credit+earned, maxCredit); c.credit < 0 {
		return &connError{codeCalm, "too many frames that cost work"}
	}
	c.counted = now
	return nil
}

func (c *h2conn) earnLocked(n int) { c.credit = min(c.credit+n, maxCredit) }

// sender is the sending half of an HTTP/2 connection. A goroutine with frames to send queues
// them. If no goroutine is writing, it becomes the writer and sends all queued frames, including
// those of other streams. Otherwise it waits until the writer has sent its frames or, finished
// with its own, passes the task on. Frames of many streams share a system call, in turns, without
// a goroutine between handler and socket.
//
//	handler A  queue ─ write [A] ──────── done, B goes on
//	handler B           queue ─ waits ─── write [B C] ─ done
//	handler C            queue ─ waits ──────────────── done
type sender struct {
	writing bool      // a goroutine is the writer, or about to be
	control []byte    // control frames, sent before the queue
	queue   []*stream // streams with data to send, in order of turns
	went    time.Time // time of the last write of stream data

	window        int64 // bytes that the client accepts on the connection
	initialWindow int64 // and initially on each stream
	frameSize     int
	table         uint32 // size in bytes of the client's header table for our heads
	shrunk        bool   // the client has shrunk the table; the next head must say so

	// For the writer only.
	scratch []byte    // frame heads and small bodies
	parts   []part    // data to send: a slice of scratch, then data
	sent    []*stream // streams with data in parts
	vector  [][]byte
}

func (s *sender) initSender() {
	s.window, s.initialWindow, s.frameSize, s.table = initialWindow, initialWindow, maxFrame, defaultTable
}

type part struct {
	end  int // end in scratch; the part starts at the previous end
	data []byte
}

// stream is an HTTP/2 stream: a request and its answer (RFC 9113 section 5). The handler's
// goroutine waits until its frames are sent.
type stream struct {
	c  *h2conn
	id uint32
	x  Exchange

	text    []byte        // memory of x.Head
	refused *RequestError // the server answers instead of the handler
	packed  []byte        // head of the answer
	wake    chan struct{} // of capacity 1: the state has changed
	timer   *time.Timer

	// Guarded by the connection's mu.
	window          int64 // bytes that the client accepts
	recv, unacked   int   // bytes that the client may still send; bytes consumed but not granted again yet
	gotEnd, sentEnd bool
	begun           bool // the answer has begun
	closed          bool // frames of the stream are ignored
	err             error
	gone            context.CancelCauseFunc
	body            *streamBody // nil if none
	out             outgoing
}

var streams = sync.Pool{New: func() any {
	st := &stream{wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	st.timer.Stop()
	st.x.over = st
	return st
}}

func newStream(c *h2conn, id uint32) *stream {
	st := streams.Get().(*stream)
	st.c, st.id = c, id
	return st
}

// release recycles a stream that is no longer referenced.
func (st *stream) release() {
	select {
	case <-st.wake:
	default:
	}
	fields := st.x.Fields
	clear(fields)
	*st = stream{text: st.text[:0], packed: st.packed[:0], wake: st.wake, timer: st.timer, x: Exchange{fields: st.x.fields[:0], over: st}}
	st.x.Fields = fields[:0]
	if cap(st.text) <= 4<<10 {
		streams.Put(st)
	}
}

func (st *stream) notify() {
	select {
	case st.wake <- struct{}{}:
	default: // the woken goroutine checks the whole state anyway
	}
}

// wait returns on a change, or with true after StallTimeout.
func (st *stream) wait() (stalled bool) {
	select {
	case <-st.wake:
		return false
	default:
	}
	st.timer.Reset(st.c.s.cfg.StallTimeout)
	defer st.timer.Stop()
	select {
	case <-st.wake:
		return false
	case <-st.timer.C:
		return true
	}
}

// errStalled ends a stream whose client reads none of the answer.
var errStalled = fmt.Errorf("the client does not read the answer: %w", os.ErrDeadlineExceeded)

// outgoing is the data that a stream sends. The connection's mu guards it.
type outgoing struct {
	head  []byte
	data  []byte
	last  bool
	state outState
	baton bool // the stream's goroutine has to become the writer
	moved bool // some bytes were sent since the goroutine last looked
}

// outState is the state of a stream's data; become changes it.
//
//	idle ──▶ queued ⇄ writing ──▶ sent ──▶ queued by the next write
//	            └────────┴──────▶ dropped
type outState uint8

const (
	outIdle    outState = iota
	outQueued           // in the sender's queue
	outWriting          // the writer took a part, which is being written
	outSent             // all bytes were sent
	outDropped          // stream or connection ended first
)

// waits reports whether data is in the queue or being written.
func (s outState) waits() bool { return s == outQueued || s == outWriting }

// become changes the state. It panics if the present state does not allow the next one.
func (o *outgoing) become(next outState) {
	allowed := false
	switch next {
	case outIdle:
	case outQueued:
		allowed = o.state != outQueued
	case outWriting:
		allowed = o.state == outQueued
	case outSent:
		allowed = o.state == outWriting
	case outDropped:
		allowed = o.state.waits()
	}
	if !allowed {
		panic(fmt.Sprintf("httpserver: outgoing data in state %d cannot become %d", o.state, next))
	}
	o.state = next
}

func (c *h2conn) dropLocked(id uint32) {
	c.dropped[c.drops%len(c.dropped)] = id
	c.drops++
}

// resetLocked ends a stream with RST_STREAM.
func (c *h2conn) resetLocked(st *stream, code errorCode, cause error) error {
	if st.closed {
		return nil
	}
	c.dropLocked(st.id)
	c.control = appendReset(c.control, st.id, code)
	c.breakLocked(st, cause)
	if code == codeNone || code == codeInternal { // not the client's fault
		return nil
	}
	return c.payLocked(resetCost)
}

// breakLocked ends a stream without a frame.
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

// doneLocked removes a stream that both sides have ended.
func (c *h2conn) doneLocked(st *stream) {
	if st.gotEnd && st.sentEnd && !st.closed {
		st.closed = true
		delete(c.streams, st.id)
		c.earnLocked(1)
	}
}

// failLocked ends all streams of the connection.
func (c *h2conn) failLocked(err error) {
	if c.err == nil {
		c.err = err
	}
	for _, st := range c.streams {
		c.breakLocked(st, err)
	}
}

// dequeueLocked drops the unsent data of a stream, except data being written.
func (c *h2conn) dequeueLocked(st *stream) {
	if st.out.state != outQueued {
		return
	}
	for i, other := range c.queue {
		if other == st {
			c.queue = append(c.queue[:i], c.queue[i+1:]...)
			break
		}
	}
	st.out.become(outDropped)
	st.notify()
}
