package lambda

import (
	"context"
	"net/http"
	"sync"
)

// maxWaiting is the maximum number of changes of one function that wait for the current change.
// Each waiting change may have code on disk.
const maxWaiting = 4

// locks serializes the changes of each function. A change may take as long as a build. Changes
// of different functions are independent.
type locks struct {
	mu sync.Mutex
	of map[string]*lock
}

type lock struct {
	token chan struct{} // held by the current change
	users int           // the current change and the waiting changes
}

// take waits for the function's lock. Errors: a ResourceConflictException if too many changes
// wait already, as in AWS while an update is in progress; or the cause of ctx.
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
