// Package stats sums up durations for benchmarks: percentiles and the slowest sample, never the
// mean alone.
package stats

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Summary describes a set of samples. Times in the JSON form are in nanoseconds.
type Summary struct {
	Count   int           `json:"count"`
	P50     time.Duration `json:"p50_ns"`
	P99     time.Duration `json:"p99_ns"`
	Slowest time.Duration `json:"slowest_ns"`
}

// Summarize sums up unsorted samples without changing the slice. The summary of zero samples is
// zero.
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

// percentile returns the nearest-rank percentile: the smallest sample not exceeded by at least p
// per cent of all samples.
func percentile[T cmp.Ordered](sorted []T, p float64) T {
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// Median returns the nearest-rank median, zero for no samples. The slice does not change.
func Median[T cmp.Ordered](samples []T) T {
	if len(samples) == 0 {
		return *new(T)
	}
	return percentile(slices.Sorted(slices.Values(samples)), 50)
}

// Ratio returns a/b, or NaN if b is not positive.
func Ratio(a, b time.Duration) float64 {
	if b <= 0 {
		return math.NaN()
	}
	return float64(a) / float64(b)
}
