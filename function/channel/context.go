package channel

import (
	"context"
	"sync"
	"time"
)

// lazyContext ends with its parent, at a deadline, or when it is cancelled. It makes the real
// context (a timer, a channel, an entry in the parent's list) only when a handler waits for it:
// few handlers of small events do.
type lazyContext struct {
	parent   context.Context
	deadline time.Time // zero: none

	mu     sync.Mutex
	over   bool            // cancelled
	made   context.Context // nil until make
	finish context.CancelFunc
}

// make returns the real context.
func (c *lazyContext) make() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		if c.deadline.IsZero() || c.over { // a cancelled context needs no deadline
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

// Deadline returns the earlier deadline of parent and own.
func (c *lazyContext) Deadline() (time.Time, bool) {
	if at, ok := c.parent.Deadline(); ok && (c.deadline.IsZero() || at.Before(c.deadline)) {
		return at, true
	}
	return c.deadline, !c.deadline.IsZero()
}

// Done makes the real context.
func (c *lazyContext) Done() <-chan struct{} { return c.make().Done() }

// Err makes the real context once it has ended.
func (c *lazyContext) Err() error {
	c.mu.Lock()
	lasts := c.made == nil && !c.over && c.parent.Err() == nil && (c.deadline.IsZero() || time.Now().Before(c.deadline))
	c.mu.Unlock()
	if lasts {
		return nil
	}
	return c.make().Err()
}

// Value forwards to the real context if it is made. Package context looks up its own keys there,
// for context.Cause and derived contexts, after Err or Done has made the context.
func (c *lazyContext) Value(key any) any {
	c.mu.Lock()
	made := c.made
	c.mu.Unlock()
	if made == nil {
		made = c.parent
	}
	return made.Value(key)
}
