package load

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Histograms hold nanoseconds with three digits.
const (
	slowest = int64(10 * time.Minute) // what takes longer counts as this
	digits  = 3
)

// outcome is one request.
type outcome struct {
	due, sent, end time.Time
	answer         answer
	err            error
}

// recorder counts outcomes, in shards so that connections do not wait for each
// other.
type recorder struct {
	plan       *plan
	began      time.Time
	start, end time.Time // what was due in between is measured
	stopped    time.Time // when the last answer was there
	shards     []*shard
}

type shard struct {
	rec *recorder

	mu      sync.Mutex
	latency map[int]*hdrhistogram.Histogram // by status, 0 for errors: from when it was due
	service *hdrhistogram.Histogram         // from when it was sent
	errors  map[string]uint64
	bytes   uint64 // of bodies received
	last    time.Time
	broken  uint64        // under way when the run was ended
	waited  time.Duration // the longest of them
}

func newRecorder(p *plan) *recorder {
	r := &recorder{plan: p}
	shards := 1 // one goroutine takes the results of an open loop
	if p.Rate == 0 {
		shards = min(p.Connections, 2*runtime.GOMAXPROCS(0))
	}
	for range shards {
		r.shards = append(r.shards, &shard{
			rec: r, latency: map[int]*hdrhistogram.Histogram{}, service: newHistogram(), errors: map[string]uint64{},
		})
	}
	return r
}

// shard is that of a connection.
func (r *recorder) shard(i int) *shard { return r.shards[i%len(r.shards)] }

// run measures what loop does.
func (r *recorder) run(ctx context.Context, loop func(context.Context)) {
	r.began = time.Now()
	r.start = r.began.Add(r.plan.WarmUp)
	r.end = r.start.Add(r.plan.Duration)
	loop(ctx)
	r.stopped = time.Now()
}

// add counts an outcome, unless it was due in the warm-up.
func (s *shard) add(o outcome) {
	if o.due.Before(s.rec.start) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.end.After(s.last) {
		s.last = o.end
	}
	status := o.answer.status
	if o.err != nil {
		s.errors[o.err.Error()]++
		status = 0
	}
	s.bytes += uint64(o.answer.bytes)
	h := s.latency[status]
	if h == nil {
		h = newHistogram()
		s.latency[status] = h
	}
	record(h, o.end.Sub(o.due))
	record(s.service, o.end.Sub(o.sent))
}

// unfinished notes a request that the end of the run has cut off at now.
func (s *shard) unfinished(due, now time.Time) {
	if due.Before(s.rec.start) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken++
	s.waited = max(s.waited, now.Sub(due))
}

// Recorder sums up the requests of a closed loop that another package runs: viewers that
// call by Clients. Its methods may be called from several goroutines.
type Recorder struct{ rec *recorder }

// NewRecorder is for calls to url by a number of clients, in a run that begins now and is to
// take duration.
func NewRecorder(url string, clients int, began time.Time, duration time.Duration) *Recorder {
	p := &plan{Config: Config{URL: url, Method: "GET", Connections: clients, Duration: duration}}
	r := newRecorder(p)
	r.began, r.start, r.end = began, began, began.Add(duration)
	return &Recorder{r}
}

// Add counts a call of a client, from its sending to the last of its answer, or to err.
func (r *Recorder) Add(client int, sent, end time.Time, a Answer, err error) {
	r.rec.shard(client).add(outcome{due: sent, sent: sent, end: end, answer: answer{status: a.Status, bytes: a.Bytes}, err: err})
}

// Unfinished notes a call that the end of the run has cut off at now.
func (r *Recorder) Unfinished(client int, sent, now time.Time) {
	r.rec.shard(client).unfinished(sent, now)
}

// Report sums up what was added, once nothing is any more. The run has ended at stopped.
func (r *Recorder) Report(stopped time.Time, interrupted bool) *Report {
	r.rec.stopped = stopped
	return r.rec.report(interrupted)
}

// NewHistogram is for durations in nanoseconds up to ten minutes, with the given number of
// significant digits.
func NewHistogram(digits int) *hdrhistogram.Histogram {
	return hdrhistogram.New(1, slowest, digits)
}

// Record counts a duration.
func Record(h *hdrhistogram.Histogram, d time.Duration) { record(h, d) }

func newHistogram() *hdrhistogram.Histogram { return NewHistogram(digits) }

func record(h *hdrhistogram.Histogram, d time.Duration) {
	// In these bounds there is no error.
	_ = h.RecordValue(min(max(int64(d), 1), slowest))
}
