package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/failure"
)

// event is one invocation under way: deadline, resources and cleanup. The event is allocated
// together with the Response: separate allocations took a good part of a small event's time.
type event struct {
	engine *Engine // runs the events that this event calls
	f      *function
	name   string
	began  time.Time

	calls    lineage     // origin of this event, for the functions that it calls
	header   [][2]string // of the request
	borrowed atomic.Bool // runs in its caller's slot
	last     *event      // of a pipeline: the step with the final answer
	waits    patience    // how the event waits for an instance

	ctx      limited
	body     replyBody
	resp     Response
	reply    *channel.Reply
	meta     channel.Invocation
	input    io.Closer       // the request's body if Body is an io.Closer, or nil
	keepOpen func() bool     // stops ctx from closing input
	end      func(err error) // releases the resources of an answered event
	unwatch  func() bool     // undoes watch; nil without watch
	once     sync.Once       // for finish
	answered atomic.Bool

	gathered bytes.Reader // the body, if read before the event took a slot
	whole    Request      // the request with gathered as its body
	unflow   func()       // releases the slot of a flowing body; nil for none

	lease   lease
	since   time.Time     // start of the lease
	over    chan struct{} // closed at the lease's end
	tunnel  atomic.Bool   // the event is a tunnel
	hasSlot atomic.Bool   // holds one of the engine's slots
}

// lineage describes the origin of an event: the calling event, the caller's caller, and so on.
type lineage struct {
	from   *lineage // caller; nil: the event came from outside
	before *event   // event whose answer, maybe incomplete, is the body of this event; nil for none
	f      *function

	once  sync.Once     // begin
	root  *lineage      // lineage of the event from outside
	slot  chan struct{} // holds a token while a called event runs in the caller's slot
	depth int           // number of callers

	mu   sync.Mutex
	made int // calls at all depths; counted in root
}

func newEvent(e *Engine, f *function, name string, r *Request) *event {
	return &event{engine: e, f: f, name: name, began: time.Now(), header: r.Headers, calls: lineage{f: f}}
}

// open starts the event's deadline. The event ends at the time limit, or with ctx.
func (ev *event) open(ctx context.Context, r *Request) {
	ev.ctx.open(ctx, ev.began.Add(ev.f.config.Resources.Timeout), ev.expire)
	if body, ok := r.Body.(io.Closer); ok {
		// A client that sends slowly must not keep an instance beyond the time limit.
		ev.input = body
		ev.keepOpen = context.AfterFunc(&ev.ctx, ev.closeInput)
	}
}

// invocation returns the metadata of the event for the function.
func (ev *event) invocation(r *Request) channel.Invocation {
	m := channel.Invocation{Function: ev.f.plain, ID: ev.name, Tenant: ev.f.config.Tenant, DeadlineMS: ev.ctx.at.UnixMilli(), Request: *r}
	m.Socket = r.Socket && ev.f.lends
	return m
}

// instance returns the id of the event's sandbox, "" for none.
func (ev *event) instance() string {
	if in := ev.lease.in; in != nil && in.box != nil {
		return in.box.ID
	}
	return ev.resp.Instance
}

// expire ends the event at the time limit, also while its answer is being read.
func (ev *event) expire() {
	ev.ctx.cancel(ErrTimeout)
	if ev.answered.Load() {
		ev.finish(context.Cause(&ev.ctx))
	}
}

// closeInput interrupts a Read of the request's body.
func (ev *event) closeInput() { _ = ev.input.Close() } // the error is of no use

// cancel ends the event's context and closes the request's body.
func (ev *event) cancel(cause error) {
	ev.abandon(cause)
	if ev.input != nil {
		ev.closeInput()
	}
}

// abandon ends the event's context and leaves the body open unless the context has closed it.
func (ev *event) abandon(cause error) {
	if ev.keepOpen != nil {
		ev.keepOpen()
	}
	ev.ctx.end(cause)
	if ev.unflow != nil {
		ev.unflow()
	}
}

// enter takes one of the engine's slots. leave gives the slot back.
func (ev *event) enter() error {
	if ev.calls.from != nil {
		return ev.enterCalled()
	}
	return ev.enterSlot(&ev.ctx)
}

// enterSlot is enter for an event outside its caller's slot.
func (ev *event) enterSlot(ctx context.Context) error {
	waited, err := ev.f.host.slots.enter(ctx, &ev.f.slots)
	if waited > 0 {
		ev.f.host.metrics.waitedForSlot.Observe(waited.Seconds())
	}
	return ev.entered(err)
}

// entered records whether the event has got a slot.
func (ev *event) entered(err error) error {
	if errors.Is(err, ErrEngineOverloaded) {
		ev.f.host.metrics.refuse(reasonEngine)
	}
	ev.hasSlot.Store(err == nil)
	return err
}

// errBorrowed ends the wait for a slot because the caller's slot has become free.
var errBorrowed = errors.New("runs in its caller's slot")

// enterCalled is enter for a called event. One called event at a time runs in its caller's
// slot, because the caller only waits meanwhile. Otherwise events that hold all slots and call
// functions would wait for each other. Further called events take slots of their own, unless
// the caller's slot becomes free first. A call with an incomplete answer as its body does not
// wait: the holder of the awaited slot may itself wait for this call to read the answer.
func (ev *event) enterCalled() error {
	from := ev.calls.from
	select {
	case from.slot <- struct{}{}:
		ev.borrowed.Store(true)
		return nil
	default:
	}
	if ev.calls.before != nil {
		return ev.entered(ev.f.host.slots.beside(&ev.f.slots))
	}
	ctx, cancel := context.WithCancelCause(&ev.ctx)
	borrowed := make(chan bool, 1)
	go func() {
		select {
		case from.slot <- struct{}{}:
			cancel(errBorrowed)
			borrowed <- true
		case <-ctx.Done():
			borrowed <- false
		}
	}()
	err := ev.enterSlot(ctx)
	cancel(nil)
	if <-borrowed {
		ev.leave(0)
		ev.borrowed.Store(true)
		return nil
	}
	return err
}

// leave gives the event's slot back, if still held. kept as for slots.leave.
func (ev *event) leave(kept time.Duration) {
	if ev.borrowed.Swap(false) {
		<-ev.calls.from.slot
	}
	if ev.hasSlot.Swap(false) {
		ev.f.host.slots.leave(&ev.f.slots, kept)
	}
}

// kept returns how long the event has held its instance; 0 if the queue's estimate should not
// count the time.
func (ev *event) kept() time.Duration {
	if ev.tunnel.Load() {
		return 0
	}
	return time.Since(ev.since)
}

// becomeTunnel lifts the time limit of an event whose function has switched protocols. The event
// then lasts as long as both sides and the deployment.
func (ev *event) becomeTunnel() {
	ev.ctx.lift()
	ev.tunnel.Store(true)
	ev.leave(0) // a tunnel may idle for hours: give back its engine slot
	if !ev.f.tunnels.add(ev.name, ev.began, ev.cancel) {
		ev.cancel(ErrClosed)
	}
}

// watch makes an answered event finish when its client disconnects: a stalled reader may never
// call Close.
func (ev *event) watch() {
	ev.unwatch = context.AfterFunc(&ev.ctx, func() { ev.finish(context.Cause(&ev.ctx)) })
}

// finish runs once for each answered event. err is the reason of a broken answer, or nil.
func (ev *event) finish(err error) {
	ev.once.Do(func() {
		ev.f.tunnels.remove(ev.name)
		ev.cancel(err)
		ev.end(err)
		if err != nil {
			ev.f.failures.Add(1)
		}
		ev.observe(err)
		ev.f.host.life.Done()
	})
}

func (ev *event) observe(err error) {
	took := time.Since(ev.began)
	if err == nil {
		ev.f.succeeded.Observe(took.Seconds())
		return
	}
	ev.f.host.metrics.failed(ev.f.name, ev.f.number(), took, err)
}

// judge translates err into the error of the event and logs an exception.
func (ev *event) judge(err error, before string) error {
	in := ev.lease.in
	if ev.ctx.Err() != nil {
		return context.Cause(&ev.ctx) // later errors, such as the kill's, are consequences
	}
	err = in.explain(err, before)
	var failure *FunctionError
	if errors.As(err, &failure) {
		if !ev.tunnel.Load() && !time.Now().Before(ev.ctx.at.Truncate(time.Millisecond)) {
			return ErrTimeout // the function noticed the time limit first
		}
		ev.f.logFailure(in.box.ID, ev.name, failure)
	}
	return err
}

// failed returns the error of an event without an answer.
func (ev *event) failed(err error) *InvocationError {
	if errors.Is(err, channel.ErrMetaTooLarge) && failure.Of(err) == "" {
		err = metaError{err}
	}
	return &InvocationError{ev.name, ev.instance(), err}
}

// invocationName returns id in 16 hexadecimal digits.
func invocationName(id uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], id)
	return string(hex.AppendEncode(make([]byte, 0, 16), b[:]))
}

// limited is a context with a parent and a time limit. lift removes the limit.
type limited struct {
	context.Context
	at     time.Time
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// open starts the context. expire runs at the time at.
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

// Deadline returns the time limit, also after lift.
func (l *limited) Deadline() (time.Time, bool) { return l.at, true }

// replyBody is the body of an answer. Close ends the event: as successful after the whole body
// was read, as broken otherwise.
type replyBody struct {
	io.ReadCloser
	ev    *event
	whole bool // the whole body is in memory: Read does not block
	apart bool // the reader may take the body from Response.Bytes or File instead
	ended bool // the event has succeeded, regardless of the answer's fate
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

// noted records how the body ended.
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
	if !b.eof && b.err == nil && !b.apart { // a short body may have been read up to, but not including, EOF
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
