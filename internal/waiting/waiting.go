// Package waiting has a queue of goroutines that wait for a grant in order of arrival and may
// give up.
//
// The owner of a [Queue] guards the queue by a mutex of its own, because a grant belongs to the
// owner's other state: a free slot, an idle instance. The mutex is free during the wait:
//
//	waiting goroutine                   owner, with the mutex held
//	Queue.Push (mutex held) ──▶ queue
//	Waiter.Wait             ◀────────── Queue.Grant
//	  └─ ctx ends: leave the queue; a grant that came meanwhile is given back
package waiting

import (
	"context"
	"sync"
)

// Queue holds goroutines, oldest first. Each waits with a Request, for example the time of its
// arrival, and gets a Grant. The zero value is an empty queue. All methods expect the owner's
// mutex held.
type Queue[Request, Grant any] struct {
	first, last *Waiter[Request, Grant]
	n           int
}

// Waiter is a goroutine in a Queue.
type Waiter[Request, Grant any] struct {
	queue      *Queue[Request, Grant] // nil after the grant or after Leave
	prev, next *Waiter[Request, Grant]
	request    Request
	granted    chan Grant // buffers the only grant: Grant never blocks
}

// Push adds a waiter at the end of the queue. The caller then calls Wait without the mutex, or
// Leave.
func (q *Queue[R, G]) Push(request R) *Waiter[R, G] {
	w := &Waiter[R, G]{queue: q, prev: q.last, request: request, granted: make(chan G, 1)}
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.n++
	return w
}

// Len returns the number of waiters.
func (q *Queue[R, G]) Len() int { return q.n }

// First returns the request of the oldest waiter. The queue must not be empty.
func (q *Queue[R, G]) First() R { return q.first.request }

// Grant takes the oldest waiter out of the queue and lets its Wait return g. The queue must not
// be empty.
func (q *Queue[R, G]) Grant(g G) {
	w := q.first
	w.Leave()
	w.granted <- g
}

// Leave takes w out of its queue, and reports whether w was still there. It expects the owner's
// mutex held.
func (w *Waiter[R, G]) Leave() bool {
	q := w.queue
	if q == nil {
		return false
	}
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	q.n--
	w.queue, w.prev, w.next = nil, nil, nil
	return true
}

// Wait returns the grant. If ctx ends first, w leaves the queue and Wait returns the cause of
// ctx. If a grant came between the end of ctx and the leave, Wait calls giveBack with the grant,
// without the mutex. mu is the owner's mutex; the caller does not hold it.
func (w *Waiter[R, G]) Wait(ctx context.Context, mu sync.Locker, giveBack func(G)) (g G, err error) {
	select {
	case g = <-w.granted:
		return g, nil
	case <-ctx.Done():
	}
	mu.Lock()
	left := w.Leave()
	mu.Unlock()
	if !left {
		giveBack(<-w.granted)
	}
	return g, context.Cause(ctx)
}
