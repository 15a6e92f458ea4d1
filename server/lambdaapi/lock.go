package lambdaapi

import (
	"context"
	"net/http"
	"sync"
)

// maxWaiting is how many changes of one function wait for the one under way: each may have
// its code on disk.
const maxWaiting = 4

// locks have changes of one function come one after the other. A change may take as long as
// a build; it keeps nobody from changing another function.
type locks struct {
	mu sync.Mutex
	of map[string]*lock
}

type lock struct {
	token chan struct{} // held by who changes the function
	users int           // that one and those who wait
}

// take waits until nobody else changes a function. Errors: a ResourceConflictException where
// too many wait already, as of AWS while an update is in progress; the cause of ctx.
func (l *locks) take(ctx context.Context, function string) (unlock func(), err error) {
	l.mu.Lock()
	if l.of == nil {
		l.of = map[string]*lock{}
	}
	f := l.of[function]
	if f == nil {
		f = &lock{token: make(chan struct{}, 1)}
		l.of[function] = f
	}
	if f.users > maxWaiting {
		l.mu.Unlock()
		return nil, refuse(http.StatusConflict, "ResourceConflictException", "The operation cannot be performed at this time. An update is in progress for the function: %s", function)
	}
	f.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if f.users--; f.users == 0 {
			delete(l.of, function)
		}
	}
	select {
	case f.token <- struct{}{}:
		return func() { <-f.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// lock is take for the function of a request.
func (s *server) lock(c *call) (unlock func(), err error) { return s.locks.take(c.r.Context(), c.on) }
