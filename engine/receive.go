package engine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/engine/admission"
)

// A slow client must not occupy the function's concurrency. A short body is read before its
// event takes a place. A flowing body, which is long or of unknown length, takes a place at
// once; at most half of the function's places are for events with flowing bodies, and one
// that hardly flows while others wait for its place is broken off.

const (
	// shortBody is how long a body may be, in bytes, that is read before its event takes a
	// place: a pipe takes it though nobody reads yet.
	shortBody = smallBody
	// keptBody is how long a body may be, in bytes, that is kept until the answer though all
	// of it has come: another instance can have it then, if the first ends before it takes it.
	keptBody = 4 << 10
	// mostReceived bounds the memory of all short bodies under way, in bytes. Beyond it a
	// short body flows.
	mostReceived = 64 << 20
	// mostFlowsWait is how many events of a function may wait for a place of a flowing body.
	mostFlowsWait = 1024
	// slowAfter is how long a flowing body has had the function wait when it is judged, and
	// slowBytes how many bytes come meanwhile of one that is not slow.
	slowAfter = 5 * time.Second
	slowBytes = 4 << 10
)

// arriving is a body that knows whether all of it has arrived.
type arriving interface {
	Here() bool // no Read will block
}

// receive reads the body where it is short and has not come yet, and has one that flows wait
// for its turn. r is the caller's: what is different is in a copy. done is due once the
// function has the event.
func (ev *event) receive(r *Request) (_ *Request, done func(), err error) {
	done = func() {}
	if r.Body == nil || r.Size == 0 || r.Upgrade != "" {
		return r, done, nil
	}
	b, awaits := r.Body.(arriving)
	switch {
	case awaits && 0 < r.Size && r.Size <= keptBody && b.Here():
		r, err = ev.gather(r)
		return r, done, err
	case awaits && b.Here(), !awaits && r.Size >= 0:
		return r, done, nil
	case awaits && 0 < r.Size && r.Size <= shortBody:
		if received := &ev.f.e.received; received.Add(r.Size) <= mostReceived {
			r, err = ev.gather(r)
			return r, func() { received.Add(-r.Size) }, err
		}
		ev.f.e.received.Add(-r.Size)
	}
	if !awaits { // a call's: its function is done with a short body before the next step begins
		return r, done, nil
	}
	ev.meta.Flows = r.Size < 0
	if ev.f.agent { // its sandbox has one user
		return r, done, nil
	}
	if err := ev.f.flows.enter(&ev.ctx, ev.f); err != nil {
		return r, done, err
	}
	body := &flow{ev: ev, Reader: r.Body}
	ev.unflow = sync.OnceFunc(body.over)
	body.begin()
	flowing := *r
	flowing.Body = body
	return &flowing, done, nil
}

// gather reads a short body.
func (ev *event) gather(r *Request) (*Request, error) {
	gathered := make([]byte, r.Size)
	if _, err := io.ReadFull(r.Body, gathered); err != nil {
		if ev.ctx.Err() != nil { // it is why the Read was broken off
			return r, context.Cause(&ev.ctx)
		}
		return r, fmt.Errorf("invoke %s: read body: %w", ev.f.plain, err)
	}
	ev.gathered.Reset(gathered)
	ev.whole = *r
	ev.whole.Body = &ev.gathered
	return &ev.whole, nil
}

// flow is a body that holds one of the places of those that flow, until its end.
type flow struct {
	ev *event
	io.Reader
	due *time.Timer // of judge

	mu     sync.Mutex
	ended  bool          // its place is given back, or it is broken off
	asked  time.Time     // when the Read under way began, zero for none
	waited time.Duration // for the sender, since it was judged last
	came   int           // bytes meanwhile
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

func (b *flow) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due = time.AfterFunc(slowAfter, b.judge)
}

// judge breaks off a body whose sender has had the function wait for most of the time, and
// sent hardly anything, while others wait for the place. One that the function is slow to
// read is not slow.
func (b *flow) judge() {
	b.mu.Lock()
	if !b.asked.IsZero() {
		now := time.Now()
		b.waited += now.Sub(b.asked)
		b.asked = now
	}
	slow := b.waited > slowAfter/2 && b.came < slowBytes
	b.waited, b.came = 0, 0
	if b.ended {
		b.mu.Unlock()
		return
	}
	if b.ended = slow && b.ev.f.crowded(); !b.ended {
		b.due.Reset(slowAfter)
	}
	ended := b.ended
	b.mu.Unlock()
	if ended {
		b.ev.cancel(ErrSlowBody)
	}
}

// over gives the body's place back.
func (b *flow) over() {
	b.mu.Lock()
	b.ended = true
	b.due.Stop()
	b.mu.Unlock()
	b.ev.f.flows.leave()
}

// Close ends a Read that is under way.
func (b *flow) Close() error {
	if c, ok := b.Reader.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// flows are a function's events whose bodies are still coming.
type flows struct {
	mu      sync.Mutex
	n       int
	waiting []chan struct{}
}

// crowded says whether somebody waits for the places of bodies that flow: others with such
// bodies, or whoever where they are all that the function has.
func (f *function) crowded() bool {
	f.flows.mu.Lock()
	waiting := len(f.flows.waiting)
	f.flows.mu.Unlock()
	if f.places() == 1 {
		f.mu.Lock()
		waiting += len(f.waiters)
		f.mu.Unlock()
	}
	return waiting > 0
}

// places is how many events the function may have at once.
func (f *function) places() int { return f.config.Instances.Max * f.config.Instances.Concurrency }

// enter waits until fewer than half of the function's places are for such events.
func (s *flows) enter(ctx context.Context, f *function) error {
	most := max(1, f.places()/2)
	s.mu.Lock()
	switch {
	case s.n < most:
		s.n++
		s.mu.Unlock()
		return nil
	case len(s.waiting) >= mostFlowsWait:
		s.mu.Unlock()
		f.e.metrics.refuse(admission.QueueLength)
		return fmt.Errorf("%w: too many requests whose bodies are still arriving; retry later, or send a Content-Length", ErrOverloaded)
	}
	turn := make(chan struct{})
	s.waiting = append(s.waiting, turn)
	s.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(s.waiting, turn)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 { // it had its turn meanwhile
		s.leave()
	}
	return context.Cause(ctx)
}

// leave lets the next one in.
func (s *flows) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.n--
		return
	}
	close(s.waiting[0])
	s.waiting = s.waiting[1:]
}

// again makes the body readable once more, if it is in memory.
func (ev *event) again(r *Request) bool {
	if r.Body == nil || r.Size == 0 {
		return true
	}
	var err error
	switch b := r.Body.(type) {
	case *bytes.Reader:
		_, err = b.Seek(-r.Size, io.SeekEnd)
	case *strings.Reader:
		_, err = b.Seek(-r.Size, io.SeekEnd)
	default:
		return false
	}
	return err == nil
}
