package admission

import (
	"errors"
	"fmt"
	"time"
)

// The reasons of [Queue.Full].
const (
	QueueLength Reason = "queue_length" // the queue has its full length
	QueueTime   Reason = "queue_time"   // a new request would wait too long
)

// QueueConfig of a [Queue]. A zero value means the documented default.
type QueueConfig struct {
	Length   int           // most waiting requests; default 1024
	Target   time.Duration // longest acceptable wait in a standing queue; default 20 ms
	Interval time.Duration // longest time above Target, and longest wait in a queue that does not stand; default 100 ms
}

// Target and Interval are at least this many times the mean time that work holds a slot:
// requests for slow work can wait longer.
const (
	targetTurns   = 4
	intervalTurns = 10
)

// Check returns an error if a field is out of range.
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

// Queue judges a queue for slots; a slot is the right of one request to run. Queue decides
// whether one more request may wait, and which requests have waited in vain. Queue is Controlled
// Delay (RFC 8289) for requests. A queue that is empty now and then absorbs bursts and does no
// harm. A standing queue makes every request wait and serves none sooner. A queue stands after
// no request has got a slot within Target during Interval, until the queue is empty.
//
//	not standing: a request may wait if the expected wait is at most Interval
//	standing:     a request may wait if the expected wait is at most Target
//
// CoDel drops requests at the queue's head after their wait. Facebook's servers refuse requests
// that have waited 5 ms in a standing queue, and serve the newest first (Maurer, Fail at Scale,
// ACM Queue 13, 8, 2015). Queue refuses a new request at once by the expected wait (Little's
// law): waiting requests × time that each request holds a slot ÷ slots. So a refusal costs no
// time, and a free slot always finds a request. With a time limit alone, work that takes longer
// than the limit would find an empty queue and leave slots idle. Requests are served in order
// of arrival. Newest first would serve the clients that still wait. But no request waits longer
// than Interval, so all clients still wait.
//
// Waits for a resource other than a slot, such as a program's start, do not make a queue stand.
// The owner reports such waits by [Queue.Clear].
//
// A Queue is not safe for use by several goroutines. The owner guards the Queue by the lock of
// the queue itself.
type Queue struct {
	cfg   QueueConfig
	keeps time.Duration // how long work holds its slot, smoothed; 0: not known
	above time.Time     // since when every wait for a slot has been longer than the target; zero: the last was not
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

// Clear records that no request waits, or that requests wait for anything but a slot.
func (q *Queue) Clear() { q.above, q.stand = time.Time{}, false }

// Served records that a request got a slot after a wait.
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

// Kept records how long a request held the slot that it gives back.
func (q *Queue) Kept(d time.Duration) {
	if q.keeps == 0 {
		q.keeps = d
		return
	}
	q.keeps += (d - q.keeps) / 8
}

// Full returns why no more request may join a queue of this many waiting requests for this many
// slots, or "". With 0 slots only the length counts.
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

// Stale reports whether a request that has waited this long is refused after all, if further
// requests wait: the queue stands, and the wait has exceeded the estimate.
func (q *Queue) Stale(waited time.Duration) bool { return q.stand && waited > q.interval() }
