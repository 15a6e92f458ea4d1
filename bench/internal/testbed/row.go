package testbed

import (
	"fmt"
	"math"
	"slices"
)

// Row is a comparison of servers with its results.
type Row struct {
	Name        string  `json:"name"`
	Label       string  `json:"label"`
	Connections int     `json:"connections"`
	Rate        float64 `json:"rate,omitempty"` // requests/s; 0: closed loop
	Cells       []*Cell `json:"cells"`
	Aims        []Aim   `json:"-"`
}

// Cell holds the results of one server in a row.
type Cell struct {
	Label string `json:"label"`
	Turns []Turn `json:"turns"`
}

// Aim is a goal of the project: a bound on the ratio of two servers, or on one server.
type Aim struct {
	Of, To string // labels of cells; To "": no ratio
	What   string // a key of Measures
	Least  float64
	Most   float64 // of Least and Most, the bound that is not 0 counts
}

// The measures of a turn.
func perSecond(t Turn) float64 { return t.PerSecond }
func p50(t Turn) float64       { return float64(t.P50.Nanoseconds()) / 1e3 } // µs
func p99(t Turn) float64       { return float64(t.P99.Nanoseconds()) / 1e3 }
func perGB(t Turn) float64     { return t.CPUPerGB }
func allPerGB(t Turn) float64  { return t.AllPerGB }
func each(t Turn) float64      { return t.CPUEach * 1e6 } // µs
func mallocs(t Turn) float64   { return t.Mallocs }
func allocated(t Turn) float64 { return t.Allocated / 1e6 }
func pauses(t Turn) float64    { return t.Pauses }
func pause(t Turn) float64     { return float64(t.Pause.Nanoseconds()) / 1e3 }
func longest(t Turn) float64   { return float64(t.Longest.Nanoseconds()) / 1e3 }

// Measures maps the names used in aims to measures. Times are in µs.
var Measures = map[string]func(Turn) float64{
	"requests/s": perSecond, "p50": p50, "p99": p99, "CPU s/GB": perGB, "with functions": allPerGB, "CPU µs/request": each, "allocations": mallocs,
	"MB/s allocated": allocated, "GC pauses/s": pauses, "GC pause": pause, "longest GC pause": longest,
}

// Median returns the median over a cell's turns. what must be a key of Measures.
func (c *Cell) Median(what string) float64 {
	values := make([]float64, 0, len(c.Turns))
	for _, t := range c.Turns {
		values = append(values, Measures[what](t))
	}
	return Median(values)
}

// Median sorts values and returns the median, NaN for no values.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// Better keeps, among cells with the same label, the cell with the most requests. nginx has two
// such cells: with tcp_nopush and without.
func Better(cells []*Cell) []*Cell {
	var kept []*Cell
	for _, c := range cells {
		i := slices.IndexFunc(kept, func(k *Cell) bool { return k.Label == c.Label })
		switch {
		case i < 0:
			kept = append(kept, c)
		case c.Median("requests/s") > kept[i].Median("requests/s"):
			kept[i] = c
		}
	}
	return kept
}

// Cell returns the cell with the label, nil if missing.
func (r *Row) Cell(label string) *Cell {
	i := slices.IndexFunc(r.Cells, func(c *Cell) bool { return c.Label == label })
	if i < 0 {
		return nil
	}
	return r.Cells[i]
}

// Judged is an aim with the measured value.
type Judged struct {
	Aim
	Got float64
}

// Judge compares the aims with the results. Aims about missing servers are left out.
func (r *Row) Judge() []Judged {
	var all []Judged
	for _, a := range r.Aims {
		of := r.Cell(a.Of)
		if of == nil {
			continue
		}
		got := of.Median(a.What)
		if a.What == "allocations" && got < 0 {
			continue
		}
		if a.To != "" {
			to := r.Cell(a.To)
			if to == nil {
				continue
			}
			got /= to.Median(a.What)
		}
		all = append(all, Judged{a, got})
	}
	return all
}

// Met reports whether the aim was reached.
func (j Judged) Met() bool { return j.Least > 0 && j.Got >= j.Least || j.Most > 0 && j.Got <= j.Most }

// String returns a table row: measure, value, goal, and "met" or "missed".
func (j Judged) String() string {
	what, goal := j.What+" of "+j.Of, fmt.Sprintf("≥ %g ×", j.Least)
	if j.To != "" {
		what += " ÷ " + j.To
	}
	switch {
	case j.Most > 0 && j.To != "":
		goal = fmt.Sprintf("≤ %g ×", j.Most)
	case j.What == "allocations":
		goal = "0"
	case j.Most > 0:
		goal = fmt.Sprintf("≤ %g µs", j.Most)
	}
	verdict := "missed"
	if j.Met() {
		verdict = "met"
	}
	return fmt.Sprintf("| %s | %s | %s | %s |", what, Digits(j.Got), goal, verdict)
}

// Digits formats a number with about three significant digits.
func Digits(v float64) string {
	switch {
	case math.IsNaN(v):
		return ""
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
