package channel

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fre-engine/fre/function/channel/wire"

	"golang.org/x/sys/unix"
)

// Event is one invocation, seen from the function. Body is valid until the handler returns; its
// unread part is discarded.
type Event struct {
	Invocation
	id  uint64
	fun *function
}

// Log sends a log line of the handler to the engine. level is "debug", "info", "warning" or
// "error".
func (e *Event) Log(level, message string) error {
	p, err := json.Marshal(struct {
		Level   string `json:"level"`
		Message string `json:"message"`
	}{level, message})
	if err != nil {
		return err
	}
	return e.fun.w.Send(context.Background(), wire.KindLog, 0, e.id, nil, p)
}

// Answer is the result of a [Handler]. Status 0 means 200. Status 101 is for events with
// Invocation.Upgrade: the event's Body then carries the client's stream, Body the function's. If
// Body is an io.Closer, Serve closes it.
type Answer struct {
	Status  int
	Headers [][2]string
	Body    io.Reader // may be nil

	// File, if not nil, holds Body's bytes too: Length bytes from Offset on, in a regular file
	// open for reading. If the engine takes files, Serve sends it File unread. The engine copies
	// the bytes unless File is a memfd sealed against every change (see [Seal]). The handler owns
	// File; Body.Close may close it.
	File           *os.File
	Offset, Length int64

	// Sealed means that File comes from [Seal] and that later answers will use it again: the
	// engine may keep it open, and later answers name it by number.
	Sealed bool
}

// Handler answers one event. ctx ends when the engine cancels the event, at the event's deadline
// and when the channel ends. An error, preferably a *[Failure], becomes the invocation's failure.
type Handler func(ctx context.Context, e *Event) (*Answer, error)

// Inherited returns the channel from the engine, the file descriptor named by FRE_CHANNEL.
func Inherited() (*net.UnixConn, error) {
	fd, err := strconv.ParseUint(os.Getenv("FRE_CHANNEL"), 10, 16)
	if err != nil {
		return nil, fmt.Errorf("FRE_CHANNEL: %w", err)
	}
	f := os.NewFile(uintptr(fd), "channel")
	defer func() { _ = f.Close() }() // FileConn returns a duplicate, close-on-exec
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

// Fail sends FAILED with the reason why the function could not be loaded. It replaces [Serve],
// owns conn and closes it.
func Fail(conn *net.UnixConn, failure *Failure) error {
	defer func() { _ = conn.Close() }()
	p := failure.Payload()
	_, err := conn.Write(append(wire.Header{Kind: wire.KindFailed, Len: len(p)}.Append(nil), p...))
	return err
}

// function is the function's end of a channel.
type function struct {
	conn    *net.UnixConn
	w       *wire.Writer
	handler Handler
	files   bool // the engine takes bodies in files

	mostBytes int64 // longest body that gets a memfd
	seal      func(*os.File) error
	sealed    sealedFiles

	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // handlers, and writers of partly sent frames

	calls   bool       // the engine takes calls
	issuing sync.Mutex // locked before mu; held while a call's first frame is sent

	work  chan *served // hands an event to an idle goroutine of run
	spare atomic.Int32 // idle goroutines of run

	buffers sync.Pool // of *[wire.Chunk]byte
	large   sync.Pool // of *[mostWhole]byte
	metas   sync.Pool // of *[]byte

	ending   context.Context // Serve's ctx: ends when the function wants no more events
	announce func()          // calls end, once

	mu       sync.Mutex
	events   map[uint64]*served
	stopping bool               // STOP was received or sent
	issued   map[uint64]*issued // calls under way
	lastCall uint64
}

// served is one invocation being handled.
type served struct {
	Event
	ctx  lazyContext
	in   wire.Inbox
	out  wire.Credit
	lent chan lent // buffered for one, if Socket
}

// Grant allows the engine to send n more bytes of the event's body.
func (s *served) Grant(n int) { s.fun.w.Grant(s.fun.ctx, s.id, n) }

// Taken does nothing: only answers come in pipes.
func (s *served) Taken() {}

// Serve runs a function written in Go on its channel. It sends READY with the given description
// and concurrency and runs handler for every event. Each event has a goroutine to itself, but a
// later event may reuse the goroutine: a handler that locks its thread must unlock it.
//
// Serve returns nil after STOP or after the engine has closed the channel, once the handlers have
// returned. When ctx ends, Serve tells the engine at once that the function takes no more events,
// answers the events that it has, and returns. Serve owns conn.
func Serve(ctx context.Context, conn *net.UnixConn, ready Ready, handler Handler) error {
	f := &function{conn: conn, handler: handler, files: os.Getenv("FRE_FILES") != "", calls: os.Getenv("FRE_CALLS") != "", mostBytes: mostFileBytes(), seal: seal, events: map[uint64]*served{}, issued: map[uint64]*issued{}, lastCall: FirstCall - 1}
	f.sealed.most = mostKeptFiles()
	f.buffers.New = func() any { return new([wire.Chunk]byte) }
	f.large.New = func() any { return new([mostWhole]byte) }
	f.metas.New = func() any { return new([]byte) }
	f.work = make(chan *served)
	f.ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	f.ending, f.announce = ctx, sync.OnceFunc(f.end)
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(f.ctx, func() { _ = conn.Close() })
	defer stop()
	w, err := wire.NewWriter(conn, f.ctx.Done(), &f.wg, f.cancel)
	if err != nil {
		return err
	}
	f.w = w
	ready.Protocol = 1
	p, err := json.Marshal(ready)
	if err != nil {
		return err
	}
	if err := w.Send(ctx, wire.KindReady, 0, 0, nil, p); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, f.announce)()
	err = f.read()
	if errors.Is(err, io.EOF) {
		err = ErrClosed
	}
	f.cancel(err) // gives up the events in flight; none are left after STOP
	close(f.work)
	f.wg.Wait()
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// end sends STOP: the engine gives later events to other instances.
func (f *function) end() {
	_ = f.w.Send(f.ctx, wire.KindStop, 0, 0, nil, nil) // fails only with the channel
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopping = true
	f.stopIfIdleLocked()
}

// stopIfIdleLocked makes read see the end of the channel once the function stops and no event is
// in flight. Events in flight still need frames for bodies and windows.
func (f *function) stopIfIdleLocked() {
	if f.stopping && len(f.events) == 0 {
		_ = f.conn.CloseRead()
	}
}

// read handles frames. It returns io.EOF at the end of the channel.
func (f *function) read() error {
	r, err := wire.NewReader(f.conn)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		h, p, err := r.Next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET): // the engine left frames unread
			return io.EOF
		case err != nil && f.ctx.Err() != nil:
			return context.Cause(f.ctx)
		case err != nil:
			return err
		}
		if h.Kind == wire.KindStop {
			f.mu.Lock()
			f.stopping = true
			f.stopIfIdleLocked()
			f.mu.Unlock()
			continue
		}
		var got lent
		if h.FDs > 0 {
			got = takeLent(r)
		}
		if err := f.frame(h, p, got); err != nil {
			return err
		}
	}
}

// frame handles one frame from the engine. It owns got.
func (f *function) frame(h wire.Header, p []byte, got lent) (err error) {
	defer func() { got.close() }()
	if h.ID >= FirstCall {
		return f.frameIssued(h, p)
	}
	if h.Kind == wire.KindInvoke {
		return f.invoke(h, p)
	}
	f.mu.Lock()
	s := f.events[h.ID]
	f.mu.Unlock()
	switch h.Kind {
	case wire.KindData, wire.KindCancel, wire.KindWindow, wire.KindSocket:
	default:
		return fmt.Errorf("%w: frame kind 0x%02x from the engine", ErrProtocol, uint8(h.Kind))
	}
	if s == nil {
		return nil // the frame crossed the end of the answer
	}
	switch h.Kind {
	case wire.KindData:
		if err := s.in.Expect(len(p)); err != nil {
			return err
		}
		return s.in.Data(p, h.More())
	case wire.KindCancel:
		s.ctx.cancel()
	case wire.KindWindow:
		return s.out.AddWindow(p)
	case wire.KindSocket:
		got, err = f.lend(s, got)
		return err
	}
	return nil
}

// lend passes got to the handler. It returns the part of got that is still the caller's.
func (f *function) lend(s *served, got lent) (lent, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.events[s.id] == nil {
		return got, nil
	}
	select {
	case s.lent <- got: // handle closes a socket that stays unused
		return lent{}, nil
	default:
		return got, fmt.Errorf("%w: SOCKET, which nobody asked for", ErrProtocol)
	}
}

func (f *function) invoke(h wire.Header, p []byte) error {
	meta, body, err := wire.Split(p)
	if err != nil {
		return err
	}
	s := &served{Event: Event{id: h.ID, fun: f}, ctx: lazyContext{parent: f.ctx}}
	if err := s.Parse(meta); err != nil {
		return err
	}
	if s.DeadlineMS > 0 {
		s.ctx.deadline = time.UnixMilli(s.DeadlineMS)
	}
	if s.Socket {
		s.lent = make(chan lent, 1)
	}
	s.out.Init()
	_ = s.in.Init(body, h.More(), s, nil) // without buffers it cannot fail
	s.Body, s.Length = &s.in, int64(len(body))
	if h.More() {
		s.Length = -1
	}
	f.mu.Lock()
	if f.events[h.ID] != nil {
		f.mu.Unlock()
		s.ctx.cancel()
		return fmt.Errorf("%w: INVOKE of %d twice", ErrProtocol, h.ID)
	}
	if f.ending.Err() != nil { // the event crossed STOP
		f.mu.Unlock()
		s.ctx.cancel()
		f.wg.Go(func() { f.sendError(h.ID, ErrUnserved) })
		return nil //nolint:nilerr // the engine is told; the channel goes on
	}
	f.events[h.ID] = s
	f.mu.Unlock()
	select {
	case f.work <- s:
	default:
		f.wg.Go(func() { f.run(s) })
	}
	return nil
}

// mostSpare limits the goroutines that wait for events. A reused goroutine has its stack already.
const mostSpare = 64

// run handles an event, and later events from work.
func (f *function) run(s *served) {
	for s != nil {
		f.handle(s)
		if f.spare.Add(1) <= mostSpare {
			s = <-f.work // nil once work is closed
		} else {
			s = nil
		}
		f.spare.Add(-1)
	}
}

func (f *function) handle(s *served) {
	defer s.ctx.cancel()
	if s.Length < 0 {
		defer s.watch()()
	}
	a, err := f.handler(&s.ctx, &s.Event)
	if err == nil {
		err = f.answer(s, a)
	}
	if err != nil {
		f.sendError(s.id, err)
	}
	s.in.Abort(wire.ErrOver) // a goroutine of the handler may still read
	f.mu.Lock()
	delete(f.events, s.id)
	f.stopIfIdleLocked()
	f.mu.Unlock()
	select {
	case got := <-s.lent: // arrived after the event was given up
		got.close()
	default:
	}
}

// watch ends waits for bodies in both directions when the event's context ends.
func (s *served) watch() (stop func() bool) {
	return context.AfterFunc(&s.ctx, func() {
		s.in.Abort(context.Cause(&s.ctx))
		s.out.End(context.Cause(&s.ctx))
	})
}

// answer sends RESPONSE and the body. After an error before the last frame ERROR may follow.
func (f *function) answer(s *served, a *Answer) error {
	if a == nil {
		a = &Answer{Status: 204}
	}
	if c, ok := a.Body.(io.Closer); ok {
		defer func() { _ = c.Close() }()
	}
	kept := f.metas.Get().(*[]byte)
	defer f.metas.Put(kept)
	meta := wire.AppendResponse((*kept)[:0], cmp.Or(a.Status, 200), a.Headers)
	if cap(meta) <= wire.Chunk {
		*kept = meta
	}
	if len(meta) > MaxMeta {
		return fmt.Errorf("answer: %d bytes of headers, at most %d", len(meta), MaxMeta)
	}
	if a.Body == nil {
		return f.w.Send(&s.ctx, wire.KindResponse, 0, s.id, meta, nil)
	}
	if f.files {
		if sent, err := f.answerFile(&s.ctx, s.id, meta, a); sent || err != nil {
			return err
		}
	}
	return f.answerBody(s, a, meta)
}

// answerBody sends RESPONSE and the body in frames, to the client's socket, or through a pipe.
func (f *function) answerBody(s *served, a *Answer, meta []byte) error {
	body := a.Body
	var buf []byte
	if n := wire.LenOf(body); wire.Chunk < n && n <= mostWhole {
		b := f.large.Get().(*[mostWhole]byte)
		defer f.large.Put(b)
		buf = b[:]
	} else {
		b := f.buffers.Get().(*[wire.Chunk]byte)
		defer f.buffers.Put(b)
		buf = b[:]
	}
	var n int
	var rerr error
	if a.Status != 101 { // the client sends no byte before it has the 101
		n, rerr = wire.ReadFirst(body, buf)
		switch {
		case rerr == io.EOF: //nolint:errorlint // a Reader's end is io.EOF itself; an error that wraps it is a failure
			return f.w.Send(&s.ctx, wire.KindResponse, 0, s.id, meta, buf[:n])
		case n == 0:
			return rerr
		}
	}
	var sent bool
	var err error
	if n == len(buf) && rerr == nil {
		sent, err = f.answerMuch(s, meta, body, buf)
	} else {
		err = cmp.Or(f.w.Send(&s.ctx, wire.KindResponse, wire.FlagMore, s.id, meta, buf[:n]), rerr)
	}
	if sent || err != nil {
		return err
	}
	return f.answerFrames(s, body, buf)
}

// answerMuch sends RESPONSE and buf, which is full. sent is true if the rest of body went to the
// client's socket or through a pipe; else the rest is unread.
func (f *function) answerMuch(s *served, meta []byte, body io.Reader, buf []byte) (sent bool, err error) {
	if s.Socket {
		sent, err = f.answerSocket(s, meta, body, buf)
	} else {
		err = f.w.Send(&s.ctx, wire.KindResponse, wire.FlagMore, s.id, meta, buf)
	}
	if sent || err != nil || !f.files {
		return sent, err
	}
	return f.answerPipe(s, body, buf)
}

// answerFrames sends the rest of body as DATA, through buf.
func (f *function) answerFrames(s *served, body io.Reader, buf []byte) error {
	if s.Length >= 0 {
		defer s.watch()()
	}
	for {
		most, err := s.out.Take(len(buf))
		if err != nil {
			return err
		}
		n, rerr := body.Read(buf[:most])
		_ = s.out.Add(most - n) // cannot exceed the limit: Take has just returned these bytes
		more := uint8(wire.FlagMore)
		if rerr == io.EOF {
			more = 0
		}
		if n > 0 || more == 0 {
			if err := f.w.Send(&s.ctx, wire.KindData, more, s.id, nil, buf[:n]); err != nil || more == 0 {
				return err
			}
		}
		if rerr != nil {
			return rerr
		}
	}
}

// answerFile sends the answer with its body in a file: a.File, or a memfd for a long body. sent
// is false if no file can be used; then Body is unread.
func (f *function) answerFile(ctx context.Context, id uint64, meta []byte, a *Answer) (sent bool, err error) {
	file, m := a.File, wire.FileMeta{Offset: a.Offset, Length: a.Length}
	if file == nil {
		l, ok := a.Body.(io.WriterTo)
		n := wire.LenOf(a.Body)
		if !ok || n <= mostWhole || int64(n) > f.mostBytes {
			return false, nil
		}
		m = wire.FileMeta{Length: int64(n)}
		if file, err = newMemfd(); err != nil { // no memory, or too many files
			return false, nil // the body goes in frames
		}
		defer func() { _ = file.Close() }()
		if n, err := l.WriteTo(file); err != nil || n != m.Length {
			return false, cmp.Or(err, io.ErrShortWrite)
		}
		// The body is read by now. The engine copies a file that could not be sealed.
		if err := f.seal(file); err != nil && !errors.Is(err, unix.EBUSY) {
			return false, err
		}
	}
	if a.File != nil && a.Sealed && f.sealed.most > 0 && a.Length <= f.mostBytes {
		err = f.sealed.send(ctx, f.w, id, meta, m, file)
	} else {
		err = f.w.SendFile(ctx, wire.KindFD, id, meta, m.JSON(), file)
	}
	if a.File != nil && errors.Is(err, unix.ETOOMANYREFS) {
		return false, nil
	}
	return err == nil, err
}

func (f *function) sendError(id uint64, err error) {
	if f.ending.Err() != nil {
		f.announce() // STOP must reach the engine before the failure
	}
	failure := &Failure{}
	switch {
	case errors.Is(err, ErrUnserved):
		failure = &Failure{Type: "Unserved", Message: err.Error(), Unserved: true}
	case !errors.As(err, &failure):
		failure = &Failure{Type: fmt.Sprintf("%T", err), Message: err.Error()}
	}
	_ = f.w.Send(f.ctx, wire.KindError, 0, id, nil, failure.Payload()) // fails only with the channel
}
