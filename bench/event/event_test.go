package main

import (
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/bench/internal/peer"
	"github.com/fre-engine/fre/bench/internal/stats"
	"github.com/fre-engine/fre/internal/fretest"
)

func TestMarkdown(t *testing.T) {
	ms := time.Millisecond
	r := &result{
		HeavyKiB: 40000, PlainKiB: 10000,
		Throughput: []*throughput{{
			Function: "python no-op", Connections: 2, PerSecond: []float64{400, 500},
			Summary: stats.Summary{P50: 4 * ms, P99: 20 * ms, Slowest: 30 * ms},
		}},
		Ready: &ready{Few: 10, Many: 20, Rounds: []readyTurn{
			readyRound(0), readyRound(1), readyRound(70), // the median's slopes are the slopes of the second round
		}},
	}
	for _, f := range functions {
		r.Lines = append(r.Lines,
			&peer.Series{Peer: f.bareName, AtOnce: 1, Rounds: [][]time.Duration{{20 * ms}}},
			&peer.Series{Peer: "fre, " + f.label, AtOnce: 1, Rounds: [][]time.Duration{{2 * ms, 8 * ms}, {2 * ms}}},
			&peer.Series{Peer: "fre, " + f.label, Kind: "interpreter", AtOnce: 1, Rounds: [][]time.Duration{{2 * ms}, {2 * ms}}})
	}
	text := r.markdown()
	for _, want := range []string{
		"holds 41.0 MB at its first line, the plain function 10.2 MB",
		"| node -e | 1 | 20.00 | 20.00 | 20.00 | 1.00 |",
		"| fre, node | 3 | 2.00 | 8.00 | 8.00 | 0.10 |",
		"| fre, node: interpreter | 2 | 2.00 | 2.00 | 2.00 | 0.10 |",
		"| python no-op | 2 | 450 | 4.00 | 20.00 | 30.00 |",
		"where 20 are kept: the slope from 10, median of 3 rounds.",
		"| bare parked sandbox, without its cgroup | 41.0 | 12.0 | 8.0 | 61.0 |",
		"| cgroup, pooled | 90.0 | 0.0 | 2.0 | 92.0 |",
		"| bare parked sandbox and its cgroup | 131.0 | 12.0 | 10.0 | 153.0 |",
		"| network namespace, pooled | 200.0 | 0.0 | 1.0 | 201.0 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// readyRound returns a round with known slopes between 10 and 20 items, in KiB, and more KiB in the
// kernel's part of a parked sandbox.
func readyRound(more int64) readyTurn {
	line := func(once, each held) [2]held {
		at := func(n int64) held {
			return held{(once.Kernel + n*each.Kernel) << 10, (once.Spawner + n*each.Spawner) << 10, (once.Engine + n*each.Engine) << 10}
		}
		return [2]held{at(10), at(20)}
	}
	return readyTurn{
		Groups: line(held{Kernel: 1000, Engine: 50}, held{Kernel: 90, Engine: 2}),
		Pools:  line(held{Kernel: 2000, Spawner: 700}, held{Kernel: 290, Engine: 3}),
		Parked: line(held{Kernel: 9000, Spawner: 800}, held{Kernel: 290 + 90 + 40 + more, Spawner: 12, Engine: 3 + 2 + 8}),
	}
}

// The measurement leaves no leftovers of its hosts.
func TestReady(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	if r, err := measureReady(t.Context(), 3, 1); err != nil || r.Few != 1 || r.Many != 3 || len(r.Rounds) != 1 {
		t.Errorf("got %+v, error %v", r, err)
	}
}
