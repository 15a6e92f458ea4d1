package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fre-engine/fre/channel"
)

// event is one invocation under way: its deadline, what it holds, and what ends with it.
// It is one piece of memory, with what Invoke returns: of a small event's time, making
// many took a good part.
type event struct {
	f     *function
	name  string
	began time.Time

	calls    lineage     // what the functions that this event calls are told of it
	header   [][2]string // of the request
	borrowed atomic.Bool // its place is its caller's
	last     *event      // of a pipeline: the step whose answer is its own
	waits    patience    // for an instance

	ctx      limited
	body     replyBody
	resp     Response
	reply    *channel.Reply
	meta     channel.Invocation
	input    io.Closer       // of the request's body, or nil
	keepOpen func() bool     // undoes that ctx closes input
	end      func(err error) // gives back what an answered event still has
	unwatch  func() bool     // undoes watch; nil without it
	once     sync.Once       // finish
	answered atomic.Bool

	gathered bytes.Reader // the body, where it was read before the event took a place
	whole    Request      // with that body
	unflow   func()       // gives back what a body that flows holds; nil for none

	lease  lease
	since  time.Time     // when it got that
	over   chan struct{} // closed when it has given that back
	tunnel atomic.Bool   // it is one
	placed atomic.Bool   // it has one of the engine's places
}

// open has the event begin: it ends at its time limit, or with ctx.
func (ev *event) open(ctx context.Context, r *Request) {
	ev.ctx.open(ctx, ev.began.Add(ev.f.config.Resources.Timeout), ev.expire)
	if body, ok := r.Body.(io.Closer); ok {
		// A client that sends slowly must not keep an instance for longer.
		ev.input = body
		ev.keepOpen = context.AfterFunc(&ev.ctx, ev.closeInput)
	}
}

// instance is the id of the sandbox that it came to, "" for none.
func (ev *event) instance() string {
	if in := ev.lease.in; in != nil && in.box != nil {
		return in.box.id
	}
	return ev.resp.Instance
}

// expire ends the event at its time limit, and an answer that nobody has closed by then.
func (ev *event) expire() {
	ev.ctx.cancel(ErrTimeout)
	if ev.answered.Load() {
		ev.finish(context.Cause(&ev.ctx))
	}
}

// closeInput ends a Read of the request's body that is under way.
func (ev *event) closeInput() { _ = ev.input.Close() } // no news in its error

// cancel ends the event's context and the reading of its body.
func (ev *event) cancel(cause error) {
	ev.abandon(cause)
	if ev.input != nil {
		ev.closeInput()
	}
}

// abandon ends the event's context, and leaves the body alone if nothing else has ended it.
func (ev *event) abandon(cause error) {
	if ev.keepOpen != nil {
		ev.keepOpen()
	}
	ev.ctx.end(cause)
	if ev.unflow != nil {
		ev.unflow()
	}
}

// enter takes one of the engine's places, which leave gives back.
func (ev *event) enter() error {
	if ev.calls.from != nil {
		return ev.enterCalled()
	}
	return ev.enterPlace(&ev.ctx)
}

// enterPlace is enter for an event that nobody lends a place.
func (ev *event) enterPlace(ctx context.Context) error {
	waited, err := ev.f.e.places.enter(ctx, ev.f)
	if waited > 0 {
		ev.f.e.metrics.waitedForPlace.Observe(waited.Seconds())
	}
	return ev.entered(err)
}

// entered notes that the event has a place, or was refused one.
func (ev *event) entered(err error) error {
	if errors.Is(err, ErrEngineOverloaded) {
		ev.f.e.metrics.refuse(reasonEngine)
	}
	ev.placed.Store(err == nil)
	return err
}

// leave gives the event's place back, if it has one still; kept as of places.leave.
func (ev *event) leave(kept time.Duration) {
	if ev.borrowed.Swap(false) {
		<-ev.calls.from.place
	}
	if ev.placed.Swap(false) {
		ev.f.e.places.leave(ev.f, kept)
	}
}

// kept is how long the event has kept its instance, 0 where that says nothing of other
// events.
func (ev *event) kept() time.Duration {
	if ev.tunnel.Load() {
		return 0
	}
	return time.Since(ev.since)
}

// watch has an answered event finish by itself when the client has gone: a reader that
// has stalled does not.
func (ev *event) watch() {
	ev.unwatch = context.AfterFunc(&ev.ctx, func() { ev.finish(context.Cause(&ev.ctx)) })
}

// finish runs once per event that was answered; err is why it was broken off, or nil.
func (ev *event) finish(err error) {
	ev.once.Do(func() {
		ev.f.tunnels.remove(ev)
		ev.cancel(err)
		ev.end(err)
		if err != nil {
			ev.f.failures.Add(1)
		}
		ev.observe(err)
		ev.f.e.flight.Done()
	})
}

func (ev *event) observe(err error) {
	took := time.Since(ev.began)
	if err == nil {
		ev.f.succeeded.Observe(took.Seconds())
		return
	}
	ev.f.e.metrics.failed(ev.f, took, err)
}

// judge turns what ended an event into what happened, and logs an exception.
func (ev *event) judge(err error, before string) error {
	in := ev.lease.in
	if ev.ctx.Err() != nil {
		return context.Cause(&ev.ctx) // what followed, such as the kill, is no news
	}
	err = in.explain(err, before)
	var failure *FunctionError
	if errors.As(err, &failure) {
		if !ev.tunnel.Load() && !time.Now().Before(ev.ctx.at.Truncate(time.Millisecond)) {
			return ErrTimeout // the function noticed it first
		}
		ev.f.logFailure(in.box.id, ev.name, failure)
	}
	return err
}

// logFailure keeps what the function's owner needs to know of an exception.
func (f *function) logFailure(sandbox, invocation string, e *FunctionError) {
	f.note(LogLine{Sandbox: sandbox, Invocation: invocation, Level: "error", Text: strings.TrimRight(e.Error()+"\n"+e.Stack, "\n")})
}

// invocationName is the number in 16 hexadecimal digits.
func invocationName(id uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], id)
	return string(hex.AppendEncode(make([]byte, 0, 16), b[:]))
}

// limited is a context that ends with another, and at a time unless that was lifted.
type limited struct {
	context.Context
	at     time.Time
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// open has expire called at that time.
func (l *limited) open(ctx context.Context, at time.Time, expire func()) {
	l.Context, l.cancel = context.WithCancelCause(ctx)
	l.timer = time.AfterFunc(time.Until(at), expire)
	l.at = at
	if earlier, ok := ctx.Deadline(); ok && earlier.Before(at) {
		l.at = earlier
	}
}

func (l *limited) lift() { l.timer.Stop() }

func (l *limited) end(cause error) {
	l.timer.Stop()
	l.cancel(cause)
}

// Deadline is when the limit ends the context, unless it was lifted.
func (l *limited) Deadline() (time.Time, bool) { return l.at, true }

// errAbandoned marks a body that its reader closed before the end.
var errAbandoned = errors.New("answer was not read to its end")

// replyBody ends its event when it is closed: cleanly when it was read to the
// end, as broken otherwise.
type replyBody struct {
	io.ReadCloser
	ev    *event
	whole bool // all of it is here: a Read does not wait
	apart bool // it may be taken from Response.Bytes or File instead
	ended bool // the event has, well: nothing that becomes of its answer changes that
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
		if b.ev.lease.in != nil {
			err = b.ev.judge(err, "its answer was whole")
		}
		b.err = err
	}
	return err
}

func (b *replyBody) Close() error {
	if !b.eof && b.err == nil && !b.apart { // nothing may be left of a short answer
		if b.whole {
			n, err := b.Read(make([]byte, 1))
			b.eof = n == 0 && errors.Is(err, io.EOF)
		}
		if !b.eof {
			b.err = errAbandoned
		}
	}
	err := b.ReadCloser.Close()
	if b.ev.unwatch != nil {
		b.ev.unwatch()
	}
	if b.ended {
		b.ev.finish(nil)
	} else {
		b.ev.finish(b.err)
	}
	return err
}
