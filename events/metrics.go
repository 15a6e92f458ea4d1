package events

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of a Service. Without a registry they are counted but not exported.
type metrics struct {
	published *prometheus.CounterVec
	took      prometheus.Histogram
	waited    prometheus.Histogram
	attempts  *prometheus.CounterVec
	callbacks *prometheus.CounterVec
}

func newMetrics(to prometheus.Registerer, x *index, b *bodies) *metrics {
	m := &metrics{
		published: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fre_events_published_total", Help: "Published events, by outcome: accepted, duplicate, refused."}, []string{"outcome"}),
		took:      prometheus.NewHistogram(prometheus.HistogramOpts{Name: "fre_events_publish_seconds", Help: "From an event's arrival until the write to disk.", Buckets: prometheus.ExponentialBuckets(0.00025, 2, 14)}),
		waited:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "fre_events_wait_seconds", Help: "From an event's acceptance to each attempt.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 12)}),
		attempts:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fre_events_attempts_total", Help: "Attempts, by outcome: done, retried, dead."}, []string{"outcome"}),
		callbacks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fre_events_callbacks_total", Help: "Callbacks, by outcome: done, failed."}, []string{"outcome"}),
	}
	if to != nil {
		to.MustRegister(m.published, m.took, m.waited, m.attempts, m.callbacks,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fre_events_pending", Help: "Unfinished events."}, func() float64 { return float64(x.size()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fre_events_body_bytes", Help: "Bytes of large bodies on disk."}, func() float64 { return float64(b.used.Load()) }),
		)
	}
	return m
}

func (m *metrics) accepted(took time.Duration, r Receipt, err error) {
	switch {
	case err != nil:
		m.published.WithLabelValues("refused").Inc()
	case r.Duplicate:
		m.published.WithLabelValues("duplicate").Inc()
	default:
		m.published.WithLabelValues("accepted").Inc()
		m.took.Observe(took.Seconds())
	}
}
