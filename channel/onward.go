package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// Caller takes the calls that a function makes while it handles an event.
type Caller interface {
	// Call has another function handle an event, and returns its answer. ctx ends with
	// the calling event, and where the caller gives up. An error, a *[Failure] for choice,
	// is what the caller is told.
	Call(ctx context.Context, c *Called) (*Answer, error)
}

// Called is a function's call of another one.
type Called struct {
	Function string // as the caller names it
	Method   string
	Path     string // begins with a slash
	Query    string // raw
	Headers  [][2]string

	Body   io.Reader // nil for none; valid until the call is over. One that is an io.Closer may be closed before
	Length int64     // of Body in bytes, -1 while it is still coming
}

// onwardMeta is the JSON of CALL and CALLFILE.
type onwardMeta struct {
	of uint64 // the event that is being handled
	Called
}

// check refuses what could not stand in an HTTP request.
func (m *onwardMeta) check() error {
	switch {
	case !token(m.Method):
		return fmt.Errorf("%w: a call's method %q", ErrProtocol, m.Method)
	case !strings.HasPrefix(m.Path, "/") || !visible(m.Path) || !visible(m.Query):
		return fmt.Errorf("%w: a call's path %q?%q", ErrProtocol, m.Path, m.Query)
	case len(m.Headers) > MaxHeaders:
		return fmt.Errorf("%w: %d headers", ErrProtocol, len(m.Headers))
	}
	for _, h := range m.Headers {
		if !token(h[0]) || !fieldValue(h[1]) {
			return badHeader(h[:])
		}
	}
	return nil
}

// Failures of calls that never leave this package.
var (
	errCallerOver = &Failure{Type: "cancelled", Message: "the event that called is over"}
	errGivenUp    = &Failure{Type: "cancelled", Message: "the caller has given the call up"}
	errManyCalls  = &Failure{Type: "too_many_calls", Message: fmt.Sprintf("%d calls of this event are under way", MostCalls)}
	errNoCalls    = &Failure{Type: "not_possible", Message: "this event can call no function"}
	errNoEngine   = &Failure{Type: "not_possible", Message: "this engine takes no calls"}
)

// mostRefused is how many refused calls may wait for the function to hear of it: who makes
// more does not listen.
const mostRefused = 4 * MostCalls

// onwards are the calls of one event; mu guards them.
type onwards struct {
	mu     sync.Mutex
	ctx    context.Context // of all of them; nil before the first
	cancel context.CancelCauseFunc
	open   int
	over   bool // no further ones
}

// begin counts a call, or says why there can be none.
func (o *onwards) begin(of context.Context) (context.Context, *Failure) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.over:
		return nil, errCallerOver
	case o.open >= MostCalls:
		return nil, errManyCalls
	}
	if o.ctx == nil {
		o.ctx, o.cancel = context.WithCancelCause(of)
	}
	o.open++
	return o.ctx, nil
}

func (o *onwards) done() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open--
}

// end cancels what is open, and lets nothing follow.
func (o *onwards) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	if o.cancel != nil {
		o.cancel(errCallerOver)
	}
}

// onward is one call of a function's under way, seen from the engine.
type onward struct {
	conn   *Conn
	id     uint64
	k      *call // the event; nil where the call is refused
	ctx    context.Context
	cancel context.CancelCauseFunc
	called Called
	file   *os.File // unless nil, has the request's body
	in     inbox
	out    credit
}

func (o *onward) grant(n int) { o.conn.w.grant(o.ctx, o.id, n) }

// taken is for bodies in pipes, which requests' are not.
func (o *onward) taken() {}

// frameOnward acts on a frame about a call. It owns file.
func (c *Conn) frameOnward(h header, p []byte, file *os.File) error {
	if h.kind == kindCall || h.kind == kindCallFile {
		return c.frameCall(h, p, file)
	}
	if file != nil {
		return closing(file, fmt.Errorf("%w: a file in frame kind 0x%02x about a call", ErrProtocol, uint8(h.kind)))
	}
	c.mu.Lock()
	o, last := c.onwards[h.id], c.lastCall
	c.mu.Unlock()
	switch {
	case h.kind != kindData && h.kind != kindWindow && h.kind != kindCancel:
		return fmt.Errorf("%w: frame kind 0x%02x about a call", ErrProtocol, uint8(h.kind))
	case h.id > last:
		return fmt.Errorf("%w: frame kind 0x%02x for call %d, which was never made", ErrProtocol, uint8(h.kind), h.id)
	case o == nil: // it crossed the call's end
		return nil
	}
	switch h.kind {
	case kindData:
		if err := o.in.expect(len(p)); err != nil {
			return err
		}
		if err := o.in.data(p, h.more()); err != nil {
			o.cancel(err)
		}
	case kindCancel:
		o.cancel(errGivenUp)
	default:
		n, err := window(p)
		if err != nil {
			return err
		}
		return o.out.add(n)
	}
	return nil
}

// frameCall begins a call. It owns file.
func (c *Conn) frameCall(h header, p []byte, file *os.File) error {
	if (h.kind == kindCallFile) != (file != nil) {
		return closing(file, fmt.Errorf("%w: a call's file, or none", ErrProtocol))
	}
	var m onwardMeta
	meta, body, err := split(p)
	if err == nil {
		if err = m.parse(meta); err == nil {
			err = m.check()
		}
	}
	var in fileMeta
	if err == nil && file != nil {
		if err = in.parse(body); err == nil {
			if err = in.check(kindFD); err == nil {
				_, err = inspect(file, &in, false)
			}
		}
	}
	if err != nil {
		return closing(file, err)
	}
	o := &onward{conn: c, id: h.id, called: m.Called, file: file}
	c.mu.Lock()
	switch {
	case c.err != nil:
		err = c.err
	case h.id <= c.lastCall:
		err = fmt.Errorf("%w: CALL %d after %d", ErrProtocol, h.id, c.lastCall)
	case m.of == 0 || m.of > c.lastID:
		err = fmt.Errorf("%w: a call of invocation %d, which was never sent", ErrProtocol, m.of)
	case len(c.onwards) >= mostRefused+MostCalls*max(1, len(c.calls)):
		err = fmt.Errorf("%w: %d calls, whose refusal is not heard", ErrProtocol, len(c.onwards))
	}
	if err != nil {
		c.mu.Unlock()
		return closing(file, err)
	}
	k := c.calls[m.of]
	c.lastCall = h.id
	c.onwards[h.id] = o
	c.mu.Unlock()

	refused := errCallerOver
	var of context.Context
	if k != nil && k.caller == nil {
		refused = errNoCalls
	} else if k != nil {
		of, refused = k.onward.begin(k.ctx)
	}
	if refused == nil {
		o.k = k
	} else {
		of = context.Background() // the channel's end ends it
	}
	o.ctx, o.cancel = context.WithCancelCause(of)
	o.out.init()
	switch {
	case refused != nil:
		_ = o.in.init(nil, h.more(), o, nil) // what follows is dropped
		o.in.abort(refused)
	case file != nil:
		_ = o.in.init(nil, false, o, nil)
		o.called.Length = in.Length
		o.called.Body = &exactly{io.NewSectionReader(file, in.Offset, in.Length), in.Length}
	default:
		if err := o.in.init(body, h.more(), o, c.cfg.Memory); err != nil {
			o.cancel(err)
		}
		o.called.Length = -1
		if !h.more() {
			o.called.Length = int64(len(body))
		}
		if h.more() || len(body) > 0 {
			o.called.Body = onwardBody{o}
		}
	}
	c.mu.Lock()
	if err = c.err; err == nil {
		c.wg.Go(func() { o.run(refused) })
	}
	c.mu.Unlock()
	if err != nil {
		o.release()
	}
	return err
}

// onwardBody is the body of a call's request; Close makes a Read under way return.
type onwardBody struct{ o *onward }

func (b onwardBody) Read(p []byte) (int, error) { return b.o.in.Read(p) }

func (b onwardBody) Close() error {
	b.o.in.abort(errClosedBody)
	return nil
}

// exactly is a body in a file that may become shorter.
type exactly struct {
	r    io.Reader
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.left -= int64(n)
	if err == io.EOF && e.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// run makes the call and tells the function how it went. Whatever that is, it is told the
// call's end, once.
func (o *onward) run(refused *Failure) {
	defer o.release()
	var err error
	if refused != nil {
		err = refused
	} else {
		stop := context.AfterFunc(o.ctx, func() {
			o.in.abort(context.Cause(o.ctx))
			o.out.end(context.Cause(o.ctx))
		})
		defer stop()
		var a *Answer
		if a, err = o.k.caller.Call(o.ctx, &o.called); err == nil {
			err = o.answer(a)
		}
	}
	if err == nil {
		return
	}
	failure := &Failure{}
	if !errors.As(err, &failure) {
		failure = &Failure{Type: "internal", Message: err.Error()}
	}
	o.end()
	_ = o.conn.w.send(context.Background(), kindError, 0, o.id, nil, failure.payload()) // fails with the channel alone
}

// release gives back what the call has, but for its place.
func (o *onward) release() {
	o.end()
	o.cancel(errOver)
	o.in.abort(errOver)
	if o.file != nil {
		_ = o.file.Close()
	}
}

// end frees the call's place, before its last frame is sent: the function may make the next
// one once it has that.
func (o *onward) end() {
	o.conn.mu.Lock()
	_, open := o.conn.onwards[o.id]
	delete(o.conn.onwards, o.id)
	o.conn.mu.Unlock()
	if open && o.k != nil {
		o.k.onward.done()
	}
}

// replies are what answers are read into on their way to a caller.
var replies = sync.Pool{New: func() any { return new([chunk]byte) }}

// answer tells the caller. Errors before the last frame leave room for ERROR.
func (o *onward) answer(a *Answer) error {
	if c, ok := a.Body.(io.Closer); ok {
		defer func() { _ = c.Close() }()
	}
	meta := appendResponse(nil, a.Status, a.Headers)
	if len(meta) > MaxMeta {
		return fmt.Errorf("answer: %d bytes of headers, at most %d", len(meta), MaxMeta)
	}
	w := o.conn.w
	if a.Body == nil {
		o.end()
		return w.send(o.ctx, kindResponse, 0, o.id, meta, nil)
	}
	buf := replies.Get().(*[chunk]byte)
	defer replies.Put(buf)
	n, err := readFirst(a.Body, buf[:])
	if err == io.EOF || err == nil && int64(n) == a.Length { //nolint:errorlint // a Reader's end is io.EOF itself
		o.end()
		return w.send(o.ctx, kindResponse, 0, o.id, meta, buf[:n])
	}
	if err != nil {
		return err
	}
	if err := w.send(o.ctx, kindResponse, flagMore, o.id, meta, buf[:n]); err != nil {
		return err
	}
	for {
		most, err := o.out.take(chunk)
		if err != nil {
			return err
		}
		n, err := a.Body.Read(buf[:most])
		_ = o.out.add(most - n) // what was taken before fits
		if err == io.EOF {      //nolint:errorlint // a Reader's end is io.EOF itself
			o.end()
			return w.send(o.ctx, kindData, 0, o.id, nil, buf[:n])
		}
		if n > 0 {
			if err := w.send(o.ctx, kindData, flagMore, o.id, nil, buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}
