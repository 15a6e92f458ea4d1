package testbed

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func cellOf(label string, rates ...float64) *Cell {
	c := &Cell{Label: label}
	for _, rate := range rates {
		c.Turns = append(c.Turns, Turn{PerSecond: rate, P99: time.Millisecond, Mallocs: -1})
	}
	return c
}

func TestBetter(t *testing.T) {
	got := Better([]*Cell{cellOf("a", 1), cellOf("b", 5, 1, 6), cellOf("b", 2, 9, 4), cellOf("c", 1)})
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
		if got := Median(values); got != want {
			t.Errorf("median of %v: %v, want %v", values, got, want)
		}
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("the median of nothing is a number")
	}
}

func TestMetric(t *testing.T) {
	if got, err := Metric("# HELP a_total x\na_total{b=\"c\"} 1\na_total 1.5e+06\n", "a_total"); err != nil || got != 1_500_000 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Metric("a_totals 1\n", "a_total"); err == nil {
		t.Error("no error without the metric")
	}
}

// A running process has CPU time and belongs to the process tree.
func TestCPUTime(t *testing.T) {
	pid := os.Getpid()
	if all := Tree(pid); len(all) == 0 || all[0] != pid {
		t.Errorf("tree %v of %d", all, pid)
	}
	if d, err := CPUTime(pid); err != nil || d <= 0 {
		t.Errorf("%v, %v", d, err)
	}
	if d, err := CPUTime(1 << 30); err != nil || d != 0 {
		t.Errorf("of no process: %v, %v", d, err)
	}
}
