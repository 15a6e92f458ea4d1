package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/peer"
	"github.com/fre-engine/fre/bench/internal/stats"
)

// result is the raw output of a run, as written to bench/results.
type result struct {
	Host    host.Info      `json:"host"`
	Skipped []string       `json:"skipped,omitempty"`
	Series  []*peer.Series `json:"series"`
}

// markdown returns the table of the page. Each ratio refers to the first peer with the same
// program.
func (r *result) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Host.Markdown())
	b.WriteString("Milliseconds from the request to the program's first own instruction. In bursts, the time counts from the begin of the burst; *slowest* is the slowest start of the median burst, *worst* the slowest start of all bursts. The program is a static Go program. Peers with *C without libc* run a C program without libc, and their ratios refer to a bare start of the C program.\n\n")
	b.WriteString("| at once | peer | starts | p50 | p99 | slowest | worst | p50 ÷ bare | slowest ÷ bare |\n")
	b.WriteString("|---:|---|---:|---:|---:|---:|---:|---:|---:|\n")
	type start struct {
		atOnce int
		c      bool
	}
	bare := map[start]peer.Line{}
	for _, s := range r.Series {
		l := s.Summary()
		like := start{s.AtOnce, strings.HasSuffix(s.Peer, peer.CSuffix)}
		if _, ok := bare[like]; !ok {
			bare[like] = l
		}
		floor := bare[like]
		fmt.Fprintf(&b, "| %d | %s | %d | %s | %s | %s | %s | %.2f | %.2f |\n", s.AtOnce, s.Name(), l.Count,
			milliseconds(l.P50), milliseconds(l.P99), milliseconds(l.Slowest), milliseconds(l.Worst),
			stats.Ratio(l.P50, floor.P50), stats.Ratio(l.Slowest, floor.Slowest))
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(&b, "\nSkipped: %s.\n", s)
	}
	return b.String()
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond))
}
