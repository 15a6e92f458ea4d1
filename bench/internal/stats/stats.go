// Package stats sums up samples of durations the way benchmarks report them:
// percentiles and the slowest, never the mean alone.
package stats

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Summary describes a set of samples. The JSON is in nanoseconds.
type Summary struct {
	Count   int           `json:"count"`
	P50     time.Duration `json:"p50_ns"`
	P99     time.Duration `json:"p99_ns"`
	Slowest time.Duration `json:"slowest_ns"`
}

// Summarize sums up samples, in any order; it does not change them. The
// summary of no samples is zero.
func Summarize(samples []time.Duration) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	sorted := slices.Sorted(slices.Values(samples))
	return Summary{
		Count:   len(sorted),
		P50:     percentile(sorted, 50),
		P99:     percentile(sorted, 99),
		Slowest: sorted[len(sorted)-1],
	}
}

// percentile is the nearest-rank percentile: the smallest sample that at least
// p per cent of all samples do not exceed.
func percentile[T cmp.Ordered](sorted []T, p float64) T {
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// Median is the nearest-rank median, zero for no samples. It does not change them.
func Median[T cmp.Ordered](samples []T) T {
	if len(samples) == 0 {
		return *new(T)
	}
	return percentile(slices.Sorted(slices.Values(samples)), 50)
}

// Ratio is a/b, or NaN where b is not positive.
func Ratio(a, b time.Duration) float64 {
	if b <= 0 {
		return math.NaN()
	}
	return float64(a) / float64(b)
}
