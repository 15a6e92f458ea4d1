package channel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Event is one invocation as the function's end sees it. Body is valid until
// the handler returns; what it leaves unread is discarded.
type Event struct {
	Invocation
	Body   io.Reader
	Length int64 // of Body in bytes, -1 while it is still coming

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

// Answer is what a [Handler] returns. Status 0 means 200; 101 is for events that ask
// for it (Invocation.Upgrade), whose Body comes from then on, both ways. A Body that is an
// io.Closer is closed.
type Answer struct {
	Status  int
	Headers [][2]string
	Body    io.Reader // may be nil

	// File, if not nil, has Body's bytes too: Length from Offset on, of a regular
	// file open for reading. An engine that takes files is given it, unread, and
	// copies it unless it is a memfd sealed against every change (see [Seal]). It
	// stays the handler's: Body may close it.
	File           *os.File
	Offset, Length int64

	// Sealed says that File is of [Seal] and will be given again: the engine may keep
	// it open, and is then told which it is.
	Sealed bool
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

// Fail says FAILED, that the function could not be loaded and why, instead of
// [Serve]. It takes ownership of conn and closes it.
func Fail(conn *net.UnixConn, failure *Failure) error {
	defer func() { _ = conn.Close() }()
	p := failure.payload()
	_, err := conn.Write(append(header{kind: kindFailed, len: len(p)}.append(nil), p...))
	return err
}

// payload is the failure as ERROR and FAILED carry it.
func (f *Failure) payload() []byte {
	p, err := json.Marshal(f)
	if err != nil || len(p) > MaxMeta {
		p, _ = json.Marshal(Failure{Type: "error", Message: f.Type[:min(len(f.Type), 1000)] + ": too long to tell"})
	}
	return p
}

// function is the function's end of a channel.
type function struct {
	conn    *net.UnixConn
	w       *frameWriter
	handler Handler
	files   bool // the engine takes bodies in files

	mostBytes int64 // a body of more is not put into a file of its own
	seal      func(*os.File) error
	sealed    sealedFiles

	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // handlers, rests of frames

	calls   bool       // the engine takes calls
	issuing sync.Mutex // before mu: held while a call's first frame is sent

	work  chan *served // to a goroutine that has handled an event and waits for another
	spare atomic.Int32 // goroutines that wait

	buffers sync.Pool // of *[chunk]byte
	large   sync.Pool // of *[mostWhole]byte
	metas   sync.Pool // of *[]byte

	ending   context.Context // Serve's: ends when no more events are wanted
	announce func()          // tells the engine so, once

	mu       sync.Mutex
	events   map[uint64]*served
	stopping bool               // STOP has come, or was sent
	issued   map[uint64]*issued // calls under way
	lastCall uint64
}

// served is one invocation being handled.
type served struct {
	Event
	ctx  lazyContext
	in   inbox
	out  credit
	lent chan lent // for 1, if Socket
}

// grant lets the engine send more of the event's body.
func (s *served) grant(n int) { s.fun.w.grant(s.fun.ctx, s.id, n) }

// taken is for bodies in pipes, which requests' are not.
func (s *served) taken() {}

// Serve speaks for a function written in Go: it says READY with the given
// description and concurrency, runs handler for every event in a goroutine that has
// no other meanwhile, but may have one later (who locks it to a thread has to unlock
// it), and returns nil after STOP or the engine's end of the channel, once the
// handlers have returned. When ctx ends, the engine is told at once that the function takes no
// more events; those that it has are answered, and Serve returns. It takes ownership of conn.
func Serve(ctx context.Context, conn *net.UnixConn, ready Ready, handler Handler) error {
	f := &function{conn: conn, handler: handler, files: os.Getenv("FRE_FILES") != "", calls: os.Getenv("FRE_CALLS") != "", mostBytes: mostFileBytes(), seal: seal, events: map[uint64]*served{}, issued: map[uint64]*issued{}, lastCall: FirstCall - 1}
	f.sealed.most = mostKeptFiles()
	f.buffers.New = func() any { return new([chunk]byte) }
	f.large.New = func() any { return new([mostWhole]byte) }
	f.metas.New = func() any { return new([]byte) }
	f.work = make(chan *served)
	f.ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	f.ending, f.announce = ctx, sync.OnceFunc(f.end)
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
	defer context.AfterFunc(ctx, f.announce)()
	err = f.read()
	if errors.Is(err, io.EOF) {
		err = ErrClosed
	}
	f.cancel(err) // nobody wants what is in flight; after STOP nothing is
	close(f.work)
	f.wg.Wait()
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// end says STOP: the engine hands the next events to others.
func (f *function) end() {
	_ = f.w.send(f.ctx, kindStop, 0, 0, nil, nil) // fails with the channel alone
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopping = true
	f.stopIfIdleLocked()
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
	rights, err := newRightsReader(f.conn)
	if err != nil {
		return err
	}
	r := newFrameReader(rights)
	defer r.close()
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
		var got lent
		if h.fds > 0 {
			if got, err = r.lent(); err != nil {
				return err
			}
		}
		if err := f.frame(h, p, got); err != nil {
			return err
		}
	}
}

// frame acts on one frame from the engine. It owns what came along with it.
func (f *function) frame(h header, p []byte, got lent) (err error) {
	defer func() { got.close() }()
	if h.id >= FirstCall {
		return f.frameIssued(h, p)
	}
	if h.kind == kindInvoke {
		return f.invoke(h, p)
	}
	f.mu.Lock()
	s := f.events[h.id]
	f.mu.Unlock()
	switch h.kind {
	case kindData, kindCancel, kindWindow, kindSocket:
	default:
		return fmt.Errorf("%w: frame kind 0x%02x from the engine", ErrProtocol, uint8(h.kind))
	}
	if s == nil {
		return nil // crossed the end of the answer
	}
	switch h.kind {
	case kindData:
		if err := s.in.expect(len(p)); err != nil {
			return err
		}
		return s.in.data(p, h.more())
	case kindCancel:
		s.ctx.cancel()
	case kindWindow:
		n, err := window(p)
		if err != nil {
			return err
		}
		return s.out.add(n)
	case kindSocket:
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.events[h.id] == nil {
			return nil
		}
		select {
		case s.lent <- got: // handle closes what nobody takes
			got = lent{}
		default:
			return fmt.Errorf("%w: SOCKET, which nobody asked for", ErrProtocol)
		}
	}
	return nil
}

func (f *function) invoke(h header, p []byte) error {
	meta, body, err := split(p)
	if err != nil {
		return err
	}
	s := &served{Event: Event{Length: int64(len(body)), id: h.id, fun: f}, ctx: lazyContext{parent: f.ctx}}
	if h.more() {
		s.Length = -1
	}
	if err := s.parse(meta); err != nil {
		return err
	}
	if s.DeadlineMS > 0 {
		s.ctx.deadline = time.UnixMilli(s.DeadlineMS)
	}
	if s.Socket {
		s.lent = make(chan lent, 1)
	}
	s.out.init()
	_ = s.in.init(body, h.more(), s, nil) // of the heap there is enough
	s.Body = &s.in
	f.mu.Lock()
	if f.events[h.id] != nil {
		f.mu.Unlock()
		s.ctx.cancel()
		return fmt.Errorf("%w: INVOKE of %d twice", ErrProtocol, h.id)
	}
	if f.ending.Err() != nil { // it has crossed STOP
		f.mu.Unlock()
		s.ctx.cancel()
		f.wg.Go(func() { f.sendError(h.id, ErrUnserved) })
		return nil //nolint:nilerr // the engine is told; the channel goes on
	}
	f.events[h.id] = s
	f.mu.Unlock()
	select {
	case f.work <- s:
	default:
		f.wg.Go(func() { f.run(s) })
	}
	return nil
}

// mostSpare is how many goroutines wait for events: one that was there before has its
// stack already.
const mostSpare = 64

// run handles an event, and those that come later.
func (f *function) run(s *served) {
	for s != nil {
		f.handle(s)
		if f.spare.Add(1) <= mostSpare {
			s = <-f.work // nil once no more will come
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
	s.in.abort(errOver) // a goroutine of the handler's may still read
	f.mu.Lock()
	delete(f.events, s.id)
	f.stopIfIdleLocked()
	f.mu.Unlock()
	select {
	case got := <-s.lent: // came after the event was given up
		got.close()
	default:
	}
}

// watch ends waiting for bodies, either way, with the event.
func (s *served) watch() (stop func() bool) {
	return context.AfterFunc(&s.ctx, func() {
		s.in.abort(context.Cause(&s.ctx))
		s.out.end(context.Cause(&s.ctx))
	})
}

// answer sends RESPONSE and the body. Errors before the last frame leave room
// for ERROR.
func (f *function) answer(s *served, a *Answer) error {
	if a == nil {
		a = &Answer{Status: 204}
	}
	if c, ok := a.Body.(io.Closer); ok {
		defer func() { _ = c.Close() }()
	}
	status := a.Status
	if status == 0 {
		status = 200
	}
	kept := f.metas.Get().(*[]byte)
	defer f.metas.Put(kept)
	meta := appendResponse((*kept)[:0], status, a.Headers)
	if cap(meta) <= chunk {
		*kept = meta
	}
	if len(meta) > MaxMeta {
		return fmt.Errorf("answer: %d bytes of headers, at most %d", len(meta), MaxMeta)
	}
	body := a.Body
	if body == nil {
		return f.w.send(&s.ctx, kindResponse, 0, s.id, meta, nil)
	}
	if f.files {
		if sent, err := f.answerFile(&s.ctx, s.id, meta, a); sent || err != nil {
			return err
		}
	}
	var buf []byte
	if n := lenOf(body); chunk < n && n <= mostWhole {
		b := f.large.Get().(*[mostWhole]byte)
		defer f.large.Put(b)
		buf = b[:]
	} else {
		b := f.buffers.Get().(*[chunk]byte)
		defer f.buffers.Put(b)
		buf = b[:]
	}
	var n int
	var rerr error
	if a.Status != 101 { // which the other side waits for before it says anything
		n, rerr = readFirst(body, buf)
	}
	switch {
	case a.Status == 101:
	case rerr == io.EOF: //nolint:errorlint // a Reader's end is io.EOF itself; an error that wraps it is a failure
		return f.w.send(&s.ctx, kindResponse, 0, s.id, meta, buf[:n])
	case n == 0:
		return rerr
	}
	much := n == len(buf) && rerr == nil
	if much && s.Socket {
		if sent, err := f.answerSocket(s, meta, body, buf); sent || err != nil {
			return err
		}
	} else {
		err := f.w.send(&s.ctx, kindResponse, flagMore, s.id, meta, buf[:n])
		if err = cmp.Or(err, rerr); err != nil {
			return err
		}
	}
	if much && f.files {
		if sent, err := f.answerPipe(s, body, buf); sent || err != nil {
			return err
		}
	}
	if s.Length >= 0 {
		defer s.watch()()
	}
	for {
		most, err := s.out.take(len(buf))
		if err != nil {
			return err
		}
		n, rerr := body.Read(buf[:most])
		_ = s.out.add(most - n) // what was taken before fits
		more := uint8(flagMore)
		if rerr == io.EOF {
			more = 0
		}
		if n > 0 || more == 0 {
			if err := f.w.send(&s.ctx, kindData, more, s.id, nil, buf[:n]); err != nil || more == 0 {
				return err
			}
		}
		if rerr != nil {
			return rerr
		}
	}
}

// answerFile sends the answer with its body in a file, where it has one or is long
// enough to be put into one; sent is false where that is not to be had, and nothing
// was read of Body then.
func (f *function) answerFile(ctx context.Context, id uint64, meta []byte, a *Answer) (sent bool, err error) {
	file, m := a.File, fileMeta{Offset: a.Offset, Length: a.Length}
	if file == nil {
		l, ok := a.Body.(io.WriterTo)
		n := lenOf(a.Body)
		if !ok || n <= mostWhole || int64(n) > f.mostBytes {
			return false, nil
		}
		m = fileMeta{Length: int64(n)}
		if file, err = newMemfd(); err != nil { // no memory, too many files
			return false, nil // the body goes as it is
		}
		defer func() { _ = file.Close() }()
		if n, err := l.WriteTo(file); err != nil || n != m.Length {
			return false, cmp.Or(err, io.ErrShortWrite)
		}
		// The body is in there now. One that is not sealed the engine copies.
		if err := f.seal(file); err != nil && !errors.Is(err, unix.EBUSY) {
			return false, err
		}
	}
	if a.File != nil && a.Sealed && f.sealed.most > 0 && a.Length <= f.mostBytes {
		err = f.sealed.send(ctx, f.w, id, meta, m, file)
	} else {
		err = f.w.sendFile(ctx, kindFD, id, meta, m.json(), file)
	}
	if a.File != nil && errors.Is(err, unix.ETOOMANYREFS) {
		return false, nil
	}
	return err == nil, err
}

// lenOf is how many bytes a body has that is known to know that, else -1: what others
// call Len may be what they have so far.
func lenOf(body io.Reader) int {
	switch b := body.(type) {
	case *bytes.Reader:
		return b.Len()
	case *bytes.Buffer:
		return b.Len()
	case *strings.Reader:
		return b.Len()
	}
	return -1
}

// readFirst reads how a body begins: all of one that is known to be
// short, else what its first Read has, so that a stream's answer
// begins with its first piece. At the body's end err is io.EOF.
func readFirst(r io.Reader, buf []byte) (n int, err error) {
	if l := lenOf(r); 0 <= l && l <= len(buf) {
		n, err = io.ReadFull(r, buf[:l])
		return n, cmp.Or(err, io.EOF)
	}
	for n == 0 && err == nil {
		n, err = r.Read(buf)
	}
	return n, err
}

func (f *function) sendError(id uint64, err error) {
	if f.ending.Err() != nil {
		f.announce() // before anybody can know of the failure
	}
	failure := &Failure{}
	switch {
	case errors.Is(err, ErrUnserved):
		failure = &Failure{Type: "Unserved", Message: err.Error(), Unserved: true}
	case !errors.As(err, &failure):
		failure = &Failure{Type: fmt.Sprintf("%T", err), Message: err.Error()}
	}
	_ = f.w.send(f.ctx, kindError, 0, id, nil, failure.payload()) // fails with the channel alone
}
