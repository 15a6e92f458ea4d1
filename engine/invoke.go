package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
)

// Request is one event. Body is read by Invoke and, while the answer is
// streamed, until Response.Body is closed. A Body that is an io.Closer is closed
// when the event is over, also by time-out; a Read under way must then return.
// Close may come more than once, from several goroutines.
type Request struct {
	Method, Path, Query string
	Header              [][2]string
	Body                io.Reader // nil for none
	Size                int64     // bytes of Body, -1 if unknown

	// Upgrade, unless "", is the protocols that the client asks to change to. Where the
	// function knows one, it answers 101: Body, of which nothing was read before, and
	// Response.Body are then the two directions of a tunnel, to which the function's time
	// limit does not apply. It ends with either, or with the function.
	Upgrade string

	// Lends says that the caller can lend the client's connection (Response.Lend) to
	// functions that are trusted with it.
	Lends bool
}

// ErrSocketWanted is why a Response's Body does not go on before Response.Lend.
var ErrSocketWanted = channel.ErrSocketWanted

// Response is a function's answer. The caller must close Body: that ends the
// event and frees its instance. A Body that ends with an error was broken off
// by the function's failure.
type Response struct {
	ID       string // of the invocation, also in the logs
	Instance string // of the sandbox
	Status   int
	Header   [][2]string
	Size     int64 // bytes of Body, -1 while it is still coming
	Body     io.ReadCloser
	// File, if not nil, has the body too: Size bytes from Offset on, which nobody
	// changes any more; it is closed with Body. Whoever sends it leaves Body unread.
	File   *os.File
	Offset int64

	// Lend is nil unless the function may be lent the client's connection. Once Body's
	// Read has returned ErrSocketWanted, Lend gives the function the socket and waits until
	// it has written the rest of the body there, n bytes in chunks (RFC 9112 section 7.1);
	// Body is at its end then. Where conn is nil the function gets none, and Body goes on.
	Lend func(conn syscall.RawConn) (n int64, err error)

	Cold  bool          // a sandbox was started, or given its function, for this event
	Start time.Duration // from the request to a ready instance

	StartKind sandbox.StartKind // how the instance came about
}

// The kinds of a start beside those of package sandbox.
const (
	StartWarm    sandbox.StartKind = "warm"    // not at all: it was there
	StartRuntime sandbox.StartKind = "runtime" // from a runtime shell: its interpreter was running
)

// FunctionError is an exception in user code or a non-zero exit. Stack is for
// the function's owner, not for its callers.
type FunctionError struct{ Type, Message, Stack string }

func (e *FunctionError) Error() string {
	if e.Type == "" {
		return e.Message
	}
	return e.Type + ": " + e.Message
}

// CrashError says that the instance died or broke the protocol.
type CrashError struct {
	Status sandbox.ExitStatus
	Reason string
}

func (e *CrashError) Error() string { return "function " + e.Reason }

func crashReason(s sandbox.ExitStatus, before string) string {
	switch {
	case s.OOMKilled:
		return "ran out of memory before " + before
	case s.Signal != 0:
		return fmt.Sprintf("was killed by %s before %s", unix.SignalName(unix.Signal(s.Signal)), before)
	default:
		return fmt.Sprintf("exited with status %d before %s", s.Code, before)
	}
}

// Invoke hands an event to the function and returns its answer. Errors:
// *UnknownError, ErrTimeout, ErrOverloaded, ErrDegraded, ErrClosed, ErrEventTooLarge,
// *FunctionError, *CrashError, *sandbox.StartError, what the body's Read
// returned, and the cause of ctx when it ends first.
func (e *Engine) Invoke(ctx context.Context, name string, r *Request) (*Response, error) {
	if err := e.begin(); err != nil {
		return nil, err
	}
	for {
		f, err := e.lookup(name)
		if err != nil {
			e.flight.Done()
			return nil, err
		}
		resp, err := f.invoke(ctx, r)
		if errors.Is(err, errRetired) {
			if next, err := e.lookup(name); err != nil || next != f {
				continue // redeployed while it waited: nothing was read or sent yet
			}
		}
		if err != nil {
			var crash *CrashError
			if errors.Is(err, errRetired) || errors.As(err, &crash) && e.boxes.isClosed() {
				err = ErrClosed // Close gave up waiting
			}
			e.flight.Done()
			f.failures.Add(1)
			return nil, err
		}
		return resp, nil
	}
}

// event is one invocation under way: its deadline, and what ends with it.
type event struct {
	f      *function
	id     uint64
	name   string
	ctx    context.Context
	cancel context.CancelCauseFunc // ends ctx and the reading of the body
	once   sync.Once
	lift   func()      // takes the time limit away; nil but for requests that ask for a tunnel
	tunnel atomic.Bool // it is one

	placed atomic.Bool // it has one of the engine's places
}

// enter takes one of the engine's places, which leave gives back.
func (ev *event) enter() error {
	waited, err := ev.f.e.places.enter(ev.ctx, ev.f)
	if waited > 0 {
		ev.f.e.metrics.waitedForPlace.Observe(waited.Seconds())
	}
	if errors.Is(err, ErrEngineOverloaded) {
		ev.f.e.metrics.refuse(reasonEngine)
	}
	ev.placed.Store(err == nil)
	return err
}

// leave gives the event's place back, if it has one still; kept as of places.leave.
func (ev *event) leave(kept time.Duration) {
	if ev.placed.Swap(false) {
		ev.f.e.places.leave(ev.f, kept)
	}
}

// kept is how long the event has kept what it got then, 0 where that says nothing of
// other events.
func (ev *event) kept(since time.Time) time.Duration {
	if ev.tunnel.Load() {
		return 0
	}
	return time.Since(since)
}

func (f *function) invoke(ctx context.Context, r *Request) (*Response, error) {
	began := time.Now()
	if r.Upgrade != "" && f.config.Protocol == image.ProtocolStdio { // it knows no other protocol
		plain := *r
		plain.Upgrade, plain.Body, plain.Size = "", nil, 0
		r = &plain
	}
	if err := f.admit(r); err != nil {
		f.invocations.Add(1)
		f.observe(began, err)
		return nil, err
	}
	ctx, release, lift := limit(ctx, began.Add(f.config.Resources.Timeout), r.Upgrade != "")
	ctx, fail := context.WithCancelCause(ctx)
	cancel := func(cause error) { fail(cause); release() }
	keepBody := func() bool { return true }
	if body, ok := r.Body.(io.Closer); ok {
		// A client that sends slowly must not keep an instance for longer.
		closeBody := func() { _ = body.Close() } // there to end a Read: no news in its error
		keepBody = context.AfterFunc(ctx, closeBody)
		cancel = func(cause error) {
			keepBody()
			fail(cause)
			release()
			closeBody()
		}
	}
	id := f.e.nextID.Add(1)
	ev := &event{f: f, id: id, name: invocationName(id), ctx: ctx, cancel: cancel, lift: lift}
	var resp *Response
	var err error
	if f.config.Protocol == image.ProtocolStdio {
		resp, err = ev.stdio(r, began)
	} else {
		resp, err = ev.channel(r, began)
	}
	if errors.Is(err, errRetired) {
		keepBody() // another deployment will read it
		fail(err)
		release()
		return nil, err
	}
	f.invocations.Add(1)
	if err != nil {
		cancel(err)
		f.observe(began, err)
		return nil, err
	}
	resp.ID = ev.name
	return resp, nil
}

// finish runs once per event that was answered.
func (ev *event) finish(began time.Time, err error, end func()) {
	ev.once.Do(func() {
		ev.f.tunnels.remove(ev)
		ev.cancel(err)
		end()
		if err != nil {
			ev.f.failures.Add(1)
		}
		ev.f.observe(began, err)
		ev.f.e.flight.Done()
	})
}

// cancelGrace is how long an instance may take to give up a cancelled event
// before it is killed.
const cancelGrace = time.Second

// channel runs the event on a leased instance, or on a fresh one.
func (ev *event) channel(r *Request, began time.Time) (*Response, error) {
	f := ev.f
	var l *lease
	inv := ev.invocation(r)
	var end func(error)
	if f.fresh() {
		in, err := f.eventSlot(ev.ctx)
		if err != nil {
			return nil, err
		}
		if err := ev.enter(); err != nil {
			f.endEvent(in, 0)
			return nil, err
		}
		since := time.Now()
		if err := in.boot(ev.ctx); err != nil {
			ev.leave(0)
			f.endEvent(in, 0)
			return nil, err
		}
		l = &lease{in: in, kind: in.kind, start: time.Since(began)}
		f.started(l.kind, l.start)
		end = func(error) {
			in.box.kill()
			_ = in.conn.Close() // waits for the body's reader: the event's cancel came before
			<-in.box.sb.Done()
			kept := ev.kept(since)
			ev.leave(kept)
			f.endEvent(in, kept)
		}
	} else {
		var err error
		if l, err = f.lease(ev.ctx); err != nil {
			return nil, err
		}
		since := time.Now()
		if err := ev.enter(); err != nil {
			l.in.release(0)
			return nil, err
		}
		finished := make(chan struct{})
		inv.Finished = func() {
			close(finished)
			kept := ev.kept(since)
			ev.leave(kept)
			l.in.release(kept)
		}
		end = func(err error) {
			if err != nil { // given up: the function has the grace to notice
				l.in.killUnless(finished)
			}
		}
	}
	reply, err := l.in.conn.Invoke(ev.ctx, inv, r.Body)
	if err != nil {
		err = ev.judge(l.in, err, "it answered")
		ev.cancel(err)
		end(err)
		return nil, err
	}
	if reply.Status == 101 {
		ev.becomeTunnel()
	}
	body := &replyBody{
		ReadCloser: reply.Body, whole: reply.Length >= 0, file: reply.File != nil,
		judge: func(err error) error { return ev.judge(l.in, err, "its answer was whole") },
	}
	body.done = ev.finisher(began, func(err error) {
		if err != nil && reply.File == nil { // its reader may be slow to notice
			_ = reply.Body.Close()
		}
		end(err)
	})
	resp := &Response{
		Instance: l.in.box.id, Status: reply.Status, Header: reply.Headers, Size: reply.Length, Body: body,
		Cold: l.kind != StartWarm, Start: l.start, StartKind: l.kind,
		File: reply.File, Offset: reply.Offset,
	}
	if lend := reply.Lend; lend != nil {
		resp.Lend = func(conn syscall.RawConn) (int64, error) {
			n, err := lend(conn)
			return n, body.noted(err)
		}
	}
	return resp, nil
}

// judge turns what ended an event into what happened, and logs an exception.
func (ev *event) judge(in *instance, err error, before string) error {
	if ev.ctx.Err() != nil {
		return context.Cause(ev.ctx) // what followed, such as the kill, is no news
	}
	err = in.explain(err, before)
	var failure *FunctionError
	if errors.As(err, &failure) {
		if deadline, _ := ev.ctx.Deadline(); !ev.tunnel.Load() && !time.Now().Before(deadline.Truncate(time.Millisecond)) {
			return ErrTimeout // the function noticed it first
		}
		ev.f.logFailure(in.box.id, ev.name, failure)
	}
	return err
}

// finisher returns what ends an answered event: the close of its answer or, for
// a reader that has stalled, the end of its time.
func (ev *event) finisher(began time.Time, end func(error)) func(error) {
	finish := func(err error) { ev.finish(began, err, func() { end(err) }) }
	stop := context.AfterFunc(ev.ctx, func() { finish(context.Cause(ev.ctx)) })
	return func(err error) {
		stop()
		finish(err)
	}
}

// logFailure keeps what the function's owner needs to know of an exception.
func (f *function) logFailure(sandbox, invocation string, e *FunctionError) {
	f.logs.append(LogLine{Time: time.Now(), Sandbox: sandbox, Invocation: invocation, Stream: "log", Level: "error", Text: strings.TrimRight(e.Error()+"\n"+e.Stack, "\n")})
}

// lease is acquire without instances whose channel has already ended.
func (f *function) lease(ctx context.Context) (*lease, error) {
	for {
		l, err := f.acquire(ctx)
		if err != nil {
			return nil, err
		}
		select {
		case <-l.in.conn.Done():
			l.in.drain()
			l.in.release(0)
		default:
			return l, nil
		}
	}
}

// errAbandoned marks a body that its reader closed before the end.
var errAbandoned = errors.New("answer was not read to its end")

// replyBody ends its event when it is closed: cleanly when it was read to the
// end, as broken otherwise.
type replyBody struct {
	io.ReadCloser
	whole bool                  // all of it is here: a Read does not wait
	file  bool                  // it may be taken from Response.File instead
	judge func(err error) error // nil: errors are passed on as they are
	done  func(err error)
	eof   bool
	err   error
}

func (b *replyBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, ErrSocketWanted) {
		return n, err
	}
	return n, b.noted(err)
}

// noted keeps how the body has ended.
func (b *replyBody) noted(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		b.eof = true
	case err != nil:
		if b.judge != nil {
			err = b.judge(err)
		}
		b.err = err
	}
	return err
}

func (b *replyBody) Close() error {
	if !b.eof && b.err == nil && !b.file { // nothing may be left of a short answer
		if b.whole {
			n, err := b.Read(make([]byte, 1))
			b.eof = n == 0 && errors.Is(err, io.EOF)
		}
		if !b.eof {
			b.err = errAbandoned
		}
	}
	err := b.ReadCloser.Close()
	b.done(b.err)
	return err
}

// stdio runs the event as one process: body on stdin, answer on stdout, the
// exit status decides.
func (ev *event) stdio(r *Request, began time.Time) (*Response, error) {
	f := ev.f
	env, err := ev.invocation(r).Environ()
	if err != nil {
		return nil, err
	}
	spec, err := f.spec(newID())
	if err != nil {
		return nil, err
	}
	in, err := f.eventSlot(ev.ctx)
	if err != nil {
		return nil, err
	}
	since := time.Now()
	outR, outW, err := outputPipe()
	if err != nil {
		f.endEvent(in, 0)
		return nil, fmt.Errorf("make stdout: %w", err)
	}
	feed, err := newFeeder(r)
	if err != nil {
		err = cmp.Or(context.Cause(ev.ctx), err)
	} else {
		spec.Stdin, spec.Stdout = feed.child, outW
		spec.Env = append(spec.Env[:len(spec.Env):len(spec.Env)], env...)
		in.box = in.newBox(spec.ID)
		if err = ev.enter(); err == nil {
			err = f.start(ev.ctx, spec, in.box)
		}
	}
	_ = outW.Close()
	feed.closeChild()
	if err != nil {
		_ = outR.Close()
		feed.close()
		ev.leave(0)
		f.endEvent(in, 0)
		return nil, err
	}
	in.kind = in.box.sb.Kind()
	started := time.Since(began)
	f.started(in.kind, started)
	feed.start(ev.cancel)
	stop := context.AfterFunc(ev.ctx, in.box.kill) // time is over, or the client gone
	end := func() {
		stop()
		in.box.kill()
		_ = outR.Close()
		feed.close()
		<-in.box.sb.Done()
		kept := ev.kept(since)
		ev.leave(kept)
		f.endEvent(in, kept)
	}

	resp := &Response{Instance: in.box.id, Status: 200, Header: [][2]string{{"Content-Type", "application/octet-stream"}}, Cold: true, Start: started, StartKind: in.kind}
	head, err := readHead(ev.ctx, f.e.buffers, f.e.admission.Waited, outR)
	if err == nil && head.whole {
		err = ev.exited(in.box.sb)
	}
	if err != nil {
		_ = head.Close()
		ev.cancel(err)
		end()
		return nil, err
	}
	if head.whole {
		end() // the program is over, however slowly its answer is read
		resp.Size = int64(len(head.rest))
		resp.Body = &replyBody{ReadCloser: head, whole: true, done: func(error) { ev.finish(began, nil, func() {}) }}
		return resp, nil
	}
	resp.Size = -1
	rest := &stdioBody{ev: ev, head: head, out: outR, sb: in.box.sb}
	body := &replyBody{
		ReadCloser: rest,
		done: ev.finisher(began, func(error) {
			end()
			_ = head.Close() // its reader may be slow to notice
		}),
	}
	resp.Body = body
	return resp, nil
}

// stdioBody streams a long answer; its end is an error when the program failed.
type stdioBody struct {
	ev   *event
	head *head
	out  *os.File // what comes after head
	sb   *sandbox.Sandbox
}

func (b *stdioBody) Read(p []byte) (int, error) {
	if n, err := b.head.Read(p); err == nil {
		return n, nil
	}
	n, err := b.out.Read(p)
	return n, b.ended(err)
}

// ended is what err, which comes from the pipe, says of the answer.
func (b *stdioBody) ended(err error) error {
	switch {
	case err != nil && b.ev.ctx.Err() != nil: // its end closed the pipe
		return context.Cause(b.ev.ctx)
	case errors.Is(err, io.EOF):
		if failed := b.ev.exited(b.sb); failed != nil {
			return failed
		}
	}
	return err
}

// Close ends a Read that is under way.
func (b *stdioBody) Close() error { return errors.Join(b.head.Close(), b.out.Close()) }

// exited waits for the program's end and judges it.
func (ev *event) exited(sb *sandbox.Sandbox) error {
	<-sb.Done() // ends with ev.ctx at the latest: it kills the sandbox
	if ev.ctx.Err() != nil {
		return context.Cause(ev.ctx)
	}
	s := sb.Status()
	switch {
	case s.OOMKilled || s.Signal != 0:
		return &CrashError{Status: s, Reason: crashReason(s, "it answered")}
	case s.Code != 0:
		return &FunctionError{Type: "exit", Message: fmt.Sprintf("exit status %d", s.Code)}
	}
	return nil
}

// invocation is what an event says about itself.
func (ev *event) invocation(r *Request) *channel.Invocation {
	deadline, _ := ev.ctx.Deadline()
	return &channel.Invocation{
		Function: ev.f.name, ID: ev.name, Tenant: ev.f.config.Tenant, DeadlineMS: deadline.UnixMilli(),
		Method: r.Method, Path: r.Path, Query: r.Query, Headers: r.Header, Upgrade: r.Upgrade,
		Socket: r.Lends && ev.f.lends,
	}
}

// feeder gives a request body to a program's stdin: a small one ahead of it, any
// other from a goroutine of its own.
type feeder struct {
	child *os.File  // what the program reads; nil where there is no body
	ours  *os.File  // nil once all is written
	rest  io.Reader // to be written
	body  io.Reader
	done  chan struct{}
}

// smallBody is what a pipe takes though nobody reads yet (pipe(7)).
const smallBody = 64 << 10

// newFeeder makes the pipe. It waits for a small body: as long as the client has
// not sent it, there is nothing to start a program for. closeChild and close are due
// after an error too.
func newFeeder(r *Request) (*feeder, error) {
	f := &feeder{body: r.Body, rest: r.Body}
	if r.Body == nil || r.Size == 0 {
		return f, nil
	}
	var small []byte
	if 0 < r.Size && r.Size <= smallBody {
		small = make([]byte, r.Size)
		if _, err := io.ReadFull(r.Body, small); err != nil {
			return f, fmt.Errorf("read body: %w", err)
		}
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return f, fmt.Errorf("make stdin: %w", err)
	}
	f.child = os.NewFile(uintptr(fds[0]), "stdin")
	if err := unix.SetNonblock(fds[1], true); err != nil {
		return f, errors.Join(err, unix.Close(fds[1]))
	}
	if small != nil {
		n, err := unix.Write(fds[1], small)
		if n == len(small) {
			return f, unix.Close(fds[1])
		}
		if err != nil { // where pipes are kept shorter (pipe-user-pages-hard)
			n = 0
		}
		f.rest = bytes.NewReader(small[n:])
	}
	f.ours = os.NewFile(uintptr(fds[1]), "stdin")
	return f, nil
}

func (f *feeder) closeChild() {
	if f.child != nil {
		_ = f.child.Close()
	}
}

// start begins to write what is left. A body that cannot be read to its end fails
// the event: the program must not take a part for the whole.
func (f *feeder) start(fail func(error)) {
	if f.ours == nil {
		return
	}
	f.done = make(chan struct{})
	go func() {
		defer close(f.done)
		src := &faultReader{r: f.rest}
		_, _ = io.Copy(f.ours, src) // EPIPE: the program does not want more
		if src.err != nil {
			fail(fmt.Errorf("read body: %w", src.err))
		}
		_ = f.ours.Close()
	}()
}

// faultReader remembers why a body could not be read.
type faultReader struct {
	r   io.Reader
	err error
}

func (r *faultReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// close ends the writing and waits for it.
func (f *feeder) close() {
	if f.ours == nil {
		return
	}
	_ = f.ours.Close()
	if c, ok := f.body.(io.Closer); ok {
		_ = c.Close()
	}
	if f.done != nil {
		<-f.done
	}
}

func (f *function) observe(began time.Time, err error) {
	f.e.metrics.invocation(f.name, time.Since(began), err)
}

// invocationName is the number in 16 hexadecimal digits.
func invocationName(id uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], id)
	return hex.EncodeToString(b[:])
}
