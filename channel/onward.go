package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/fre-engine/fre/function/channel/wire"
)

// Failures of calls that never leave this package.
var (
	errGivenUp   = &Failure{Type: "cancelled", Message: "the caller has given the call up"}
	errManyCalls = &Failure{Type: "too_many_calls", Message: fmt.Sprintf("%d calls of the event are running, the most allowed", MostCalls)}
	errNoCalls   = &Failure{Type: "not_possible", Message: "the event cannot call functions"}
)

// mostRefused limits the refused calls with an unsent ERROR. A function that exceeds it does not
// read its channel.
const mostRefused = 4 * MostCalls

// onwards counts the calls of an event.
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
		return nil, wire.ErrCallerOver
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
		o.cancel(wire.ErrCallerOver)
	}
}

// onward is a call by a function, seen from the engine.
type onward struct {
	conn   *Conn
	id     uint64
	k      *call // the event; nil if the call is refused
	ctx    context.Context
	cancel context.CancelCauseFunc
	called Called
	file   *os.File // holds the request's body, unless nil
	in     wire.Inbox
	out    wire.Credit
}

// Grant allows the function to send n more bytes of the call's body.
func (o *onward) Grant(n int) { o.conn.w.Grant(o.ctx, o.id, n) }

// Taken does nothing: only answers come in pipes.
func (o *onward) Taken() {}

// frameOnward handles a frame about a call. It owns file.
func (c *Conn) frameOnward(h wire.Header, p []byte, file *os.File) error {
	if h.Kind == wire.KindCall || h.Kind == wire.KindCallFile {
		return c.frameCall(h, p, file)
	}
	if file != nil {
		return closing(file, fmt.Errorf("%w: a file in frame kind 0x%02x about a call", ErrProtocol, uint8(h.Kind)))
	}
	o, err := c.openOnward(h)
	if o == nil {
		return err
	}
	switch h.Kind {
	case wire.KindData:
		if err := o.in.Expect(len(p)); err != nil {
			return err
		}
		if err := o.in.Data(p, h.More()); err != nil {
			o.cancel(err)
		}
	case wire.KindCancel:
		o.cancel(errGivenUp)
	default:
		return o.out.AddWindow(p)
	}
	return nil
}

// openOnward returns the call of a frame; nil without an error if the frame crossed the call's end.
func (c *Conn) openOnward(h wire.Header) (*onward, error) {
	c.mu.Lock()
	o, last := c.onwards[h.ID], c.lastCall
	c.mu.Unlock()
	switch {
	case h.Kind != wire.KindData && h.Kind != wire.KindWindow && h.Kind != wire.KindCancel:
		return nil, fmt.Errorf("%w: frame kind 0x%02x about a call", ErrProtocol, uint8(h.Kind))
	case h.ID > last:
		return nil, fmt.Errorf("%w: frame kind 0x%02x for the unknown call %d", ErrProtocol, uint8(h.Kind), h.ID)
	}
	return o, nil
}

// frameCall begins a call. It owns file.
func (c *Conn) frameCall(h wire.Header, p []byte, file *os.File) error {
	if (h.Kind == wire.KindCallFile) != (file != nil) {
		return closing(file, fmt.Errorf("%w: a call's file, or none", ErrProtocol))
	}
	m, in, body, err := parseCall(p, file)
	if err != nil {
		return closing(file, err)
	}
	o := &onward{conn: c, id: h.ID, called: m.Called, file: file}
	k, err := c.registerOnward(o, m.Of)
	if err != nil {
		return closing(file, err)
	}
	refused := o.begin(k)
	switch {
	case refused != nil:
		_ = o.in.Init(nil, h.More(), o, nil) // later frames of the body are dropped
		o.in.Abort(refused)
	case file != nil:
		_ = o.in.Init(nil, false, o, nil)
		o.called.Length = in.Length
		o.called.Body = &exactly{io.NewSectionReader(file, in.Offset, in.Length), in.Length}
	default:
		o.receive(body, h.More())
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

// parseCall parses the payload of CALL or, with a file, of CALLFILE. in is where the file holds the
// body.
func parseCall(p []byte, file *os.File) (m wire.CallMeta, in wire.FileMeta, body []byte, err error) {
	meta, body, err := wire.Split(p)
	if err != nil {
		return m, in, nil, err
	}
	if err := m.Parse(meta); err != nil {
		return m, in, nil, err
	}
	if err := m.Check(); err != nil || file == nil {
		return m, in, body, err
	}
	if err := in.Parse(body); err != nil {
		return m, in, nil, err
	}
	if err := in.Check(wire.KindFD); err != nil {
		return m, in, nil, err
	}
	_, err = inspect(file, &in, false)
	return m, in, nil, err
}

// registerOnward adds the call to the calls under way. It returns the event with the id of, nil
// after the event's end.
func (c *Conn) registerOnward(o *onward, of uint64) (*call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return nil, c.err
	case o.id <= c.lastCall:
		return nil, fmt.Errorf("%w: CALL %d after %d", ErrProtocol, o.id, c.lastCall)
	case of == 0 || of > c.lastID:
		return nil, fmt.Errorf("%w: a call of the unknown invocation %d", ErrProtocol, of)
	case len(c.onwards) >= mostRefused+MostCalls*max(1, len(c.calls)):
		return nil, fmt.Errorf("%w: %d calls without reading refusals", ErrProtocol, len(c.onwards))
	}
	c.lastCall = o.id
	c.onwards[o.id] = o
	return c.calls[of], nil
}

// begin sets the call's context. It returns the reason if the call is refused.
func (o *onward) begin(k *call) (refused *Failure) {
	refused = wire.ErrCallerOver
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
	o.out.Init()
	return refused
}

// receive begins a body in frames.
func (o *onward) receive(first []byte, more bool) {
	if err := o.in.Init(first, more, o, o.conn.cfg.Memory); err != nil {
		o.cancel(err)
	}
	o.called.Length = -1
	if !more {
		o.called.Length = int64(len(first))
	}
	if more || len(first) > 0 {
		o.called.Body = onwardBody{o}
	}
}

// onwardBody is the body of a call's request. Close makes a pending Read return.
type onwardBody struct{ o *onward }

func (b onwardBody) Read(p []byte) (int, error) { return b.o.in.Read(p) }

func (b onwardBody) Close() error {
	b.o.in.Abort(wire.ErrClosedBody)
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
			o.in.Abort(context.Cause(o.ctx))
			o.out.End(context.Cause(o.ctx))
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
	_ = o.conn.w.Send(context.Background(), wire.KindError, 0, o.id, nil, failure.Payload()) // fails only with the channel
}

// release ends the call and frees its resources.
func (o *onward) release() {
	o.end()
	o.cancel(wire.ErrOver)
	o.in.Abort(wire.ErrOver)
	if o.file != nil {
		_ = o.file.Close()
	}
}

// end frees the call's slot. It runs before the last frame is sent: the function may make its
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
var replies = sync.Pool{New: func() any { return new([wire.Chunk]byte) }}

// answer sends the answer to the calling function. After an error before the last frame ERROR may
// follow.
func (o *onward) answer(a *Answer) error {
	if c, ok := a.Body.(io.Closer); ok {
		defer func() { _ = c.Close() }()
	}
	meta := wire.AppendResponse(nil, a.Status, a.Headers)
	if len(meta) > MaxMeta {
		return fmt.Errorf("answer: %d bytes of headers, at most %d", len(meta), MaxMeta)
	}
	w := o.conn.w
	if a.Body == nil {
		o.end()
		return w.Send(o.ctx, wire.KindResponse, 0, o.id, meta, nil)
	}
	buf := replies.Get().(*[wire.Chunk]byte)
	defer replies.Put(buf)
	n, err := wire.ReadFirst(a.Body, buf[:])
	if err == io.EOF || err == nil && int64(n) == a.Length { //nolint:errorlint // a Reader's end is io.EOF itself
		o.end()
		return w.Send(o.ctx, wire.KindResponse, 0, o.id, meta, buf[:n])
	}
	if err != nil {
		return err
	}
	if err := w.Send(o.ctx, wire.KindResponse, wire.FlagMore, o.id, meta, buf[:n]); err != nil {
		return err
	}
	for {
		most, err := o.out.Take(wire.Chunk)
		if err != nil {
			return err
		}
		n, err := a.Body.Read(buf[:most])
		_ = o.out.Add(most - n) // cannot exceed the limit: Take has just returned these bytes
		if err == io.EOF {      //nolint:errorlint // a Reader's end is io.EOF itself
			o.end()
			return w.Send(o.ctx, wire.KindData, 0, o.id, nil, buf[:n])
		}
		if n > 0 {
			if err := w.Send(o.ctx, wire.KindData, wire.FlagMore, o.id, nil, buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}
