package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/bench/internal/load"
	"github.com/fre-engine/fre/bench/internal/testbed"
)

func cellOf(label string, rates ...float64) *testbed.Cell {
	c := &testbed.Cell{Label: label}
	for _, rate := range rates {
		c.Turns = append(c.Turns, testbed.Turn{PerSecond: rate, P99: time.Millisecond, Mallocs: -1})
	}
	return c
}

func TestMarkdown(t *testing.T) {
	r := &result{Rounds: 1, CPUs: [2]int{0, 1}, Rows: []*testbed.Row{{
		Name: "x", Label: "Bodies", Connections: 16,
		Cells: []*testbed.Cell{cellOf("fre", 150), cellOf("nginx", 100)},
		Aims: []testbed.Aim{
			{Of: "fre", To: "nginx", What: "requests/s", Least: 1.6},
			{Of: "fre", To: "nginx", What: "p99", Most: 1},
			{Of: "fre", What: "p99", Most: 900},
			{Of: "fre", To: "missing", What: "p99", Most: 1},
			{Of: "fre", What: "allocations", Most: 0.5},
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

// Aims name existing targets and measures.
func TestRows(t *testing.T) {
	for _, w := range rows() {
		labels := map[string]bool{"": true}
		for _, target := range w.targets {
			labels[target.label] = true
		}
		for _, a := range w.aims {
			if !labels[a.Of] || !labels[a.To] || testbed.Measures[a.What] == nil || (a.Least > 0) == (a.Most > 0) {
				t.Errorf("%s: aim %+v", w.name, a)
			}
		}
	}
}
