package admission

import (
	"errors"
	"fmt"
	"time"
)

// The reasons of [Queue.Full].
const (
	QueueLength Reason = "queue_length" // as many wait as may
	QueueTime   Reason = "queue_time"   // who came now would wait for too long
)

// QueueConfig of a [Queue]. Zero values mean the documented defaults.
type QueueConfig struct {
	Length   int           // who may wait at most; default 1024
	Target   time.Duration // the wait that a standing queue may have; default 20 ms
	Interval time.Duration // for how long there may be more; default 100 ms
}

// Both are at least so many times what work keeps its place for: whoever asks for
// something slow can wait for it, too.
const (
	targetTurns   = 4
	intervalTurns = 10
)

// Check says what is wrong with a QueueConfig.
func (c QueueConfig) Check() error {
	switch {
	case c.Length < 0:
		return fmt.Errorf("queue: %d is negative", c.Length)
	case c.Target < 0 || c.Interval < 0:
		return errors.New("a time is negative")
	case c.Target > 0 && c.Interval > 0 && c.Target > c.Interval:
		return fmt.Errorf("queue_target: %v is more than queue_interval, %v", c.Target, c.Interval)
	}
	return nil
}

// Queue judges a queue for places that others keep: whether one more may wait in it,
// and who has waited in vain. It is Controlled Delay (RFC 8289) for requests: a queue
// that is empty now and then takes up bursts and does no harm, one that stands makes
// everybody wait and serves nobody sooner. It stands from when for Interval nobody has
// got a place within Target until it is empty.
//
//	not standing: who would wait no longer than Interval may wait
//	standing:     who would wait no longer than Target may wait
//
// CoDel drops at the queue's head what has waited, and Facebook's servers refuse what
// has waited for 5 ms of a standing queue, the newest first (Maurer, Fail at Scale, ACM
// Queue 13, 8, 2015). Here whoever comes is refused at once by the wait to be expected:
// how many wait, times what each keeps its place for, over the places (Little's law).
// So it costs nobody time, and a free place always finds somebody: with a time limit
// alone, work that takes longer than that would find an empty queue, and places stand
// idle. The order stays that of arrival. The newest first would serve those whose
// clients still wait, but as nobody waits for longer than Interval, all do.
//
// Waits for something else than places, such as for a program to start, are no fault
// of the queue: its owner says so by [Queue.Clear].
//
// A Queue is not safe for use by several goroutines: it lies beside the queue itself,
// below the same lock.
type Queue struct {
	cfg   QueueConfig
	keeps time.Duration // how long work keeps its place, smoothed; 0: not known
	above time.Time     // since when all who got a place have waited for more than the target; zero: not the last
	stand bool
}

// NewQueue returns a judge of an empty queue.
func NewQueue(cfg QueueConfig) Queue {
	if cfg.Length == 0 {
		cfg.Length = 1024
	}
	if cfg.Target == 0 {
		cfg.Target = 20 * time.Millisecond
	}
	if cfg.Interval == 0 {
		cfg.Interval = 100 * time.Millisecond
	}
	return Queue{cfg: cfg}
}

func (q *Queue) target() time.Duration   { return max(q.cfg.Target, targetTurns*q.keeps) }
func (q *Queue) interval() time.Duration { return max(q.cfg.Interval, intervalTurns*q.keeps) }

// Clear takes note that nobody waits, or that nobody could help it.
func (q *Queue) Clear() { q.above, q.stand = time.Time{}, false }

// Served takes note of somebody who got a place after a wait.
func (q *Queue) Served(now time.Time, waited time.Duration) {
	switch {
	case q.stand:
	case waited <= q.target():
		q.above = time.Time{}
	case q.above.IsZero():
		q.above = now
	default:
		q.stand = now.Sub(q.above) > q.interval()
	}
}

// Kept takes note of how long somebody had a place, who gives it back.
func (q *Queue) Kept(d time.Duration) {
	if q.keeps == 0 {
		q.keeps = d
		return
	}
	q.keeps += (d - q.keeps) / 8
}

// Full says why nobody may come to those who wait for that many places, or "". With no
// places, what counts is their number alone.
func (q *Queue) Full(waiting, places int) Reason {
	if waiting >= q.cfg.Length {
		return QueueLength
	}
	if places == 0 {
		return ""
	}
	most := q.interval()
	if q.stand {
		most = q.target()
	}
	if float64(waiting)*float64(q.keeps) > float64(most)*float64(places) {
		return QueueTime
	}
	return ""
}

// Stale says whether somebody who has waited for so long is to be refused after all, if
// others wait: the queue stands, and what the wait was expected to be has turned out
// wrong.
func (q *Queue) Stale(waited time.Duration) bool { return q.stand && waited > q.interval() }
