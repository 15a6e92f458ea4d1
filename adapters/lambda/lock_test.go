package lambda

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
)

// TestLocks: changes of one function run one after the other; changes of different functions run at
// the same time. The queue is limited, and a cancelled wait leaves nothing behind.
func TestLocks(t *testing.T) {
	var l locks
	take := func(ctx context.Context, function string) func() {
		t.Helper()
		unlock, err := l.take(ctx, function)
		if err != nil {
			t.Fatal(err)
		}
		return unlock
	}
	held := take(t.Context(), "a")
	for _, other := range []string{"b", "c", "d"} {
		defer take(t.Context(), other)()
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client has gone")
	var waiters sync.WaitGroup
	errs := make(chan error, maxWaiting)
	for range maxWaiting {
		waiters.Go(func() {
			unlock, err := l.take(ctx, "a")
			if err == nil {
				unlock()
			}
			errs <- err
		})
	}
	for { // until all wait
		l.mu.Lock()
		n := l.of["a"].users
		l.mu.Unlock()
		if n == maxWaiting+1 {
			break
		}
	}
	_, err := l.take(t.Context(), "a")
	if f, ok := errors.AsType[*awsError](err); !ok || f.status != http.StatusConflict || f.kind != "ResourceConflictException" {
		t.Errorf("one more: %v, want a ResourceConflictException", err)
	}
	cancel(gone)
	for range maxWaiting {
		if err := <-errs; !errors.Is(err, gone) {
			t.Errorf("one that is given up: %v", err)
		}
	}
	waiters.Wait()
	held()
	changing := 0 // the race detector also watches this variable
	for range 2 * maxWaiting {
		waiters.Go(func() {
			unlock, err := l.take(t.Context(), "a")
			if err != nil {
				return // too many wait
			}
			defer unlock()
			if changing++; changing != 1 {
				t.Errorf("%d change it at once", changing)
			}
			changing--
		})
	}
	waiters.Wait()
	if len(l.of) != 3 {
		t.Errorf("%d functions have locks, want b, c and d", len(l.of))
	}
}
