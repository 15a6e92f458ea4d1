package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/testbed"
)

type result struct {
	Host    host.Info      `json:"host"`
	CPUs    [2]int         `json:"cpus"` // servers, client
	Slice   time.Duration  `json:"slice"`
	Rounds  int            `json:"rounds"`
	Skipped []string       `json:"skipped"`
	Rows    []*testbed.Row `json:"rows"`

	Audience    *audience    `json:"audience,omitempty"`
	Transcoding *transcoding `json:"transcoding,omitempty"`
}

// join merges the results of several runs, in the order of rows. Of several results for a row the
// last one counts.
func join(paths []string) (*result, error) {
	var r *result
	var transcoded *transcoding
	var watched *audience
	measured := map[string]*testbed.Row{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		r = &result{}
		if err := json.Unmarshal(text, r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		transcoded, watched = cmp.Or(r.Transcoding, transcoded), cmp.Or(r.Audience, watched)
		for _, row := range r.Rows {
			measured[row.Name] = row
		}
	}
	r.Rows, r.Skipped, r.Transcoding, r.Audience = nil, nil, transcoded, watched
	for _, w := range rows(1) {
		if row := measured[w.name]; row != nil {
			row.Aims = w.aims
			r.Rows = append(r.Rows, row)
		}
	}
	return r, nil
}

// columns lists the columns of the tables.
var columns = []string{"requests/s", "p50", "p99", "CPU s/GB", "CPU µs/request", "MB/s allocated", "GC pauses/s", "GC pause", "longest GC pause"}

// markdown returns the tables of the page.
func (r *result) markdown() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("%s\n", r.Host.Markdown())
	p("Medians of %d turns of %v each; servers on CPU %d, the client on CPU %d, in a network namespace with reno. Latencies and pauses in microseconds. *CPU* is seconds of the server's own for each gigabyte of bodies. nginx is the better of tcp_nopush on and off.",
		r.Rounds, r.Slice, r.CPUs[0], r.CPUs[1])
	if r.CPUs[0] == r.CPUs[1] {
		p("\n**There is but one CPU: server and client share it.**")
	}
	for _, s := range r.Skipped {
		p("\n- %s", s)
	}
	for _, row := range r.Rows {
		p("\n## %s\n", row.Label)
		if row.Rate > 0 {
			p("%s requests/s.\n", testbed.Digits(row.Rate))
		} else {
			p("%d connections, closed loop.\n", row.Connections)
		}
		shown := slices.DeleteFunc(slices.Clone(columns), func(what string) bool { return empty(row, what) })
		p("| server | %s |\n|---%s|", strings.Join(shown, " | "), strings.Repeat("|---:", len(shown)))
		for _, c := range row.Cells {
			numbers := make([]string, len(shown))
			for i, what := range shown {
				if v := c.Median(what); v > 0 {
					numbers[i] = testbed.Digits(v)
				}
			}
			p("| %s | %s |", c.Label, strings.Join(numbers, " | "))
		}
		if all := row.Judge(); len(all) > 0 {
			p("\n| | | aim | |\n|---|---:|---:|---|")
			for _, j := range all {
				p("%s", j)
			}
		}
	}
	if r.Audience != nil {
		r.Audience.markdown(p)
	}
	if r.Transcoding != nil {
		r.Transcoding.markdown(p)
	}
	return b.String()
}

// empty reports whether a column of a row is left out: if no server has a value, and CPU per
// gigabyte for playlists or CPU per request for segments.
func empty(row *testbed.Row, what string) bool {
	unsaid := "CPU µs/request"
	if strings.HasPrefix(row.Name, "playlist") {
		unsaid = "CPU s/GB"
	}
	return what == unsaid ||
		!slices.ContainsFunc(row.Cells, func(c *testbed.Cell) bool { return c.Median(what) > 0 })
}
