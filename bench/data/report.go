package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/internal/plot"
)

// What a turn is looked at for.
func perSecond(t turn) float64 { return t.PerSecond }
func p50(t turn) float64       { return float64(t.P50.Nanoseconds()) / 1e3 } // µs
func p99(t turn) float64       { return float64(t.P99.Nanoseconds()) / 1e3 }
func perGB(t turn) float64     { return t.CPUPerGB }
func allPerGB(t turn) float64  { return t.AllPerGB }
func mallocs(t turn) float64   { return t.Mallocs }

var measures = map[string]func(turn) float64{"requests/s": perSecond, "p50": p50, "p99": p99, "CPU s/GB": perGB, "allocations": mallocs}

// median is that of the turns.
func (c *cell) median(of func(turn) float64) float64 { return median(c.values(of)) }

func (c *cell) values(of func(turn) float64) []float64 {
	values := make([]float64, 0, len(c.Turns))
	for _, t := range c.Turns {
		values = append(values, of(t))
	}
	return values
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

func (r *rowResult) cell(label string) *cell {
	i := slices.IndexFunc(r.Cells, func(c *cell) bool { return c.Label == label })
	if i < 0 {
		return nil
	}
	return r.Cells[i]
}

// judged is an aim beside what came of it.
type judged struct {
	aim
	got float64
}

// judge leaves out aims whose servers were not there.
func (r *rowResult) judge() []judged {
	var all []judged
	for _, a := range r.aims {
		of := r.cell(a.of)
		if of == nil {
			continue
		}
		got := of.median(measures[a.what])
		if a.what == "allocations" && got < 0 {
			continue
		}
		if a.to != "" {
			to := r.cell(a.to)
			if to == nil {
				continue
			}
			got /= to.median(measures[a.what])
		}
		all = append(all, judged{a, got})
	}
	return all
}

func (j judged) met() bool { return j.least > 0 && j.got >= j.least || j.most > 0 && j.got <= j.most }

func (j judged) String() string {
	what, goal := j.what+" of "+j.of, fmt.Sprintf("≥ %g ×", j.least)
	if j.to != "" {
		what += " ÷ " + j.to
	}
	switch {
	case j.most > 0 && j.to != "":
		goal = fmt.Sprintf("≤ %g ×", j.most)
	case j.what == "allocations":
		goal = "0"
	case j.most > 0:
		goal = fmt.Sprintf("≤ %g µs", j.most)
	}
	verdict := "missed"
	if j.met() {
		verdict = "met"
	}
	return fmt.Sprintf("| %s | %s | %s | %s |", what, digits(j.got), goal, verdict)
}

// digits writes as many as are worth it.
func digits(v float64) string {
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

// markdown is the tables people read.
func (r *result) markdown() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("%s\n", r.Host.Markdown())
	p("Medians of %d turns of %v each; servers and the functions behind them on CPU %d, the client on CPU %d, in a network namespace with reno. Latencies in microseconds. *CPU* is seconds of the server's own for each gigabyte of bodies, *with functions* what works for it too; *allocations* are those of a Go server for each request. nginx is the better of tcp_nopush on and off.",
		r.Rounds, r.Slice, r.CPUs[0], r.CPUs[1])
	if r.CPUs[0] == r.CPUs[1] {
		p("\n**There is but one CPU: server and client share it.**")
	}
	for _, s := range r.Skipped {
		p("\n- %s", s)
	}
	for _, row := range r.all() {
		p("\n## %s\n", row.Label)
		if row.Rate > 0 {
			p("%s requests/s.\n", digits(row.Rate))
		} else {
			p("%d connections, closed loop.\n", row.Connections)
		}
		p("| server | requests/s | p50 | p99 | CPU s/GB | with functions | allocations |\n|---|---:|---:|---:|---:|---:|---:|")
		for _, c := range row.Cells {
			p("| %s |%s|", c.Label, row.numbers(c))
		}
		if all := row.judge(); len(all) > 0 {
			p("\n| | | aim | |\n|---|---:|---:|---|")
			for _, j := range all {
				p("%s", j)
			}
		}
	}
	r.overloads(p)
	return b.String()
}

// all rows, HTTP/2's last.
func (r *result) all() []*rowResult {
	if r.HTTP2 == nil || len(r.HTTP2.Cells) == 0 {
		return r.Rows
	}
	return append(slices.Clone(r.Rows), r.HTTP2)
}

// numbers are the cell's columns; h2load tells requests alone, and CPU for each
// gigabyte of small answers says nothing.
func (r *rowResult) numbers(c *cell) string {
	columns := []string{digits(c.median(perSecond))}
	for _, of := range []func(turn) float64{p50, p99, perGB, allPerGB} {
		v := c.median(of)
		if v <= 0 || v > 100 && (digits(v) == digits(c.median(perGB)) || digits(v) == digits(c.median(allPerGB))) {
			v = math.NaN()
		}
		columns = append(columns, digits(v))
	}
	if m := c.median(mallocs); m >= 0 {
		columns = append(columns, digits(m))
	} else {
		columns = append(columns, "")
	}
	return " " + strings.Join(columns, " | ") + " "
}

// overloads sums up what the function that was asked for too much has answered.
func (r *result) overloads(p func(string, ...any)) {
	if len(r.Overload) == 0 {
		return
	}
	var goodput, accepted, refused []float64
	statuses := map[string]uint64{}
	microseconds := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	for _, o := range r.Overload {
		// The time in which it was asked; what was queued by then is answered later.
		goodput = append(goodput, float64(o.Busy.ByStatus["200"].Count)/o.Busy.Measured.Seconds()/o.Capacity)
		accepted = append(accepted, microseconds(o.Busy.ByStatus["200"].P99))
		if st, ok := o.Busy.ByStatus["503"]; ok {
			refused = append(refused, microseconds(st.P99))
		}
		for status, st := range o.Busy.ByStatus {
			statuses[status] += st.Count
		}
	}
	p("\n## Overload\n\nA function in Python that sleeps for 5 ms, four events at once, asked three times as often as it can answer (open loop). Answers by status, all turns: %s.\n", counts(statuses))
	p("| | | aim | |\n|---|---:|---:|---|")
	verdict := func(met bool) string {
		if met {
			return "met"
		}
		return "missed"
	}
	p("| goodput ÷ capacity | %s | ≥ 0.9 | %s |", digits(median(goodput)), verdict(median(goodput) >= 0.9))
	p("| p99 of accepted work | %s µs | ≤ 200000 µs | %s |", digits(median(accepted)), verdict(median(accepted) <= 200_000))
	if len(refused) > 0 {
		p("| p99 of being refused | %s µs | ≤ 1000 µs | %s |", digits(median(refused)), verdict(median(refused) <= 1000))
	}
}

func counts(statuses map[string]uint64) string {
	var all []string
	for status, n := range statuses {
		if status == "0" {
			status = "none"
		}
		all = append(all, fmt.Sprintf("%s: %d", status, n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// figures draws the rows with requests/s, one figure each, into dir, and returns
// the lines that show them in a page beside it.
func (r *result) figures(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("\n## Figures\n")
	for _, row := range r.all() {
		f := plot.Bars{Title: row.Label, Y: plot.Axis{Label: "requests/s"}, Groups: []string{""}}
		if row.Rate > 0 || row.Connections == 1 {
			f.Y.Label = "p99 (µs)"
		}
		for i, c := range row.Cells {
			v := c.median(perSecond)
			if f.Y.Label != "requests/s" {
				v = c.median(p99)
			}
			f.Series = append(f.Series, plot.Series{Name: c.Label, Color: plot.Color(i), Values: []float64{v}})
		}
		name := strings.NewReplacer(" ", "-", ",", "", "/", "").Replace(row.Name) + ".svg"
		if err := os.WriteFile(filepath.Join(dir, name), f.SVG(), 0o644); err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\n![%s](%s/%s)\n", row.Label, filepath.Base(dir), name)
	}
	return b.String(), nil
}
