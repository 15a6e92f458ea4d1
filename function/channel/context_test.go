package channel

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestLazyContext: a lazyContext behaves as the result of context.WithDeadline, after any order of
// calls.
func TestLazyContext(t *testing.T) {
	type key struct{}
	gone := errors.New("gone")
	// ended says how a context of this kind ends.
	for name, test := range map[string]struct {
		deadline time.Time
		end      func(c *lazyContext, parent context.CancelCauseFunc)
		err      error
		cause    error
	}{
		"lasts":            {},
		"lasts for long":   {deadline: time.Now().Add(time.Hour)},
		"cancelled":        {end: func(c *lazyContext, _ context.CancelCauseFunc) { c.cancel() }, err: context.Canceled, cause: context.Canceled},
		"cancelled twice":  {end: func(c *lazyContext, _ context.CancelCauseFunc) { c.cancel(); c.cancel() }, err: context.Canceled, cause: context.Canceled},
		"its parent ended": {end: func(_ *lazyContext, parent context.CancelCauseFunc) { parent(gone) }, err: context.Canceled, cause: gone},
		"its time is over": {deadline: time.Now().Add(-time.Second), err: context.DeadlineExceeded, cause: context.DeadlineExceeded},
		"parent before":    {deadline: time.Now().Add(time.Hour), end: func(c *lazyContext, parent context.CancelCauseFunc) { parent(gone); c.cancel() }, err: context.Canceled, cause: gone},
	} {
		for asked, ask := range map[string]func(context.Context){
			"nothing": func(context.Context) {}, "Done": func(c context.Context) { c.Done() }, "Err": func(c context.Context) { _ = c.Err() },
		} {
			parent, end := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
			c := &lazyContext{parent: parent, deadline: test.deadline}
			ask(c)
			if test.end != nil {
				test.end(c, end)
			}
			ended := make(chan struct{})
			stop := context.AfterFunc(c, func() { close(ended) })
			child, cancel := context.WithCancelCause(c)
			if err, cause, inChild := c.Err(), context.Cause(c), context.Cause(child); !errors.Is(err, test.err) || !errors.Is(cause, test.cause) || !errors.Is(inChild, test.cause) {
				t.Errorf("%s, asked for %s: %v because of %v, in a child %v; want %v, %v", name, asked, err, cause, inChild, test.err, test.cause)
			}
			if at, ok := c.Deadline(); !at.Equal(test.deadline) || ok == test.deadline.IsZero() {
				t.Errorf("%s: deadline %v, %v", name, at, ok)
			}
			if c.Value(key{}) != "value" {
				t.Errorf("%s: a value is lost", name)
			}
			if test.err != nil {
				<-c.Done()
				<-ended
			} else if !stop() {
				t.Errorf("%s: it ended", name)
			}
			cancel(nil)
			end(nil)
			c.cancel()
			<-c.Done()
		}
	}
}

// TestLazyContextCancelled: a context that was cancelled before its deadline reports the
// cancellation, even after the deadline.
func TestLazyContextCancelled(t *testing.T) {
	c := &lazyContext{parent: t.Context(), deadline: time.Now().Add(-time.Second)}
	c.cancel()
	if !errors.Is(c.Err(), context.Canceled) {
		t.Errorf("ended by %v", c.Err())
	}
}

// TestLazyContextWaits: a waiting reader of Done notices the deadline.
func TestLazyContextWaits(t *testing.T) {
	c := &lazyContext{parent: t.Context(), deadline: time.Now().Add(20 * time.Millisecond)}
	if err := c.Err(); err != nil && time.Now().Before(c.deadline) {
		t.Errorf("ended before its time by %v", err)
	}
	<-c.Done()
	if !errors.Is(c.Err(), context.DeadlineExceeded) {
		t.Errorf("ended by %v", c.Err())
	}
	limited, end := context.WithDeadline(t.Context(), time.Now().Add(time.Hour))
	defer end()
	at, ok := (&lazyContext{parent: limited}).Deadline()
	if want, _ := limited.Deadline(); !ok || !at.Equal(want) {
		t.Errorf("the parent's deadline is %v, got %v, %v", want, at, ok)
	}
}
