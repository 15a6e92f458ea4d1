package channel

import (
	"context"
	"sync"
	"time"
)

// lazyContext ends with another context, at a deadline, or when it is cancelled. What that
// takes (a timer, a channel, a place in the other's list) is made once somebody waits for
// it: few handlers of small events do.
type lazyContext struct {
	parent   context.Context
	deadline time.Time // none if zero

	mu     sync.Mutex
	over   bool            // cancelled
	made   context.Context // or nil
	finish context.CancelFunc
}

// make returns the context that this one stands for.
func (c *lazyContext) make() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		if c.deadline.IsZero() || c.over { // cancelled is cancelled, however late that is
			c.made, c.finish = context.WithCancel(c.parent)
		} else {
			c.made, c.finish = context.WithDeadline(c.parent, c.deadline)
		}
		if c.over {
			c.finish()
		}
	}
	return c.made
}

func (c *lazyContext) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.finish != nil {
		c.finish()
	}
}

// Deadline is the earlier one of both contexts.
func (c *lazyContext) Deadline() (time.Time, bool) {
	if at, ok := c.parent.Deadline(); ok && (c.deadline.IsZero() || at.Before(c.deadline)) {
		return at, true
	}
	return c.deadline, !c.deadline.IsZero()
}

// Done makes the context.
func (c *lazyContext) Done() <-chan struct{} { return c.make().Done() }

// Err makes the context once it has ended.
func (c *lazyContext) Err() error {
	c.mu.Lock()
	lasts := c.made == nil && !c.over && c.parent.Err() == nil && (c.deadline.IsZero() || time.Now().Before(c.deadline))
	c.mu.Unlock()
	if lasts {
		return nil
	}
	return c.make().Err()
}

// Value has what package context asks of a context that was made, too: context.Cause and
// contexts derived from this one, which both ask for Err or Done before.
func (c *lazyContext) Value(key any) any {
	c.mu.Lock()
	made := c.made
	c.mu.Unlock()
	if made == nil {
		made = c.parent
	}
	return made.Value(key)
}
