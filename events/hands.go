package events

import "sync"

// hands knows the messages that this process works on. JetStream redelivers a message after a
// silence, for example after a pause of the process or of the machine; hands keeps the process from
// working on a message twice. hands is safe for concurrent use.
type hands struct {
	mu    sync.Mutex
	held  map[attemptKey]bool
	ended map[attemptKey]bool // the keys in last
	last  []attemptKey        // a ring
	next  int
}

// rememberHands is how many acknowledged messages are remembered. JetStream may have redelivered a
// message just before the acknowledgement.
const rememberHands = 4096

func newHands() *hands {
	return &hands{held: map[attemptKey]bool{}, ended: map[attemptKey]bool{}, last: make([]attemptKey, rememberHands)}
}

// take marks a message as being worked on. taken is false if work is under way or done; ended then
// says that the message was acknowledged.
func (h *hands) take(key attemptKey) (taken, ended bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held[key] || h.ended[key] {
		return false, h.ended[key]
	}
	h.held[key] = true
	return true, false
}

// drop ends the work on a message; ended says that the message was acknowledged.
func (h *hands) drop(key attemptKey, ended bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, key)
	if !ended {
		return
	}
	delete(h.ended, h.last[h.next])
	h.last[h.next] = key
	h.ended[key] = true
	h.next = (h.next + 1) % len(h.last)
}
