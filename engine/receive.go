package engine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/fre-engine/fre/engine/admission"
)

// A slow client must not occupy the function's concurrency. A short body is read before its
// event takes a place. A flowing body, which is long or of unknown length, takes a place at
// once; at most half of the function's places are for events with flowing bodies.

const (
	// shortBody is how long a body may be, in bytes, that is read before its event takes a
	// place: a pipe takes it though nobody reads yet.
	shortBody = smallBody
	// mostReceived bounds the memory of all short bodies under way, in bytes. Beyond it a
	// short body flows.
	mostReceived = 64 << 20
	// mostFlowsWait is how many events of a function may wait for a place of a flowing body.
	mostFlowsWait = 1024
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
	ev.unflow = sync.OnceFunc(ev.f.flows.leave)
	flowing := *r
	flowing.Body = &flow{ev, r.Body}
	return &flowing, done, nil
}

// gather reads a short body.
func (ev *event) gather(r *Request) (*Request, error) {
	ev.gathered = make([]byte, r.Size)
	if _, err := io.ReadFull(r.Body, ev.gathered); err != nil {
		if ev.ctx.Err() != nil { // it is why the Read was broken off
			return r, context.Cause(&ev.ctx)
		}
		return r, fmt.Errorf("invoke %s: read body: %w", ev.f.plain, err)
	}
	whole := *r
	whole.Body = bytes.NewReader(ev.gathered)
	ev.whole = &whole
	return ev.whole, nil
}

// flow is a body that holds one of the places of those that flow, until its end.
type flow struct {
	ev *event
	io.Reader
}

func (b *flow) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		b.ev.unflow()
	}
	return n, err
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

// enter waits until fewer than half of the function's places are for such events.
func (s *flows) enter(ctx context.Context, f *function) error {
	most := max(1, f.config.Instances.Max*f.config.Instances.Concurrency/2)
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

// again makes the body readable once more, if it was gathered.
func (ev *event) again(r *Request) bool {
	switch b, ok := r.Body.(*bytes.Reader); {
	case r.Body == nil || r.Size == 0:
		return true
	case ok && ev.gathered != nil:
		_, err := b.Seek(0, io.SeekStart)
		return err == nil
	}
	return false
}
