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
	// Call has another function handle an event, and returns its answer. ctx ends with the
	// calling event, and when the function gives the call up. The function is told any error,
	// preferably a *[Failure].
	Call(ctx context.Context, c *Called) (*Answer, error)
}

// Called is a function's call of another function.
type Called struct {
	Function string // as the calling function writes it
	Method   string
	Path     string // begins with a slash
	Query    string // raw
	Headers  [][2]string

	Body   io.Reader // nil for none; valid until the call is over. If it is an io.Closer, it may be closed before
	Length int64     // bytes of Body, -1 while Body is still arriving
}

// onwardMeta is the JSON of CALL and CALLFILE.
type onwardMeta struct {
	of uint64 // id of the event being handled
	Called
}

// check refuses metadata that an HTTP request cannot have.
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

// mostRefused limits the refused calls with an unsent ERROR. A function that exceeds it does not
// read its channel.
const mostRefused = 4 * MostCalls

// onwards counts the calls of one event.
type onwards struct {
	mu     sync.Mutex
	ctx    context.Context // parent context of the calls; nil before the first call
	cancel context.CancelCauseFunc
	open   int
	over   bool // no further calls
}

// begin counts a call and returns its context, or the reason to refuse the call.
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

// end cancels the open calls and refuses further calls.
func (o *onwards) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	if o.cancel != nil {
		o.cancel(errCallerOver)
	}
}

// onward is one call that a function makes, seen from the engine.
type onward struct {
	conn   *Conn
	id     uint64
	k      *call // the event; nil if the call is refused
	ctx    context.Context
	cancel context.CancelCauseFunc
	called Called
	file   *os.File // holds the request's body, unless nil
	in     inbox
	out    credit
}

func (o *onward) grant(n int) { o.conn.w.grant(o.ctx, o.id, n) }

// taken does nothing: only answers come in pipes.
func (o *onward) taken() {}

// frameOnward handles a frame about a call. It owns file.
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
	case o == nil: // the frame crossed the call's end
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
		of = context.Background() // the end of the channel ends it
	}
	o.ctx, o.cancel = context.WithCancelCause(of)
	o.out.init()
	switch {
	case refused != nil:
		_ = o.in.init(nil, h.more(), o, nil) // later frames of the body are dropped
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

// onwardBody is the body of a call's request. Close makes a pending Read return.
type onwardBody struct{ o *onward }

func (b onwardBody) Read(p []byte) (int, error) { return b.o.in.Read(p) }

func (b onwardBody) Close() error {
	b.o.in.abort(errClosedBody)
	return nil
}

// exactly reads a body from a file. It returns io.ErrUnexpectedEOF if the file becomes shorter
// than the body.
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

// run makes the call and sends the answer or ERROR. Either way the function gets the call's end
// once.
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
	_ = o.conn.w.send(context.Background(), kindError, 0, o.id, nil, failure.payload()) // fails only with the channel
}

// release ends the call and frees its resources.
func (o *onward) release() {
	o.end()
	o.cancel(errOver)
	o.in.abort(errOver)
	if o.file != nil {
		_ = o.file.Close()
	}
}

// end frees the call's place. It runs before the last frame is sent: the function may make its
// next call once it has that frame.
func (o *onward) end() {
	o.conn.mu.Lock()
	_, open := o.conn.onwards[o.id]
	delete(o.conn.onwards, o.id)
	o.conn.mu.Unlock()
	if open && o.k != nil {
		o.k.onward.done()
	}
}

// replies are buffers for answers on their way to a calling function.
var replies = sync.Pool{New: func() any { return new([chunk]byte) }}

// answer sends the answer to the calling function. After an error before the last frame ERROR may
// follow.
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
		_ = o.out.add(most - n) // cannot exceed the limit: take has just returned these bytes
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
