package channel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Event is one invocation as the function's end sees it. Body is valid until
// the handler returns; what it leaves unread is discarded.
type Event struct {
	Invocation
	Body io.Reader

	id  uint64
	fun *function
}

// Log sends a line of the handler's to the engine. level is one of "debug",
// "info", "warning", "error".
func (e *Event) Log(level, message string) error {
	p, err := json.Marshal(struct {
		Level   string `json:"level"`
		Message string `json:"message"`
	}{level, message})
	if err != nil {
		return err
	}
	return e.fun.w.send(context.Background(), kindLog, 0, e.id, nil, p)
}

// Answer is what a [Handler] returns. Status 0 means 200. A Body that is an
// io.Closer is closed.
type Answer struct {
	Status  int
	Headers [][2]string
	Body    io.Reader // may be nil
}

// Handler answers one event. ctx ends when the engine cancels it, at the
// event's deadline and when the channel ends. An error, a *[Failure] for
// choice, becomes the invocation's failure.
type Handler func(ctx context.Context, e *Event) (*Answer, error)

// Inherited returns the channel that the engine gave this process, the file
// descriptor named by FRE_CHANNEL.
func Inherited() (*net.UnixConn, error) {
	fd, err := strconv.ParseUint(os.Getenv("FRE_CHANNEL"), 10, 16)
	if err != nil {
		return nil, fmt.Errorf("FRE_CHANNEL: %w", err)
	}
	f := os.NewFile(uintptr(fd), "channel")
	defer func() { _ = f.Close() }() // FileConn duplicates it, close-on-exec
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("FRE_CHANNEL: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("FRE_CHANNEL is no Unix socket"), c.Close())
	}
	return u, nil
}

// function is the function's end of a channel.
type function struct {
	conn    *net.UnixConn
	w       *frameWriter
	handler Handler
	ctx     context.Context
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup // handlers, rests of frames

	buffers sync.Pool // of *[chunk]byte

	mu       sync.Mutex
	events   map[uint64]*served
	stopping bool // STOP has come
}

// served is one invocation being handled.
type served struct {
	cancel context.CancelCauseFunc
	in     inbox
	out    credit
}

// Serve speaks for a function written in Go: it says READY with the given
// description and concurrency, runs handler for every event in a goroutine of
// its own, and returns nil after STOP or the engine's end of the channel, once
// the handlers have returned. It takes ownership of conn.
func Serve(ctx context.Context, conn *net.UnixConn, ready Ready, handler Handler) error {
	f := &function{conn: conn, handler: handler, events: map[uint64]*served{}}
	f.buffers.New = func() any { return new([chunk]byte) }
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(f.ctx, func() { _ = conn.Close() })
	defer stop()
	w, err := newFrameWriter(conn, f.ctx.Done(), &f.wg, f.cancel)
	if err != nil {
		return err
	}
	f.w = w
	ready.Protocol = 1
	p, err := json.Marshal(ready)
	if err != nil {
		return err
	}
	if err := w.send(ctx, kindReady, 0, 0, nil, p); err != nil {
		return err
	}
	err = f.read()
	if errors.Is(err, io.EOF) {
		err = ErrClosed
	}
	f.cancel(err) // nobody wants what is in flight; after STOP nothing is
	f.wg.Wait()
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// stopIfIdleLocked makes read see the end of the channel. Until then it goes on:
// what is in flight still gets bodies and windows.
func (f *function) stopIfIdleLocked() {
	if f.stopping && len(f.events) == 0 {
		_ = f.conn.CloseRead()
	}
}

// read returns io.EOF at the end of the channel.
func (f *function) read() error {
	r := newFrameReader(f.conn)
	for {
		h, p, err := r.next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET): // the engine left frames unread
			return io.EOF
		case err != nil && f.ctx.Err() != nil:
			return context.Cause(f.ctx)
		case err != nil:
			return err
		}
		if h.kind == kindStop {
			f.mu.Lock()
			f.stopping = true
			f.stopIfIdleLocked()
			f.mu.Unlock()
			continue
		}
		if err := f.frame(h, p); err != nil {
			return err
		}
	}
}

func (f *function) frame(h header, p []byte) error {
	if h.kind == kindInvoke {
		return f.invoke(h, p)
	}
	f.mu.Lock()
	s := f.events[h.id]
	f.mu.Unlock()
	switch h.kind {
	case kindData, kindCancel, kindWindow:
	default:
		return fmt.Errorf("%w: frame kind 0x%02x from the engine", ErrProtocol, uint8(h.kind))
	}
	if s == nil {
		return nil // crossed the end of the answer
	}
	switch h.kind {
	case kindData:
		return s.in.data(p, h.more())
	case kindCancel:
		s.cancel(context.Canceled)
	case kindWindow:
		n, err := window(p)
		if err != nil {
			return err
		}
		return s.out.add(n)
	}
	return nil
}

func (f *function) invoke(h header, p []byte) error {
	meta, body, err := split(p)
	if err != nil {
		return err
	}
	e := &Event{id: h.id, fun: f}
	if err := unmarshal(meta, &e.Invocation); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(f.ctx)
	s := &served{cancel: cancel}
	s.out.init()
	s.in.init(body, h.more(), func(n int) { f.w.grant(f.ctx, h.id, n) })
	e.Body = &s.in
	f.mu.Lock()
	if f.events[h.id] != nil {
		f.mu.Unlock()
		cancel(nil)
		return fmt.Errorf("%w: INVOKE of %d twice", ErrProtocol, h.id)
	}
	f.events[h.id] = s
	f.mu.Unlock()
	f.wg.Go(func() { f.handle(ctx, h.id, s, e) })
	return nil
}

func (f *function) handle(ctx context.Context, id uint64, s *served, e *Event) {
	defer s.cancel(nil)
	if e.DeadlineMS > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, time.UnixMilli(e.DeadlineMS))
		defer stop()
	}
	defer context.AfterFunc(ctx, func() {
		s.in.abort(context.Cause(ctx))
		s.out.end(context.Cause(ctx))
	})()
	a, err := f.handler(ctx, e)
	if err == nil {
		err = f.answer(ctx, id, s, a)
	}
	if err != nil {
		f.sendError(id, err)
	}
	f.mu.Lock()
	delete(f.events, id)
	f.stopIfIdleLocked()
	f.mu.Unlock()
}

// answer sends RESPONSE and the body. Errors before the last frame leave room
// for ERROR.
func (f *function) answer(ctx context.Context, id uint64, s *served, a *Answer) error {
	if a == nil {
		a = &Answer{Status: 204}
	}
	if c, ok := a.Body.(io.Closer); ok {
		defer func() { _ = c.Close() }()
	}
	m := struct {
		Status  int         `json:"status"`
		Headers [][2]string `json:"headers"`
	}{a.Status, a.Headers}
	if m.Status == 0 {
		m.Status = 200
	}
	if m.Headers == nil {
		m.Headers = [][2]string{}
	}
	meta, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(meta) > MaxMeta {
		return fmt.Errorf("answer: %d bytes of headers, at most %d", len(meta), MaxMeta)
	}
	body := a.Body
	if body == nil {
		return f.w.send(ctx, kindResponse, 0, id, meta, nil)
	}
	b := f.buffers.Get().(*[chunk]byte)
	defer f.buffers.Put(b)
	buf := b[:]
	n, err := io.ReadFull(body, buf)
	switch err { //nolint:errorlint // a Reader's end is io.EOF itself; an error that wraps it is a failure
	case io.EOF, io.ErrUnexpectedEOF:
		return f.w.send(ctx, kindResponse, 0, id, meta, buf[:n])
	case nil:
	default:
		return err
	}
	if err := f.w.send(ctx, kindResponse, flagMore, id, meta, buf); err != nil {
		return err
	}
	for {
		most, err := s.out.take(len(buf))
		if err != nil {
			return err
		}
		n, rerr := body.Read(buf[:most])
		_ = s.out.add(most - n) // what was taken before fits
		more := uint8(flagMore)
		switch {
		case rerr == io.EOF:
			more = 0
		case rerr != nil:
			return rerr
		case n == 0:
			continue
		}
		if err := f.w.send(ctx, kindData, more, id, nil, buf[:n]); err != nil || more == 0 {
			return err
		}
	}
}

func (f *function) sendError(id uint64, err error) {
	failure := &Failure{}
	if !errors.As(err, &failure) {
		failure = &Failure{Type: fmt.Sprintf("%T", err), Message: err.Error()}
	}
	p, merr := json.Marshal(failure)
	if merr != nil || len(p) > MaxMeta {
		p, _ = json.Marshal(Failure{Type: failure.Type, Message: "error too long to tell"})
	}
	_ = f.w.send(f.ctx, kindError, 0, id, nil, p) // fails with the channel alone
}
