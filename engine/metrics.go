package engine

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
)

// metrics are the engine's own counters, in Prometheus base units.
type metrics struct {
	start    *prometheus.HistogramVec // function, kind, revision
	duration *prometheus.HistogramVec // function, outcome, revision

	forkServers *prometheus.CounterVec // function, revision
	refused     *prometheus.CounterVec // reason
	calls       *prometheus.CounterVec // function, from, outcome

	waits                 *prometheus.HistogramVec // queue
	waited, waitedForSlot prometheus.Observer      // of waits

	gcImages          *prometheus.CounterVec // rule
	gcBytes, gcInodes prometheus.Counter
	gcSeconds         prometheus.Histogram
}

func newMetrics() *metrics {
	m := &metrics{
		start: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fre_instance_start_seconds", Help: "From an event's arrival to a ready instance.",
			Buckets: prometheus.ExponentialBuckets(1e-5, 4, 11),
		}, []string{"function", "kind", "revision"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fre_invocation_seconds", Help: "From an event's arrival to the end of the answer.",
			Buckets: prometheus.ExponentialBuckets(1e-4, 4, 10),
		}, []string{"function", "outcome", "revision"}),
		forkServers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fre_fork_server_failures_total", Help: "Fork servers that failed to start, or died.",
		}, []string{"function", "revision"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fre_admission_refused_total", Help: "Refused events, by reason: no memory for bodies (memory, waits), unread answers of the function hold too much memory (answers), too many events wait for the function (queue_length, queue_time) or for the engine (engine).",
		}, []string{"reason"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fre_calls_total", Help: "Calls from functions, by called function (empty if unknown), calling function, and result: ok or an error code (docs/calls.md).",
		}, []string{"function", "from", "outcome"}),
		gcImages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fre_gc_images_total", Help: "Images removed by garbage collection.",
		}, []string{"rule"}),
		gcBytes:  prometheus.NewCounter(prometheus.CounterOpts{Name: "fre_gc_bytes_total", Help: "Bytes of disk freed by garbage collection."}),
		gcInodes: prometheus.NewCounter(prometheus.CounterOpts{Name: "fre_gc_inodes_total", Help: "Inodes freed by garbage collection."}),
		gcSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fre_gc_seconds", Help: "How long a garbage collection took.", Buckets: prometheus.ExponentialBuckets(1e-3, 4, 10),
		}),
	}
	m.waits = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "fre_queue_seconds", Help: "Waiting time of events that waited for an instance (function), or for a slot of the engine.",
		Buckets: prometheus.ExponentialBuckets(1e-4, 4, 10),
	}, []string{"queue"})
	m.waited, m.waitedForSlot = m.waits.WithLabelValues("function"), m.waits.WithLabelValues("engine")
	return m
}

func (m *metrics) failed(function, revision string, took time.Duration, err error) {
	m.duration.WithLabelValues(function, outcome(err), revision).Observe(took.Seconds())
}

// Reasons to refuse an event, in addition to package admission's.
const (
	reasonQuota   admission.Reason = "quota"   // *QuotaError
	reasonEngine  admission.Reason = "engine"  // ErrEngineOverloaded
	reasonAnswers admission.Reason = "answers" // answers of the function hold much memory until clients take them
)

// refuse counts a refused event.
func (m *metrics) refuse(why admission.Reason) { m.refused.WithLabelValues(string(why)).Inc() }

func (m *metrics) collected(r *build.GCReport) {
	for _, img := range r.Images {
		m.gcImages.WithLabelValues(img.Rule).Inc()
	}
	m.gcBytes.Add(float64(r.Bytes))
	m.gcInodes.Add(float64(r.Inodes))
	m.gcSeconds.Observe(r.Took.Seconds())
}

// forget drops the series of a removed function or revision.
func (m *metrics) forget(function string, revision int) {
	of := prometheus.Labels{"function": function}
	if revision != 0 {
		of["revision"] = strconv.Itoa(revision)
	}
	m.start.DeletePartialMatch(of)
	m.duration.DeletePartialMatch(of)
	m.forkServers.DeletePartialMatch(of)
}

// outcome returns the label for the end of an event.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	var failure *FunctionError
	var crash *CrashError
	var quota *live.QuotaError
	switch {
	case errors.As(err, &quota):
		return "quota"
	case errors.Is(err, ErrTimeout):
		return "timeout"
	case errors.Is(err, ErrOverloaded), errors.Is(err, ErrEngineOverloaded):
		return "overloaded"
	case errors.Is(err, ErrDegraded):
		return "degraded"
	case errors.Is(err, context.Canceled), errors.Is(err, errAbandoned), errors.Is(err, ErrSlowBody):
		return "cancelled"
	case errors.As(err, &failure):
		return "error"
	case errors.As(err, &crash):
		return "crash"
	}
	return "internal"
}
