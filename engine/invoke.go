package engine

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/image"
)

// Invoke hands an event to a function, or to one revision of it (NAME@REVISION, by number, alias
// or "latest"), and returns the answer. Every error is an *InvocationError. Err is an
// *UnknownError, ErrTimeout, ErrOverloaded, ErrDegraded, ErrClosed, ErrEventTooLarge,
// *FunctionError, *CrashError, *sandbox.StartError, the error of the body's Read, or the cause
// of ctx.
func (e *Engine) Invoke(ctx context.Context, function string, r *Request) (*Response, error) {
	name := invocationName(e.nextID.Add(1))
	if from, ok := ctx.Value(callerKey{}).(caller); ok && from.f.isPipeline() {
		e.life.BeginBeneath() // counts even if the engine is closing: the pipeline's own event is under way
	} else if err := e.life.Begin(); err != nil {
		return nil, &InvocationError{ID: name, Err: err}
	}
	for {
		f, told, err := e.route(function, r)
		if err != nil {
			e.life.Done()
			return nil, &InvocationError{ID: name, Err: err}
		}
		ev := newEvent(e, f, name, r)
		resp, err := ev.invoke(ctx, r)
		if errors.Is(err, errRetired) {
			if ev.whole.Body != nil {
				r = &ev.whole
			}
			if next, _, err := e.route(function, r); err != nil || !next.isRetired() {
				continue // the events go to a newer revision: nothing was read or sent yet
			}
		}
		if err != nil {
			var crash *CrashError
			if errors.Is(err, errRetired) || errors.As(err, &crash) && e.boxes.IsClosed() {
				err = ErrClosed // Close gave up waiting
			}
			e.life.Done()
			f.failures.Add(1)
			return nil, ev.failed(err)
		}
		if told {
			resp.Revision = f.number()
		}
		return resp, nil
	}
}

// invoke runs the event on its function.
func (ev *event) invoke(ctx context.Context, r *Request) (*Response, error) {
	f := ev.f
	if from, ok := ctx.Value(callerKey{}).(caller); ok {
		var err error
		if ev.waits, err = f.reachable(from); err != nil {
			return nil, err
		}
		ev.calls.from, ev.calls.before = from.lineage, from.before
	}
	if r.Upgrade != "" && (f.config.Protocol == image.ProtocolStdio || f.isPipeline()) { // both know no other protocol
		plain := *r
		plain.Upgrade, plain.Body, plain.Length = "", nil, 0
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
		ev.abandon(err) // the next deployment reads the body, or gets the part read so far
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

// channel runs the event on a leased instance, or on a fresh instance.
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
	*m = channel.Invocation{} // free the memory: the answer may take hours
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
		ID: ev.name, Instance: l.in.box.ID, Status: reply.Status, Header: reply.Headers, Size: reply.Length, Body: &ev.body,
		Cold: l.kind != StartWarm, Start: l.start, StartKind: l.kind,
		Bytes: reply.Bytes, File: reply.File, Offset: reply.Offset,
	}
	if lend := reply.Lend; lend != nil {
		ev.resp.Lend = func(conn syscall.RawConn) (int64, error) {
			n, err := lend(conn)
			return n, ev.body.noted(err)
		}
	}
	if reply.Bytes == nil || f.fresh() { // otherwise the answer holds nothing that other events wait for
		ev.watch()
	}
	ev.answered.Store(true)
	if ev.ctx.Err() != nil { // expire may have run before
		ev.finish(context.Cause(&ev.ctx))
	}
	return &ev.resp, nil
}

// mostAgain limits how often an event gets another instance because the leased instance ended
// before it took the event.
const mostAgain = 3

// replayable reports whether the whole request can be sent again.
func (ev *event) replayable(r *Request) bool {
	return r.Upgrade == "" && !ev.f.fresh() && ev.ctx.Err() == nil && rewind(r)
}

// hand gives the event to an instance. After an error it ends the event.
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
	reply, err := ev.lease.in.conn.Invoke(&ev.ctx, m)
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

// boot starts an instance for this event alone.
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

// endFresh ends the instance together with its event.
func (ev *event) endFresh(err error) {
	ev.closeBroken(err)
	in := ev.lease.in
	in.box.Kill()
	_ = in.conn.Close() // waits for the body's reader, which cancel has ended before
	<-in.box.Sandbox().Done()
	kept := ev.kept()
	ev.leave(kept)
	ev.f.endEvent(in, kept)
}

// endLeased gives an instance with a cancelled event cancelGrace to end the event.
func (ev *event) endLeased(err error) {
	ev.closeBroken(err)
	if err != nil {
		ev.lease.in.killUnless(ev.over)
	}
}

// closeBroken closes the rest of a broken answer, because its reader may be slow to do so.
func (ev *event) closeBroken(err error) {
	if err != nil && ev.reply != nil && ev.reply.File == nil {
		_ = ev.reply.Body.Close()
	}
}

// finished frees the instance for its next event: the function has ended this event.
func (ev *event) finished() {
	close(ev.over)
	kept := ev.kept()
	ev.leave(kept)
	ev.lease.in.release(kept)
}
