package daemon

import (
	"math"
	"runtime/metrics"
	"testing"
)

func TestQuantile(t *testing.T) {
	h := &metrics.Float64Histogram{Counts: []uint64{0, 98, 1, 0, 1}, Buckets: []float64{math.Inf(-1), 1, 2, 3, 4, math.Inf(1)}}
	for q, want := range map[float64]float64{0.5: 2, 0.98: 2, 0.99: 3, 1: 4} {
		if got := quantile(h, q); got != want {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
	if got := quantile(&metrics.Float64Histogram{Counts: []uint64{0}, Buckets: []float64{0, 1}}, 0.5); got != 0 {
		t.Errorf("nothing counted: %v", got)
	}
}
