package stats_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/bench/internal/stats"
)

// upTo returns n, …, 2, 1: a summary must not depend on the order.
func upTo(n int) []time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		all[i] = time.Duration(n - i)
	}
	return all
}

func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		name    string
		samples []time.Duration
		want    stats.Summary
	}{
		{"none", nil, stats.Summary{}},
		{"one", upTo(1), stats.Summary{Count: 1, P50: 1, P99: 1, Slowest: 1}},
		{"two", upTo(2), stats.Summary{Count: 2, P50: 1, P99: 2, Slowest: 2}},
		{"three", upTo(3), stats.Summary{Count: 3, P50: 2, P99: 3, Slowest: 3}},
		{"a hundred", upTo(100), stats.Summary{Count: 100, P50: 50, P99: 99, Slowest: 100}},
		{"five hundred", upTo(500), stats.Summary{Count: 500, P50: 250, P99: 495, Slowest: 500}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.samples)
			if diff := cmp.Diff(c.want, stats.Summarize(c.samples)); diff != "" {
				t.Errorf("summary (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, c.samples); diff != "" {
				t.Errorf("the samples changed:\n%s", diff)
			}
		})
	}
}

func TestRatio(t *testing.T) {
	if got := stats.Ratio(3*time.Second, 2*time.Second); got != 1.5 {
		t.Errorf("3s/2s: got %v, want 1.5", got)
	}
	if got := stats.Ratio(time.Second, 0); !math.IsNaN(got) {
		t.Errorf("1s/0: got %v, want NaN", got)
	}
}
