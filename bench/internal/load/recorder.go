package load

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Histograms hold nanoseconds with three significant digits.
const (
	slowest = int64(10 * time.Minute) // longer times are counted as slowest
	digits  = 3
)

// outcome is the result of one request.
type outcome struct {
	due, sent, end time.Time
	answer         answer
	err            error
}

// recorder counts outcomes in shards, to keep connections from waiting for each other.
type recorder struct {
	plan       *plan
	began      time.Time
	start, end time.Time // requests due between start and end are measured
	stopped    time.Time // when the loop returned
	shards     []*shard
}

type shard struct {
	rec *recorder

	mu      sync.Mutex
	latency map[int]*hdrhistogram.Histogram // by status, 0 for errors; from the due time
	service *hdrhistogram.Histogram         // from the sending time
	errors  map[string]uint64
	bytes   uint64 // of bodies received
	last    time.Time
	broken  uint64        // requests in progress when the run was interrupted
	waited  time.Duration // the longest wait among the broken requests
}

func newRecorder(p *plan) *recorder {
	r := &recorder{plan: p}
	shards := 1 // only one goroutine receives the results of an open loop
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

// shard returns the shard of connection i.
func (r *recorder) shard(i int) *shard { return r.shards[i%len(r.shards)] }

// run sets the recorder's times and runs loop.
func (r *recorder) run(ctx context.Context, loop func(context.Context)) {
	r.began = time.Now()
	r.start = r.began.Add(r.plan.WarmUp)
	r.end = r.start.Add(r.plan.Duration)
	loop(ctx)
	r.stopped = time.Now()
}

// add counts an outcome, unless the request was due during the warm-up.
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

// unfinished records a request that the end of the run interrupted at now.
func (s *shard) unfinished(due, now time.Time) {
	if due.Before(s.rec.start) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken++
	s.waited = max(s.waited, now.Sub(due))
}

// Recorder collects the requests of a closed loop in another package, such as simulated viewers
// with Clients. Several goroutines may call its methods.
type Recorder struct{ rec *recorder }

// NewRecorder returns a Recorder for requests to url by a number of clients. The run begins at
// began and lasts for duration.
func NewRecorder(url string, clients int, began time.Time, duration time.Duration) *Recorder {
	p := &plan{Config: Config{URL: url, Method: "GET", Connections: clients, Duration: duration}}
	r := newRecorder(p)
	r.began, r.start, r.end = began, began, began.Add(duration)
	return &Recorder{r}
}

// Add counts a client's request. end is the arrival of the last byte of the answer, or of err.
func (r *Recorder) Add(client int, sent, end time.Time, a Answer, err error) {
	r.rec.shard(client).add(outcome{due: sent, sent: sent, end: end, answer: answer{status: a.Status, bytes: a.Bytes}, err: err})
}

// Unfinished records a request that the end of the run interrupted at now.
func (r *Recorder) Unfinished(client int, sent, now time.Time) {
	r.rec.shard(client).unfinished(sent, now)
}

// Report sums up all requests. Call Report after the last Add. stopped is the end of the run.
func (r *Recorder) Report(stopped time.Time, interrupted bool) *Report {
	r.rec.stopped = stopped
	return r.rec.report(interrupted)
}

// NewHistogram returns a histogram for durations of up to ten minutes, in nanoseconds, with the
// given number of significant digits.
func NewHistogram(digits int) *hdrhistogram.Histogram {
	return hdrhistogram.New(1, slowest, digits)
}

// Record adds a duration to a histogram.
func Record(h *hdrhistogram.Histogram, d time.Duration) { record(h, d) }

func newHistogram() *hdrhistogram.Histogram { return NewHistogram(digits) }

func record(h *hdrhistogram.Histogram, d time.Duration) {
	// Values within the bounds cause no error.
	_ = h.RecordValue(min(max(int64(d), 1), slowest))
}
