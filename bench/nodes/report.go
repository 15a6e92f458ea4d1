package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fre-engine/fre/bench/internal/stats"
)

// of returns one value of each turn.
func (s *series) of(get func(turn) float64) []float64 {
	var v []float64
	for _, t := range s.Turns {
		v = append(v, get(t))
	}
	return v
}

// ratios returns the rate of three nodes divided by the rate of one node: of the medians, and the
// least and the most over the turns.
func ratios(one, three *series) (of, least, most float64) {
	rate := func(t turn) float64 { return t.PerSecond }
	var each []float64
	for i, t := range one.Turns {
		each = append(each, three.Turns[i].PerSecond/t.PerSecond)
	}
	return stats.Median(three.of(rate)) / stats.Median(one.of(rate)), slices.Min(each), slices.Max(each)
}

// busy is the most CPU time of other programs on a quiet machine, in CPUs.
const busy = 0.2

func (r *result) markdown(o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Host.Markdown())
	syncs := "some time later, the default"
	if r.Sync {
		syncs = "before the acknowledgement of a message"
	}
	fmt.Fprintf(&b, "Each node has %d %% of one CPU, its sandboxes included (cgroup v1, a quota each %v), and a network namespace. The functions are warm Python functions: a no-op, and a function that sleeps. %d connections (4 in the last rows) are spread over the nodes; each connection sends 300 bytes again after each answer. The clients and NATS run outside the nodes' shares. NATS is a single server, which writes to disk %s. Events count from the first request to the end of the last event. Medians of %d turns of %v; the turns alternate; in brackets the least and the most.\n\n", r.Share, period, o.connections, syncs, o.rounds, o.slice)
	var others []float64
	for _, s := range r.Series {
		others = append(others, stats.Median(s.of(func(t turn) float64 { return t.Others })))
	}
	if most := slices.Max(others); most > busy {
		fmt.Fprintf(&b, "**Others took up to %.1f of the machine's %d CPUs meanwhile: to be repeated when it is quiet.**\n\n", most, r.Host.CPUs)
	}
	b.WriteString("| | nodes | each second | ÷ one node | p50 of requests | p99 | CPU of nodes for each | share used, by the least busy | NATS for each | NATS, CPUs | clients, CPUs | others, CPUs |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for i, s := range r.Series {
		rate := s.of(func(t turn) float64 { return t.PerSecond })
		ratio := "1"
		if s.Nodes > 1 {
			m, least, most := ratios(r.Series[i-1], s)
			ratio = fmt.Sprintf("**%.2f** (%.2f–%.2f)", m, least, most)
		}
		m := func(get func(turn) float64) float64 { return stats.Median(s.of(get)) }
		fmt.Fprintf(&b, "| %s | %d | %.0f (%.0f–%.0f) | %s | %.1f ms | %.1f ms | %.0f µs | %.0f %% | %.0f µs | %.2f | %.2f | %.2f |\n", s.Name, s.Nodes, stats.Median(rate), slices.Min(rate), slices.Max(rate), ratio,
			m(func(t turn) float64 { return t.P50 }), m(func(t turn) float64 { return t.P99 }), m(func(t turn) float64 { return t.CPU }), 100*m(func(t turn) float64 { return slices.Min(t.Used) }),
			m(func(t turn) float64 { return t.NATS }), m(func(t turn) float64 { return t.NATSPart }), m(func(t turn) float64 { return t.Clients }), others[i])
	}
	b.WriteString("\nIf busy nodes do less than three times the work, they spend the rest on each other: *CPU of nodes for each* shows the amount. Nodes with unused shares wait for NATS, the clients or the machine. If a node's only place is taken, the node passes the call to another node over NATS.\n")
	return b.String()
}
