package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/bench/internal/plot"
	"github.com/fre-engine/fre/bench/internal/testbed"
)

// markdown returns the tables of the page.
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
			p("%s requests/s.\n", testbed.Digits(row.Rate))
		} else {
			p("%d connections, closed loop.\n", row.Connections)
		}
		p("| server | requests/s | p50 | p99 | CPU s/GB | with functions | allocations |\n|---|---:|---:|---:|---:|---:|---:|")
		for _, c := range row.Cells {
			p("| %s |%s|", c.Label, numbers(c))
		}
		if all := row.Judge(); len(all) > 0 {
			p("\n| | | aim | |\n|---|---:|---:|---|")
			for _, j := range all {
				p("%s", j)
			}
		}
	}
	r.overloads(p)
	return b.String()
}

// all returns all rows, with the row of HTTP/2 last.
func (r *result) all() []*testbed.Row {
	if r.HTTP2 == nil || len(r.HTTP2.Cells) == 0 {
		return r.Rows
	}
	return append(slices.Clone(r.Rows), r.HTTP2)
}

// numbers returns the cell's columns. h2load reports only requests. CPU time per gigabyte is left
// out for small answers, because the number has no meaning there.
func numbers(c *testbed.Cell) string {
	columns := []string{testbed.Digits(c.Median("requests/s"))}
	for _, what := range []string{"p50", "p99", "CPU s/GB", "with functions"} {
		v := c.Median(what)
		if v <= 0 || v > 100 && (testbed.Digits(v) == testbed.Digits(c.Median("CPU s/GB")) || testbed.Digits(v) == testbed.Digits(c.Median("with functions"))) {
			v = math.NaN()
		}
		columns = append(columns, testbed.Digits(v))
	}
	if m := c.Median("allocations"); m >= 0 {
		columns = append(columns, testbed.Digits(m))
	} else {
		columns = append(columns, "")
	}
	return " " + strings.Join(columns, " | ") + " "
}

// overloads sums up the answers of the overloaded function.
func (r *result) overloads(p func(string, ...any)) {
	if len(r.Overload) == 0 {
		return
	}
	var goodput, accepted, refused []float64
	statuses := map[string]uint64{}
	microseconds := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	for _, o := range r.Overload {
		// Count over the time of the requests; answers to queued requests arrive later.
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
	p("| goodput ÷ capacity | %s | ≥ 0.9 | %s |", testbed.Digits(testbed.Median(goodput)), verdict(testbed.Median(goodput) >= 0.9))
	p("| p99 of accepted work | %s µs | ≤ 200000 µs | %s |", testbed.Digits(testbed.Median(accepted)), verdict(testbed.Median(accepted) <= 200_000))
	if len(refused) > 0 {
		p("| p99 of being refused | %s µs | ≤ 1000 µs | %s |", testbed.Digits(testbed.Median(refused)), verdict(testbed.Median(refused) <= 1000))
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

// figures draws one figure per row into dir, and returns the Markdown lines that show the figures.
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
			v := c.Median("requests/s")
			if f.Y.Label != "requests/s" {
				v = c.Median("p99")
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
