package daemon

import (
	"math"
	"runtime/metrics"

	"github.com/prometheus/client_golang/prometheus"
)

// pauses reports how long garbage collections have stopped the engine: quantiles over all stops
// since its start; the quantile 1 is the longest stop.
type pauses struct{ desc *prometheus.Desc }

func newPauses() pauses {
	return pauses{prometheus.NewDesc("fre_go_gc_pause_seconds", "Pauses of the engine for Go's garbage collection.", []string{"quantile"}, nil)}
}

// Describe implements [prometheus.Collector].
func (p pauses) Describe(ch chan<- *prometheus.Desc) { ch <- p.desc }

// Collect implements [prometheus.Collector].
func (p pauses) Collect(ch chan<- prometheus.Metric) {
	sample := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return // a Go version without this metric
	}
	h := sample[0].Value.Float64Histogram()
	for _, q := range []struct {
		name  string
		value float64
	}{{"0.5", 0.5}, {"0.99", 0.99}, {"1", 1}} {
		ch <- prometheus.MustNewConstMetric(p.desc, prometheus.GaugeValue, quantile(h, q.value), q.name)
	}
}

// quantile is the upper bound of the bucket with the q-quantile of h, 0 for an empty histogram.
func quantile(h *metrics.Float64Histogram, q float64) float64 {
	var all, sum uint64
	for _, n := range h.Counts {
		all += n
	}
	rank := uint64(math.Ceil(q * float64(all)))
	for i, n := range h.Counts {
		if sum += n; n == 0 || sum < rank {
			continue
		}
		if upper := h.Buckets[i+1]; !math.IsInf(upper, 1) {
			return upper
		}
		return h.Buckets[i]
	}
	return 0
}
