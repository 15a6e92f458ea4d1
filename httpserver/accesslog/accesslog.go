// Package accesslog writes one line of JSON per request without delaying requests.
package accesslog

import (
	"bufio"
	"encoding/json"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// waiting limits the requests queued for writing.
const waiting = 8192

// lostLine stands in the log in place of lost lines.
type lostLine struct {
	Time time.Time `json:"time"`
	Lost uint64    `json:"lost"`
}

// Log writes a line for each request, an R, on its own goroutine: requests never wait. Requests
// beyond the queue are counted, and the log records the count. To rotate the log file, copy and
// truncate it.
type Log[R any] struct {
	to   io.Writer
	log  *slog.Logger
	done chan struct{}
	lost atomic.Uint64 // lost since the last lostLine
	all  prometheus.Counter

	mu     sync.RWMutex // read-locked by Add
	closed bool
	queue  chan R
}

// New starts a log to w, which stays the caller's. If reg is not nil, New registers a counter of
// lost requests.
func New[R any](w io.Writer, log *slog.Logger, reg prometheus.Registerer) *Log[R] {
	return newLog[R](w, log, reg, waiting)
}

func newLog[R any](w io.Writer, log *slog.Logger, reg prometheus.Registerer, queue int) *Log[R] {
	l := &Log[R]{
		to: w, log: log, done: make(chan struct{}), queue: make(chan R, queue),
		all: prometheus.NewCounter(prometheus.CounterOpts{Name: "fre_access_log_lost_total", Help: "Requests missing in the access log."}),
	}
	if reg != nil {
		reg.MustRegister(l.all)
	}
	go l.write()
	return l
}

// Add logs a request. r must not change afterwards.
func (l *Log[R]) Add(r R) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if !l.closed {
		select {
		case l.queue <- r:
			return
		default:
		}
	}
	l.lost.Add(1)
	l.all.Inc()
}

// write writes queued requests and flushes whenever the queue is empty.
func (l *Log[R]) write() {
	defer close(l.done)
	w := bufio.NewWriterSize(l.to, 64<<10)
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	failing := false
	note := func(v any) {
		if err := lines.Encode(v); err != nil {
			l.all.Inc()
			if !failing {
				l.log.Warn("access log cannot be written: requests go on without", "error", err)
			}
			failing = true
			w.Reset(l.to)
		}
	}
	for r := range l.queue {
		note(r)
		if n := l.lost.Swap(0); n > 0 {
			note(lostLine{time.Now(), n})
		}
		if len(l.queue) > 0 {
			continue
		}
		if err := w.Flush(); err != nil {
			if !failing {
				l.log.Warn("access log cannot be written: requests go on without", "error", err)
			}
			failing = true
			w.Reset(l.to)
		} else {
			failing = false
		}
	}
}

// Close writes the queued requests. It gives up after a second.
func (l *Log[R]) Close() error {
	l.mu.Lock()
	closed := l.closed
	if l.closed = true; !closed {
		close(l.queue)
	}
	l.mu.Unlock()
	select {
	case <-l.done:
	case <-time.After(time.Second):
		l.log.Warn("access log cannot be written: the last lines are lost")
	}
	return nil
}
