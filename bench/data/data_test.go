package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/load"
)

func cellOf(label string, rates ...float64) *cell {
	c := &cell{Label: label}
	for _, rate := range rates {
		c.Turns = append(c.Turns, turn{PerSecond: rate, P99: time.Millisecond, Mallocs: -1})
	}
	return c
}

func TestBetter(t *testing.T) {
	got := better([]*cell{cellOf("a", 1), cellOf("b", 5, 1, 6), cellOf("b", 2, 9, 4), cellOf("c", 1)})
	var labels []string
	for _, c := range got {
		labels = append(labels, c.Label)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, labels); diff != "" || got[1].Turns[0].PerSecond != 5 {
		t.Errorf("kept %+v (-want +got):\n%s", got[1], diff)
	}
}

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{2: {3, 1, 2}, 2.5: {4, 2, 3, 1}, 7: {7}} {
		if got := median(values); got != want {
			t.Errorf("median of %v: %v, want %v", values, got, want)
		}
	}
	if !math.IsNaN(median(nil)) {
		t.Error("the median of nothing is a number")
	}
}

func TestMarkdown(t *testing.T) {
	r := &result{Rounds: 1, CPUs: [2]int{0, 1}, Rows: []*rowResult{{
		Name: "x", Label: "Bodies", Connections: 16,
		Cells: []*cell{cellOf("fre", 150), cellOf("nginx", 100)},
		aims: []aim{
			{of: "fre", to: "nginx", what: "requests/s", least: 1.6},
			{of: "fre", to: "nginx", what: "p99", most: 1},
			{of: "fre", what: "p99", most: 900},
			{of: "fre", to: "missing", what: "p99", most: 1},
			{of: "fre", what: "allocations", most: 0.5},
		},
	}}, Overload: []overload{{Capacity: 100, Busy: &load.Report{Measured: time.Second, ByStatus: map[string]load.Status{
		"200": {Count: 95, P99: 100 * time.Millisecond}, "503": {Count: 200, P99: 2 * time.Millisecond},
	}}}}}
	text := r.markdown()
	for _, want := range []string{
		"| fre | 150 |", "| requests/s of fre ÷ nginx | 1.50 | ≥ 1.6 × | missed |", "| p99 of fre ÷ nginx | 1.00 | ≤ 1 × | met |",
		"| p99 of fre | 1000 | ≤ 900 µs | missed |", "| goodput ÷ capacity | 0.95 | ≥ 0.9 | met |", "| p99 of being refused | 2000 µs | ≤ 1000 µs | missed |", "200: 95, 503: 200",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	for _, not := range []string{"missing", "allocations of"} {
		if strings.Contains(text, not) {
			t.Errorf("%q in:\n%s", not, text)
		}
	}
	dir := filepath.Join(t.TempDir(), "data")
	lines, err := r.figures(dir)
	if err != nil || !strings.Contains(lines, "![Bodies](data/x.svg)") {
		t.Errorf("%v: %s", err, lines)
	}
	if _, err := os.Stat(filepath.Join(dir, "x.svg")); err != nil {
		t.Error(err)
	}
}

func TestParseH2load(t *testing.T) {
	const out = "Application protocol: h2c\n\nfinished in 2.00s, 44400.50 req/s, 2.7GB/s\nrequests: 88801 total, 88801 started, 88801 done, 88801 succeeded, 0 failed, 0 errored, 0 timeout\n"
	if got, err := parseH2load(out); err != nil || got != 44400.5 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", strings.Replace(out, "0 failed", "1 failed", 1), strings.Replace(out, "h2c", "http/1.1", 1)} {
		if got, err := parseH2load(bad); err == nil {
			t.Errorf("%v out of %q", got, bad)
		}
	}
}

func TestMetric(t *testing.T) {
	if got, err := metric("# HELP a_total x\na_total{b=\"c\"} 1\na_total 1.5e+06\n", "a_total"); err != nil || got != 1_500_000 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := metric("a_totals 1\n", "a_total"); err == nil {
		t.Error("no error without the metric")
	}
}

// TestCPUTime reads this process: it has computed, and its tree has it.
func TestCPUTime(t *testing.T) {
	pid := os.Getpid()
	if all := tree(pid); len(all) == 0 || all[0] != pid {
		t.Errorf("tree %v of %d", all, pid)
	}
	if d, err := cpuTime(pid); err != nil || d <= 0 {
		t.Errorf("%v, %v", d, err)
	}
	if d, err := cpuTime(1 << 30); err != nil || d != 0 {
		t.Errorf("of no process: %v, %v", d, err)
	}
}

// TestRows: aims name targets and measures that there are.
func TestRows(t *testing.T) {
	for _, w := range rows() {
		labels := map[string]bool{"": true}
		for _, target := range w.targets {
			labels[target.label] = true
		}
		for _, a := range w.aims {
			if !labels[a.of] || !labels[a.to] || measures[a.what] == nil || (a.least > 0) == (a.most > 0) {
				t.Errorf("%s: aim %+v", w.name, a)
			}
		}
	}
}
