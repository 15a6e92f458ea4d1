package engine

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// A slow client must not occupy the function's concurrency. The engine reads a short body before
// its event takes a slot. A flowing body, long or of unknown length, takes a slot at once. At
// most half of the function's slots, but at least one, serve events with flowing bodies. The
// engine breaks off a body that hardly flows while another event waits for its slot.

const (
	// shortBody is the length up to which the engine reads a body before its event takes a slot,
	// in bytes: a pipe holds as much without a reader.
	shortBody = smallBody
	// keptBody is the length up to which the engine keeps a body that has arrived already, in
	// bytes. If the instance ends before it takes the event, another instance gets the body.
	keptBody = 4 << 10
	// mostReceived bounds the memory of all short bodies under way, in bytes. Beyond this bound a
	// short body flows.
	mostReceived = 64 << 20
	// A flowing body is judged every slowEvery. It is slow if the function has waited for the
	// body more than half of that time and fewer than slowBytes have come.
	slowEvery = 5 * time.Second
	slowBytes = 4 << 10
)

// arriving is a body that can tell whether all bytes have arrived.
type arriving interface {
	Here() bool // no Read will block
}

// receive reads a short body that has not arrived, and makes the event of a flowing body wait for
// its turn. It leaves r unchanged and returns r, or a copy with the new body. The caller calls
// done once the function has the event.
func (ev *event) receive(r *Request) (_ *Request, done func(), err error) {
	done = func() {}
	if r.Body == nil || r.Length == 0 || r.Upgrade != "" {
		return r, done, nil
	}
	b, awaits := r.Body.(arriving)
	switch {
	case awaits && 0 < r.Length && r.Length <= keptBody && b.Here():
		r, err = ev.gather(r)
		return r, done, err
	case awaits && b.Here(), !awaits && r.Length >= 0:
		return r, done, nil
	case awaits && 0 < r.Length && r.Length <= shortBody:
		if received := &ev.f.host.received; received.Add(r.Length) <= mostReceived {
			r, err = ev.gather(r)
			return r, func() { received.Add(-r.Length) }, err
		}
		ev.f.host.received.Add(-r.Length)
	}
	if !awaits { // the body of a call: a short one is complete before the next step begins
		return r, done, nil
	}
	ev.meta.Flows = r.Length < 0
	if ev.f.agent { // the sandbox has a single user
		return r, done, nil
	}
	if err := ev.f.flows.enter(&ev.ctx, &ev.f.program); err != nil {
		return r, done, err
	}
	body := &flow{ev: ev, Reader: r.Body}
	ev.unflow = sync.OnceFunc(body.end)
	body.begin()
	flowing := *r
	flowing.Body = body
	return &flowing, done, nil
}

// gather reads a short body into memory.
func (ev *event) gather(r *Request) (*Request, error) {
	gathered := make([]byte, r.Length)
	if _, err := io.ReadFull(r.Body, gathered); err != nil {
		if ev.ctx.Err() != nil { // ctx broke the Read off
			return r, context.Cause(&ev.ctx)
		}
		return r, fmt.Errorf("invoke %s: read body: %w", ev.f.plain, err)
	}
	ev.gathered.Reset(gathered)
	ev.whole = *r
	ev.whole.Body = &ev.gathered
	return &ev.whole, nil
}

// flow is a flowing body. It holds one of the slots for flowing bodies until its end.
type flow struct {
	ev *event
	io.Reader

	mu     sync.Mutex
	timer  *time.Timer   // calls judge
	ended  bool          // the slot is given back, or the body is broken off
	asked  time.Time     // start of the Read under way; zero for none
	waited time.Duration // in Read, since the last judgement
	came   int           // bytes since the last judgement
}

func (b *flow) Read(p []byte) (int, error) {
	b.mu.Lock()
	b.asked = time.Now()
	b.mu.Unlock()
	n, err := b.Reader.Read(p)
	b.mu.Lock()
	b.waited += time.Since(b.asked)
	b.came += n
	b.asked = time.Time{}
	b.mu.Unlock()
	if err != nil {
		b.ev.unflow()
	}
	return n, err
}

// begin starts the judgements.
func (b *flow) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = time.AfterFunc(slowEvery, b.judge)
}

// judge breaks the body off if the body is slow and another event waits for the slot. A body that
// the function reads slowly is not slow.
func (b *flow) judge() {
	if b.judged() {
		b.ev.cancel(ErrSlowBody)
	}
}

// judged reports whether to break the body off; if not, it schedules the next judgement.
func (b *flow) judged() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false
	}
	if !b.asked.IsZero() {
		now := time.Now()
		b.waited += now.Sub(b.asked)
		b.asked = now
	}
	b.ended = b.waited > slowEvery/2 && b.came < slowBytes && b.ev.f.crowded()
	b.waited, b.came = 0, 0
	if !b.ended {
		b.timer.Reset(slowEvery)
	}
	return b.ended
}

// end stops the judgements and gives the body's slot back.
func (b *flow) end() {
	b.mu.Lock()
	b.ended = true
	b.timer.Stop()
	b.mu.Unlock()
	b.ev.f.flows.leave()
}

// Close ends a Read under way.
func (b *flow) Close() error {
	if c, ok := b.Reader.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// rewind seeks to the start of a body in memory, and reports whether it could.
func rewind(r *Request) bool {
	if r.Body == nil || r.Length == 0 {
		return true
	}
	inMemory, ok := r.Body.(interface { // bytes.Reader, strings.Reader
		io.Seeker
		Len() int
	})
	if !ok {
		return false
	}
	_, err := inMemory.Seek(-r.Length, io.SeekEnd)
	return err == nil
}
