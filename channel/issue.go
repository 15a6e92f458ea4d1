package channel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
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
	in      inbox
	out     credit
}

// grant allows the engine to send n more bytes of the answer's body.
func (k *issued) grant(n int) { k.f.w.grant(k.f.ctx, k.id, n) }

// taken does nothing: only bodies in pipes need it.
func (k *issued) taken() {}

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
		return nil, errCallerOver
	}
	k := &issued{f: f, s: s, replied: make(chan struct{})}
	k.out.init()
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
	m := onwardMeta{of: k.s.id, Called: *c}
	if err := m.check(); err != nil {
		return &Failure{Type: "bad_call", Message: err.Error()}
	}
	meta := m.append(nil)
	if len(meta) > MaxMeta {
		return &Failure{Type: "bad_call", Message: fmt.Sprintf("%d bytes of metadata, at most %d", len(meta), MaxMeta)}
	}
	f := k.f
	if sent, err := k.sendFile(ctx, meta, c.Body); sent || err != nil {
		return err
	}
	var first []byte
	rest := false
	if c.Body != nil {
		size := chunk
		if n := lenOf(c.Body); n >= 0 {
			size = min(n, mostWhole) + 1
		}
		first = make([]byte, size)
		n, err := io.ReadFull(c.Body, first)
		if err != nil && err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("read body: %w", err)
		}
		first, rest = first[:n], err == nil
	}
	flags := uint8(0)
	if rest {
		flags = flagMore
	}
	if err := k.begin(func() error { return f.w.send(ctx, kindCall, flags, k.id, meta, first) }); err != nil {
		return err
	}
	if rest {
		body := c.Body
		f.wg.Go(func() { k.out.send(f.ctx, f.w, k.id, body, k.cancel) })
	}
	return nil
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
		return errCallerOver
	}
	return send()
}

// sendFile sends a long body in a file. sent is false if no file can be used; then body is
// unread.
func (k *issued) sendFile(ctx context.Context, meta []byte, body io.Reader) (sent bool, err error) {
	var file *os.File
	var m fileMeta
	n := lenOf(body)
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
	err = k.begin(func() error { return k.f.w.sendFile(ctx, kindCallFile, k.id, meta, m.json(), file) })
	return err == nil, err
}

// frameIssued handles a frame about a call that this function made.
func (f *function) frameIssued(h header, p []byte) error {
	f.mu.Lock()
	k, last := f.issued[h.id], f.lastCall
	f.mu.Unlock()
	switch h.kind {
	case kindResponse, kindData, kindError, kindWindow:
	default:
		return fmt.Errorf("%w: frame kind 0x%02x about a call", ErrProtocol, uint8(h.kind))
	}
	if h.id > last {
		return fmt.Errorf("%w: call %d, which was never made", ErrProtocol, h.id)
	}
	if k == nil { // the call was given up
		return nil
	}
	switch h.kind {
	case kindResponse:
		return k.frameResponse(p, h.more())
	case kindData:
		if err := k.in.expect(len(p)); err != nil {
			return err
		}
		if !h.more() {
			k.end()
		}
		return k.in.data(p, h.more())
	case kindError:
		failure := &Failure{}
		if err := unmarshal(p, failure); err != nil {
			return err
		}
		k.end()
		k.fail(failure)
	default:
		n, err := window(p)
		if err != nil {
			return err
		}
		return k.out.add(n)
	}
	return nil
}

func (k *issued) frameResponse(p []byte, more bool) error {
	meta, body, err := split(p)
	if err != nil {
		return err
	}
	var m responseMeta
	if err := m.parse(meta); err != nil {
		return err
	}
	_ = k.in.init(body, more, k, nil) // without Config.Memory it cannot fail
	r := &Reply{Status: m.status, Headers: m.headers, Length: -1, Body: issuedBody{k}}
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
	k.out.end(errOver)
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
		k.in.fail(err)
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
	k.out.end(err)
	k.fail(err)
	_ = k.f.w.send(k.f.ctx, kindCancel, 0, k.id, nil, nil) // fails only with the channel
}

// issuedBody is the body of a call's answer. A Close before the end gives the call up.
type issuedBody struct{ k *issued }

func (b issuedBody) Read(p []byte) (int, error) { return b.k.in.Read(p) }

func (b issuedBody) Close() error {
	b.k.cancel(errClosedBody)
	b.k.stop()
	b.k.in.abort(errClosedBody)
	return nil
}
