package events

import (
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// deliveries knows the messages that this process works on, and counts the attempts at each.
// deliveries is safe for concurrent use.
type deliveries struct {
	log      *slog.Logger
	opened   time.Time // when the engine started to count
	hands    *hands
	attempts *attempts // nil: the external server counts
}

// verdict says how a message continues after an attempt.
type verdict struct {
	again bool // deliver again; false: the message was acknowledged
	after time.Duration
}

// take reports whether to work on a message: false if this process already does or did.
func (d *deliveries) take(key attemptKey, msg jetstream.Msg) bool {
	taken, ended := d.hands.take(key)
	if ended {
		_ = msg.Ack() // the first acknowledgement may be lost
	}
	return taken
}

// release drops a message from hands, and only then lets it be delivered again. Errors are ignored:
// if the connection fails, the server delivers the message again anyway.
func (d *deliveries) release(key attemptKey, msg jetstream.Msg, v verdict) {
	d.hands.drop(key, !v.again)
	switch {
	case !v.again:
	case v.after > 0:
		_ = msg.NakWithDelay(v.after)
	default:
		_ = msg.Nak()
	}
}

// keepDelivered tells the server at intervals that work on the message goes on, until stop is
// called.
func keepDelivered(msg jetstream.Msg, every time.Duration) (stop func()) {
	var mu sync.Mutex
	var t *time.Timer
	over := false
	mu.Lock()
	defer mu.Unlock()
	t = time.AfterFunc(every, func() {
		_ = msg.InProgress() // fails only with the connection
		mu.Lock()
		defer mu.Unlock()
		if !over { // otherwise the timer would run for ever
			t.Reset(every)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		t.Stop()
	}
}

// count counts an attempt, durably, before the attempt begins. It returns the attempt's number and
// whether the end of an engine broke off the attempt before. External NATS servers outlive the
// engine, so their count of deliveries serves.
func (d *deliveries) count(key attemptKey, meta *jetstream.MsgMetadata) (n int, broken bool, err error) {
	if d.attempts == nil {
		return int(meta.NumDelivered), false, nil //nolint:gosec // no message has so many deliveries
	}
	return d.attempts.begin(key, meta.Timestamp.Before(d.opened))
}

// wait notes that n attempts of a message count, and that another may follow.
func (d *deliveries) wait(key attemptKey, n int) {
	if d.attempts == nil {
		return
	}
	if err := d.attempts.wait(key, n); err != nil {
		d.log.Error("events: end of an attempt not recorded; the attempt counts as broken off if the engine ends", "error", err)
	}
}

// end forgets the attempts of a finished message.
func (d *deliveries) end(key attemptKey) {
	if d.attempts == nil {
		return
	}
	if err := d.attempts.end(key); err != nil {
		d.log.Error("events: end of an event not noted in the count of attempts", "error", err)
	}
}

// publishTries is how often the engine may end while accepting an event that the engine publishes
// again by itself (Options.Repeated).
const publishTries = 3

// countPublish counts an attempt to accept a repeated event, and refuses an event whose earlier
// attempts all ended the engine. The caller calls over after the attempt.
func (d *deliveries) countPublish(id string) (over func(), err error) {
	if d.attempts == nil {
		return func() {}, nil
	}
	key := keyOfText(attemptPublish, id)
	n, _, err := d.attempts.begin(key, false)
	switch {
	case err != nil:
		d.wait(key, n-1)
		return nil, refuse(ErrStorage, "%v", err)
	case n > publishTries:
		d.wait(key, publishTries)
		return nil, refuse(ErrBadEvent, "the engine ended %d times during the publication of the event", publishTries)
	}
	return func() { d.end(key) }, nil
}
