package events

import (
	"context"
	"time"
)

const (
	// idleQueue is how long a queue waits for another event before the queue ends. A publication on
	// this node starts the queue again at once; scan finds events that other nodes published.
	idleQueue = 30 * time.Second
	// noRoom is how long to wait while the engine has no room, unless an event ends earlier.
	noRoom = 20 * time.Millisecond
	// gather is how long to collect events that end before asking for more.
	gather = 2 * time.Millisecond
	// retryStream is how long to wait after an error of NATS.
	retryStream = time.Second
	// lookForRoom is how often a node that waits for an event checks whether the engine has room.
	lookForRoom = 50 * time.Millisecond
)

// sleep waits for d; false means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
