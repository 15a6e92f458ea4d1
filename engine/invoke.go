package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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

// Header fields of an event that Lambda's API makes of a qualified name: the qualifier as
// it was asked for, and the version that it leads to, for the bootstraps of the contract
// lambda. They are part of the header so that they are kept, and go to other nodes, with
// it; gateways take them from nobody.
const (
	QualifierField = "X-Fre-Lambda-Qualifier"
	VersionField   = "X-Fre-Lambda-Version"
)

// ErrSocketWanted is why a Response's Body does not go on before Response.Lend.
var ErrSocketWanted = channel.ErrSocketWanted

// Response is a function's answer. The caller must close Body: that ends the
// event and frees its instance. A Body that ends with an error was broken off
// by the function's failure.
type Response struct {
	ID       string // of the invocation, also in the logs
	Instance string // of the sandbox
	Revision string // which answered; "" where the function has one for all events, and none was asked for
	Node     string // which answered; "" for this one
	Status   int
	Header   [][2]string
	Size     int64 // bytes of Body, -1 while it is still coming
	Body     io.ReadCloser
	// Bytes, if not nil, is all of a short body, too, which nobody changes any more. Whoever
	// sends it leaves Body unread.
	Bytes []byte
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

// InvocationError is why an event has no answer: Err, and what it is known by in the logs.
type InvocationError struct {
	ID       string // of the invocation
	Instance string // of the sandbox, "" if it came to none
	Err      error
}

func (e *InvocationError) Error() string { return e.Err.Error() }
func (e *InvocationError) Unwrap() error { return e.Err }

// Failed is the invocation that err ended, the zero value where it had none.
func Failed(err error) InvocationError {
	var failed *InvocationError
	if errors.As(err, &failed) {
		return *failed
	}
	return InvocationError{}
}

// Invoke hands an event to the function, or to one revision of it (NAME@REVISION, by
// number, alias or "latest"), and returns its answer. Every error is an *InvocationError; Err
// is one of
// *UnknownError, ErrTimeout, ErrOverloaded, ErrDegraded, ErrClosed, ErrEventTooLarge,
// *FunctionError, *CrashError, *sandbox.StartError, what the body's Read
// returned, and the cause of ctx when it ends first.
func (e *Engine) Invoke(ctx context.Context, function string, r *Request) (*Response, error) {
	name := invocationName(e.nextID.Add(1))
	if from, ok := ctx.Value(callerKey{}).(caller); ok && from.f.isPipeline() {
		e.flight.Add(1) // it is under way, and so are its steps
	} else if err := e.begin(); err != nil {
		return nil, &InvocationError{ID: name, Err: err}
	}
	for {
		f, told, err := e.route(function, r)
		if err != nil {
			e.flight.Done()
			return nil, &InvocationError{ID: name, Err: err}
		}
		ev := newEvent(f, name, r)
		resp, err := ev.invoke(ctx, r)
		if errors.Is(err, errRetired) {
			if ev.whole.Body != nil {
				r = &ev.whole
			}
			if next, _, err := e.route(function, r); err != nil || !next.isRetired() {
				continue // its events go elsewhere by now: nothing was read or sent yet
			}
		}
		if err != nil {
			var crash *CrashError
			if errors.Is(err, errRetired) || errors.As(err, &crash) && e.boxes.isClosed() {
				err = ErrClosed // Close gave up waiting
			}
			e.flight.Done()
			f.failures.Add(1)
			return nil, &InvocationError{name, ev.instance(), err}
		}
		if told {
			resp.Revision = f.number()
		}
		return resp, nil
	}
}

func newEvent(f *function, name string, r *Request) *event {
	return &event{f: f, name: name, began: time.Now(), header: r.Header, calls: lineage{f: f}}
}

// invoke runs the event.
func (ev *event) invoke(ctx context.Context, r *Request) (*Response, error) {
	f := ev.f
	if from, ok := ctx.Value(callerKey{}).(caller); ok {
		var err error
		if ev.waits, err = f.reachable(from); err != nil {
			return nil, err
		}
		ev.calls.from, ev.calls.before = from.lineage, from.before
	}
	if r.Upgrade != "" && (f.config.Protocol == image.ProtocolStdio || f.isPipeline()) { // it knows no other protocol
		plain := *r
		plain.Upgrade, plain.Body, plain.Size = "", nil, 0
		r = &plain
	}
	if err := f.admit(r); err != nil {
		f.invocations.Add(1)
		ev.observe(err)
		return nil, err
	}
	ev.open(ctx, r)
	var resp *Response
	r, done, err := ev.receive(r)
	defer done()
	switch {
	case err != nil:
	case f.config.Protocol == image.ProtocolStdio:
		resp, err = ev.stdio(r)
	case f.isPipeline():
		resp, err = ev.pipeline(r)
	default:
		resp, err = ev.channel(r)
	}
	if errors.Is(err, errRetired) {
		ev.abandon(err) // another deployment will read the body, or has what was read
		return nil, err
	}
	f.invocations.Add(1)
	if err != nil {
		ev.cancel(err)
		ev.observe(err)
		return nil, err
	}
	return resp, nil
}

// channel runs the event on a leased instance, or on a fresh one.
func (ev *event) channel(r *Request) (*Response, error) {
	f := ev.f
	m := &ev.meta
	flows := m.Flows
	*m = ev.invocation(r)
	m.Flows = flows
	if !f.agent {
		m.Caller = ev
	}
	reply, err := ev.hand(r)
	for again := 0; errors.Is(err, channel.ErrUnserved) && again < mostAgain && ev.replayable(r); again++ {
		reply, err = ev.hand(r)
	}
	*m = channel.Invocation{} // the answer may take hours
	if err != nil {
		return nil, err
	}
	l := &ev.lease
	if reply.Status == 101 {
		ev.becomeTunnel()
	}
	ev.reply = reply
	ev.body = replyBody{ReadCloser: reply.Body, ev: ev, whole: reply.Length >= 0, apart: reply.File != nil || reply.Bytes != nil}
	ev.resp = Response{
		ID: ev.name, Instance: l.in.box.id, Status: reply.Status, Header: reply.Headers, Size: reply.Length, Body: &ev.body,
		Cold: l.kind != StartWarm, Start: l.start, StartKind: l.kind,
		Bytes: reply.Bytes, File: reply.File, Offset: reply.Offset,
	}
	if lend := reply.Lend; lend != nil {
		ev.resp.Lend = func(conn syscall.RawConn) (int64, error) {
			n, err := lend(conn)
			return n, ev.body.noted(err)
		}
	}
	if reply.Bytes == nil || f.fresh() { // else it holds nothing that others wait for
		ev.watch()
	}
	ev.answered.Store(true)
	if ev.ctx.Err() != nil { // expire may have come before
		ev.finish(context.Cause(&ev.ctx))
	}
	return &ev.resp, nil
}

// mostAgain is how often an event is handed to another instance, because the one it was
// leased ended before it took it.
const mostAgain = 3

// replayable says whether nothing of the request is used up.
func (ev *event) replayable(r *Request) bool {
	return r.Upgrade == "" && !ev.f.fresh() && ev.ctx.Err() == nil && rewind(r)
}

// hand gives the event to an instance, and ends it where there is no answer.
func (ev *event) hand(r *Request) (*channel.Reply, error) {
	f, m := ev.f, &ev.meta
	if f.fresh() {
		if err := ev.boot(); err != nil {
			return nil, err
		}
		ev.end = ev.endFresh
	} else {
		var err error
		if ev.lease, err = f.lease(&ev.ctx, ev.waits); err != nil {
			return nil, err
		}
		ev.since = time.Now()
		if err := ev.enter(); err != nil {
			ev.lease.in.release(0)
			return nil, err
		}
		ev.over = make(chan struct{})
		m.Finished = ev.finished
		ev.end = ev.endLeased
	}
	reply, err := ev.lease.in.conn.Invoke(&ev.ctx, m, r.Body)
	switch {
	case err == nil:
		return reply, nil
	case errors.Is(err, channel.ErrUnserved) && ev.replayable(r):
		ev.lease.in.drain()
		return nil, err
	}
	err = ev.judge(err, "it answered")
	ev.cancel(err)
	ev.end(err)
	return nil, err
}

// boot starts the instance of an event that has one to itself.
func (ev *event) boot() error {
	f := ev.f
	in, err := f.eventSlot(&ev.ctx, ev.waits)
	if err != nil {
		return err
	}
	if err := ev.enter(); err != nil {
		f.endEvent(in, 0)
		return err
	}
	ev.since = time.Now()
	if err := in.boot(&ev.ctx); err != nil {
		ev.leave(0)
		f.endEvent(in, 0)
		return err
	}
	ev.lease = lease{in: in, kind: in.kind, start: time.Since(ev.began)}
	f.started(in.kind, ev.lease.start)
	return nil
}

// endFresh ends the instance with its event.
func (ev *event) endFresh(err error) {
	ev.closeBroken(err)
	in := ev.lease.in
	in.box.kill()
	_ = in.conn.Close() // waits for the body's reader: the event's cancel came before
	<-in.box.sb.Done()
	kept := ev.kept()
	ev.leave(kept)
	ev.f.endEvent(in, kept)
}

// endLeased gives a function whose event was given up the grace to notice.
func (ev *event) endLeased(err error) {
	ev.closeBroken(err)
	if err != nil {
		ev.lease.in.killUnless(ev.over)
	}
}

// closeBroken closes what is left of an answer: its reader may be slow to notice.
func (ev *event) closeBroken(err error) {
	if err != nil && ev.reply != nil && ev.reply.File == nil {
		_ = ev.reply.Body.Close()
	}
}

// finished frees the instance for its next event: this one has said all.
func (ev *event) finished() {
	close(ev.over)
	kept := ev.kept()
	ev.leave(kept)
	ev.lease.in.release(kept)
}

// invocation is what an event says about itself.
func (ev *event) invocation(r *Request) channel.Invocation {
	return channel.Invocation{
		Function: ev.f.plain, ID: ev.name, Tenant: ev.f.config.Tenant, DeadlineMS: ev.ctx.at.UnixMilli(),
		Method: r.Method, Path: r.Path, Query: r.Query, Headers: r.Header, Upgrade: r.Upgrade,
		Socket: r.Lends && ev.f.lends,
	}
}

// lease is acquire without instances that have already ended, or said that they do.
func (f *function) lease(ctx context.Context, waits patience) (lease, error) {
	for {
		l, err := f.acquire(ctx, waits)
		if err != nil {
			return lease{}, err
		}
		select {
		case <-l.in.conn.Done():
			l.in.drain()
			l.in.release(0)
		case <-l.in.conn.Ending():
			l.in.drain()
			l.in.release(0)
		default:
			return l, nil
		}
	}
}
