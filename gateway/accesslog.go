package gateway

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

// accessQueue is how many requests may wait to be written.
const accessQueue = 8192

// access is a request as the access log tells of it, a line of JSON. The query is
// left out: it may hold what only the function should know.
type access struct {
	Time       time.Time `json:"time"` // when the head was read
	ID         string    `json:"request_id"`
	Client     string    `json:"client,omitempty"` // address
	Method     string    `json:"method,omitempty"`
	Path       string    `json:"path,omitempty"`
	Status     int       `json:"status"`
	Bytes      int64     `json:"bytes"` // of the answer's body, as far as it was sent
	Micros     int64     `json:"micros"`
	Function   string    `json:"function,omitempty"`
	Invocation string    `json:"invocation,omitempty"`
	Cold       bool      `json:"cold"`
	Error      string    `json:"error,omitempty"` // code of what went wrong
}

// lostLine says in the log's place how many lines are missing there.
type lostLine struct {
	Time time.Time `json:"time"`
	Lost uint64    `json:"lost"`
}

// AccessLog writes a line for each request, on a goroutine of its own: no request
// waits for it. What comes while too many wait is counted, and told in the log.
type AccessLog struct {
	to   io.Writer
	log  *slog.Logger
	done chan struct{}
	lost atomic.Uint64 // not told yet
	all  prometheus.Counter

	mu     sync.RWMutex // read by senders
	closed bool
	queue  chan access
}

// NewAccessLog writes to w, which stays the caller's. reg, unless nil, counts what is
// lost.
func NewAccessLog(w io.Writer, log *slog.Logger, reg prometheus.Registerer) *AccessLog {
	return newAccessLog(w, log, reg, accessQueue)
}

func newAccessLog(w io.Writer, log *slog.Logger, reg prometheus.Registerer, queue int) *AccessLog {
	l := &AccessLog{
		to: w, log: log, done: make(chan struct{}), queue: make(chan access, queue),
		all: prometheus.NewCounter(prometheus.CounterOpts{Name: "fre_access_log_lost_total", Help: "Requests that the access log does not tell of."}),
	}
	if reg != nil {
		reg.MustRegister(l.all)
	}
	go l.write()
	return l
}

func (l *AccessLog) add(a access) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if !l.closed {
		select {
		case l.queue <- a:
			return
		default:
		}
	}
	l.lost.Add(1)
	l.all.Inc()
}

// write tells of what comes, and hands it on whenever nothing more is there.
func (l *AccessLog) write() {
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
	for a := range l.queue {
		note(a)
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

// Close writes what waits. Where that does not end within a second it is given up.
func (l *AccessLog) Close() error {
	l.mu.Lock()
	closed := l.closed
	if l.closed = true; !closed {
		close(l.queue)
	}
	l.mu.Unlock()
	select {
	case <-l.done:
	case <-time.After(time.Second):
		l.log.Warn("access log cannot be written: its last lines are lost")
	}
	return nil
}
