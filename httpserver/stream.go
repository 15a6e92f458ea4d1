package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

// errStalled ends a stream whose client reads none of the answer.
var errStalled = fmt.Errorf("the client does not read the answer: %w", os.ErrDeadlineExceeded)

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

// serve has the handler answer the request, and ends the stream.
func (st *stream) serve() {
	c, x := st.c, &st.x
	if st.body == nil {
		x.begin(nil)
	} else {
		x.begin(&st.body.Body)
	}
	st.answer()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case x.err != nil:
		_ = c.resetLocked(st, codeInternal, x.err) // the reader checks the credit
	case !st.gotEnd: // the rest of the request is unwanted (section 8.1)
		_ = c.resetLocked(st, codeNone, errAborted)
	}
	c.doneLocked(st)
	st.release()
	if c.running--; c.running == 0 {
		c.slot.vacate(time.Now())
	}
	c.quiet.Broadcast()
	c.flushControlLocked()
	if c.leaving && c.running == 0 {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // wakes the reader to end the connection
	}
}

func (st *stream) answer() {
	x := &st.x
	defer func() {
		if v := recover(); v != nil {
			x.Abort()
			st.c.s.cfg.Log.Error("a handler panicked: stream reset", "panic", v, "stack", string(debug.Stack()))
		}
		x.end()
	}()
	if st.refused == nil {
		st.c.s.cfg.Handler.Serve(x)
	} else {
		kind, body := st.c.s.cfg.Refuse(x, st.refused)
		x.Set("Content-Type", kind)
		_ = x.Send(st.refused.Status, body) // x.err keeps the error
	}
	x.finish()
}

func (st *stream) server() *Server    { return st.c.s }
func (st *stream) protocol() string   { return "HTTP/2" }
func (st *stream) remoteAddr() string { return st.c.nc.RemoteAddr().String() }
func (st *stream) secure() bool       { return isTLS(st.c.nc) }

func (st *stream) context() context.Context {
	ctx, gone := context.WithCancelCause(st.c.s.ctx)
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	st.gone = gone
	if st.err != nil {
		gone(st.err)
	}
	return ctx
}

func (st *stream) unwatch() {
	st.c.mu.Lock()
	gone := st.gone
	st.gone = nil
	st.c.mu.Unlock()
	if gone != nil {
		gone(nil)
	}
}

func (st *stream) head(x *Exchange, status int, length int64, bodyless bool) []byte {
	if bodyless {
		length = -1
	} else if length < 0 {
		x.chunked = true
	}
	st.packed = appendHead(st.packed[:0], status, x.fields, length)
	return st.packed
}

func (st *stream) send(head, body []byte, last bool) error { return st.write(head, body, last) }
func (st *stream) chunk(p []byte) error                    { return st.write(nil, p, len(p) == 0) }
func (st *stream) canLend() bool                           { return false }

func (st *stream) lend(func(socket syscall.RawConn) (int64, error)) (int64, error) {
	return 0, errors.New("httpserver: a stream cannot be lent")
}

func (st *stream) sendFile(head []byte, f *os.File, offset, length int64) error {
	b, err := st.c.s.acquire(copySize)
	if err != nil {
		return err
	}
	defer b.Release()
	buf := b.Bytes()[:copySize]
	for length > 0 {
		n, err := f.ReadAt(buf[:min(length, int64(len(buf)))], offset)
		if n == 0 {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // the file has become shorter
			}
			return err
		}
		offset += int64(n)
		length -= int64(n)
		if err := st.write(head, buf[:n], length == 0); err != nil {
			return err
		}
		head = nil
	}
	return nil
}

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
			if piece, err = b.c.s.tryAcquire(pieceSize); err != nil {
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

// work passes a stream to an idle worker, whose stack has grown already, or to a new one.
func (s *Server) work(st *stream) {
	select {
	case s.idle <- st:
	default:
		s.wg.Go(func() { s.worker(st) })
	}
}

// maxIdle limits the idle workers.
const maxIdle = 64

func (s *Server) worker(st *stream) {
	for {
		st.serve()
		if s.idlers.Add(1) > maxIdle {
			s.idlers.Add(-1)
			return
		}
		select {
		case st = <-s.idle:
			s.idlers.Add(-1)
		case <-s.quit:
			return
		}
	}
}
