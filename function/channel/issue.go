package channel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/fre-engine/fre/function/channel/wire"
)

// issued is one call of another function, seen from the calling function.
type issued struct {
	f       *function
	id      uint64
	s       *served // the event that calls
	replied chan struct{}
	once    sync.Once // closes replied
	reply   *Reply
	err     error
	stop    func() bool // ends the watches over the contexts
	in      wire.Inbox
	out     wire.Credit
}

// errNoEngine is the failure of a call if the engine takes no calls.
var errNoEngine = &Failure{Type: "not_possible", Message: "the engine does not allow calls"}

// Reply is a called function's answer. The caller must close Body. Its Read returns a *[Failure]
// when the called function breaks the body off.
type Reply struct {
	Status  int
	Headers [][2]string   // valid in HTTP, in the function's order
	Length  int64         // bytes of the body, -1 while the body is still arriving
	Body    io.ReadCloser // for one goroutine
}

// Grant allows the engine to send n more bytes of the answer's body.
func (k *issued) Grant(n int) { k.f.w.Grant(k.f.ctx, k.id, n) }

// Taken does nothing: only bodies in pipes need it.
func (k *issued) Taken() {}

// Call has another function of the tenant handle an event. The call ends with ctx and with the
// calling event. The caller must close the answer's Body. Call returns a *[Failure], told apart
// by its Type, if the engine refuses the call or the called function fails. A goroutine reads the
// rest of a long c.Body and ends with the call, once its current Read returns.
func (e *Event) Call(ctx context.Context, c *Called) (*Reply, error) {
	f := e.fun
	if !f.calls {
		return nil, errNoEngine
	}
	f.mu.Lock()
	s := f.events[e.id]
	f.mu.Unlock()
	if s == nil {
		return nil, wire.ErrCallerOver
	}
	k := &issued{f: f, s: s, replied: make(chan struct{})}
	k.out.Init()
	if err := k.send(ctx, c); err != nil {
		k.end()
		return nil, err
	}
	stopped := context.AfterFunc(&s.ctx, func() { k.cancel(context.Cause(&s.ctx)) })
	stop := context.AfterFunc(ctx, func() { k.cancel(context.Cause(ctx)) })
	k.stop = func() bool { stopped(); return stop() }
	<-k.replied
	if k.err != nil {
		k.stop()
		return nil, k.err
	}
	return k.reply, nil
}

// send sends CALL or CALLFILE.
func (k *issued) send(ctx context.Context, c *Called) error {
	m := wire.CallMeta{Of: k.s.id, Called: *c}
	if err := m.Check(); err != nil {
		return &Failure{Type: "bad_call", Message: err.Error()}
	}
	meta := m.Append(nil)
	if len(meta) > MaxMeta {
		return &Failure{Type: "bad_call", Message: fmt.Sprintf("%d bytes of metadata, at most %d", len(meta), MaxMeta)}
	}
	f := k.f
	if sent, err := k.sendFile(ctx, meta, c.Body); sent || err != nil {
		return err
	}
	first, rest, err := readStart(c.Body)
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	flags := uint8(0)
	if rest {
		flags = wire.FlagMore
	}
	if err := k.begin(func() error { return f.w.Send(ctx, wire.KindCall, flags, k.id, meta, first) }); err != nil {
		return err
	}
	if rest {
		body := c.Body
		f.wg.Go(func() { k.out.Send(f.ctx, f.w, k.id, body, k.cancel) })
	}
	return nil
}

// readStart reads the start of a body. rest reports whether more may follow.
func readStart(body io.Reader) (first []byte, rest bool, err error) {
	if body == nil {
		return nil, false, nil
	}
	size := wire.Chunk
	if n := wire.LenOf(body); n >= 0 {
		size = min(n, mostWhole) + 1
	}
	first = make([]byte, size)
	n, err := io.ReadFull(body, first)
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return first[:n], false, nil
	}
	return first[:n], true, err
}

// begin gives the call its id and sends its first frame. The lock keeps ids in order on the
// channel.
func (k *issued) begin(send func() error) error {
	f := k.f
	f.issuing.Lock()
	defer f.issuing.Unlock()
	f.mu.Lock()
	over := f.events[k.s.id] == nil
	if !over {
		f.lastCall++
		k.id = f.lastCall
		f.issued[k.id] = k
	}
	f.mu.Unlock()
	if over {
		return wire.ErrCallerOver
	}
	return send()
}

// sendFile sends a long body in a file. sent is false if no file can be used; then body is
// unread.
func (k *issued) sendFile(ctx context.Context, meta []byte, body io.Reader) (sent bool, err error) {
	var file *os.File
	var m wire.FileMeta
	n := wire.LenOf(body)
	from, ok := body.(io.WriterTo)
	if !ok || n <= mostWhole || int64(n) > k.f.mostBytes {
		return false, nil
	}
	if file, err = newMemfd(); err != nil { // no memory, or too many files
		return false, nil
	}
	defer func() { _ = file.Close() }()
	if m.Length, err = from.WriteTo(file); err != nil || m.Length != int64(n) {
		return false, cmp.Or(err, io.ErrShortWrite)
	}
	err = k.begin(func() error { return k.f.w.SendFile(ctx, wire.KindCallFile, k.id, meta, m.JSON(), file) })
	return err == nil, err
}

// frameIssued handles a frame about a call that this function made.
func (f *function) frameIssued(h wire.Header, p []byte) error {
	f.mu.Lock()
	k, last := f.issued[h.ID], f.lastCall
	f.mu.Unlock()
	switch h.Kind {
	case wire.KindResponse, wire.KindData, wire.KindError, wire.KindWindow:
	default:
		return fmt.Errorf("%w: frame kind 0x%02x about a call", ErrProtocol, uint8(h.Kind))
	}
	if h.ID > last {
		return fmt.Errorf("%w: call %d, which was never made", ErrProtocol, h.ID)
	}
	if k == nil { // the call was given up
		return nil
	}
	switch h.Kind {
	case wire.KindResponse:
		return k.frameResponse(p, h.More())
	case wire.KindData:
		if err := k.in.Expect(len(p)); err != nil {
			return err
		}
		if !h.More() {
			k.end()
		}
		return k.in.Data(p, h.More())
	case wire.KindError:
		failure := &Failure{}
		if err := wire.Unmarshal(p, failure); err != nil {
			return err
		}
		k.end()
		k.fail(failure)
	default:
		return k.out.AddWindow(p)
	}
	return nil
}

func (k *issued) frameResponse(p []byte, more bool) error {
	meta, body, err := wire.Split(p)
	if err != nil {
		return err
	}
	var m wire.ResponseMeta
	if err := m.Parse(meta); err != nil {
		return err
	}
	_ = k.in.Init(body, more, k, nil) // without buffers it cannot fail
	r := &Reply{Status: m.Status, Headers: m.Headers, Length: -1, Body: issuedBody{k}}
	if !more {
		r.Length = int64(len(body))
		k.end()
	}
	k.once.Do(func() {
		k.reply = r
		close(k.replied)
	})
	return nil
}

// end removes the call from the calls under way.
func (k *issued) end() {
	k.f.mu.Lock()
	delete(k.f.issued, k.id)
	k.f.mu.Unlock()
	k.out.End(wire.ErrOver)
}

// fail makes Call return err or, after Call, a Read of the answer's body.
func (k *issued) fail(err error) {
	first := false
	k.once.Do(func() {
		first = true
		k.err = err
		close(k.replied)
	})
	if !first && k.err == nil {
		k.in.Fail(err)
	}
}

// cancel gives the call up and sends CANCEL, unless the call is over.
func (k *issued) cancel(err error) {
	k.f.mu.Lock()
	_, open := k.f.issued[k.id]
	delete(k.f.issued, k.id)
	k.f.mu.Unlock()
	if !open {
		return
	}
	k.out.End(err)
	k.fail(err)
	_ = k.f.w.Send(k.f.ctx, wire.KindCancel, 0, k.id, nil, nil) // fails only with the channel
}

// issuedBody is the body of a call's answer. A Close before the end gives the call up.
type issuedBody struct{ k *issued }

func (b issuedBody) Read(p []byte) (int, error) { return b.k.in.Read(p) }

func (b issuedBody) Close() error {
	b.k.cancel(wire.ErrClosedBody)
	b.k.stop()
	b.k.in.Abort(wire.ErrClosedBody)
	return nil
}
