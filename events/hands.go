package events

import "sync"

// hands knows the messages that this process has in hand. JetStream delivers a message again that
// it has heard nothing of for a while, such as after a pause of the whole process or the machine.
// It is safe for concurrent use.
type hands struct {
	mu    sync.Mutex
	held  map[attemptKey]bool
	ended map[attemptKey]bool // those in last
	last  []attemptKey        // a ring
	place int
}

// rememberHands is how many messages are known after they were acknowledged: they may have been
// delivered again just before that.
const rememberHands = 4096

func newHands() *hands {
	return &hands{held: map[attemptKey]bool{}, ended: map[attemptKey]bool{}, last: make([]attemptKey, rememberHands)}
}

// take takes a message into hand. It fails if the message is there already, and says so of one
// that was acknowledged.
func (h *hands) take(key attemptKey) (taken, ended bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held[key] || h.ended[key] {
		return false, h.ended[key]
	}
	h.held[key] = true
	return true, false
}

// drop gives a message out of hand; ended says that it was acknowledged.
func (h *hands) drop(key attemptKey, ended bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, key)
	if !ended {
		return
	}
	delete(h.ended, h.last[h.place])
	h.last[h.place] = key
	h.ended[key] = true
	h.place = (h.place + 1) % len(h.last)
}
