package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/bench/internal/stats"
)

func TestSummary(t *testing.T) {
	rounds := [][]time.Duration{{1, 2}, {3, 40}, {5, 6}}
	pooled := stats.Summary{Count: 6, P50: 3, P99: 40, Slowest: 40}
	burst := pooled
	burst.Slowest = 6 // the median of 2, 40 and 6
	for _, c := range []struct {
		name   string
		atOnce int
		want   line
	}{
		{"sequence", 1, line{pooled, 40}},
		{"burst", 2, line{burst, 40}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := (&samples{AtOnce: c.atOnce, Rounds: rounds}).summary()
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(line{})); diff != "" {
				t.Errorf("summary (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMarkdownRatios(t *testing.T) {
	ms := time.Millisecond
	r := &result{Series: []*samples{
		{Peer: "bare", AtOnce: 1, Rounds: [][]time.Duration{{2 * ms}}},
		{Peer: "fre", AtOnce: 1, Rounds: [][]time.Duration{{3 * ms}}},
		{Peer: "bare", AtOnce: 4, Rounds: [][]time.Duration{{4 * ms, 5 * ms}}},
		{Peer: "fre", AtOnce: 4, Rounds: [][]time.Duration{{8 * ms, 10 * ms}}},
	}}
	table := r.markdown()
	for _, want := range []string{
		"| 1 | fre | 1 | 3.00 | 3.00 | 3.00 | 3.00 | 1.50 | 1.50 |",
		"| 4 | fre | 2 | 8.00 | 10.00 | 10.00 | 10.00 | 2.00 | 2.00 |",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no line %q in:\n%s", want, table)
		}
	}
}

func TestParseSizes(t *testing.T) {
	for _, c := range []struct {
		list string
		want []int
		ok   bool
	}{
		{"64,256", []int{64, 256}, true},
		{" 8 ", []int{8}, true},
		{"", nil, true},
		{"1", nil, false},
		{"64,x", nil, false},
		{"100000", nil, false},
	} {
		got, err := parseSizes(c.list)
		if diff := cmp.Diff(c.want, got); (err == nil) != c.ok || c.ok && diff != "" {
			t.Errorf("%q: got %v, error %v, want %v", c.list, got, err, c.want)
		}
	}
}
