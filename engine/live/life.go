// Package live knows everything that runs now. It is the ground of package engine, below
// functions, containers and builds:
//
//   - [Life] counts the work in flight, so that the engine can stop.
//   - [Table] holds the live sandboxes of every origin, each a [Box], and the last ended ones.
//     [List] is the client's view of the table.
//   - [Log] keeps the output of sandboxes.
//   - [Tenants] knows identities, /work and quotas. [Holds] keeps images from removal.
//
// Lock order: Table.mu, Log.mu. The callback Box.State may lock the caller's mutex, and is called
// without a lock of this package.
package live

import (
	"context"
	"fmt"
	"sync"

	"github.com/fre-engine/fre/failure"
)

// ErrClosed refuses work of an engine that stops.
var ErrClosed = failure.New(failure.Stopping, "engine is stopping", "")

// Life counts work in flight. It is safe for use by several goroutines.
type Life struct {
	ctx   context.Context
	abort func()
	ended chan struct{}

	mu      sync.Mutex
	closed  chan struct{}
	flight  sync.WaitGroup
	workers sync.WaitGroup
}

// NewLife returns the life of an engine that starts now.
func NewLife() *Life {
	ctx, abort := context.WithCancelCause(context.Background())
	return &Life{ctx: ctx, abort: func() { abort(ErrClosed) }, closed: make(chan struct{}), ended: make(chan struct{})}
}

// Begin counts a unit of work; the caller calls Done at its end. Error: ErrClosed after Close.
func (l *Life) Begin() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Stopping() {
		return ErrClosed
	}
	l.flight.Add(1)
	return nil
}

// BeginBeneath is Begin for a unit that another unit in flight waits for. It succeeds after Close
// too.
func (l *Life) BeginBeneath() { l.flight.Add(1) }

// Done ends a unit of work.
func (l *Life) Done() { l.flight.Done() }

// Spawn runs f in a goroutine that End waits for.
func (l *Life) Spawn(f func()) { l.workers.Go(f) }

// While runs f as a unit of work. f's context ends with ErrClosed when Drain gives up waiting.
func (l *Life) While(ctx context.Context, f func(context.Context) error) error {
	if err := l.Begin(); err != nil {
		return err
	}
	defer l.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(l.ctx, func() { cancel(ErrClosed) })
	defer stop()
	return f(ctx)
}

// Close refuses further units of work. It reports whether this call was the first.
func (l *Life) Close() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Stopping() {
		return false
	}
	close(l.closed)
	return true
}

// Drain waits after Close until no work is in flight, at most until ctx ends, and then ends
// Context. The returned function waits for the rest of the work.
func (l *Life) Drain(ctx context.Context) (wait func(), err error) {
	drained := make(chan struct{})
	go func() { l.flight.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-ctx.Done():
		err = fmt.Errorf("drain: %w", context.Cause(ctx))
	}
	l.abort()
	return func() { <-drained }, err
}

// End waits for all goroutines of Spawn, then closes Ended.
func (l *Life) End() {
	l.workers.Wait()
	close(l.ended)
}

// Stopping reports whether Close was called.
func (l *Life) Stopping() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// Closed returns a channel that Close closes.
func (l *Life) Closed() <-chan struct{} { return l.closed }

// Ended returns a channel that is closed after the last sandbox and the last goroutine have
// ended.
func (l *Life) Ended() <-chan struct{} { return l.ended }

// Context returns the context of work that has no caller. It ends with ErrClosed when Drain gives
// up waiting.
func (l *Life) Context() context.Context { return l.ctx }
