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
		Ready: &ready{Things: 10, Pools: 10 * 100 << 10, Shells: 10 * 60 << 10, PSS: 10 * 20 << 10},
	}
	for _, f := range functions {
		r.Lines = append(r.Lines,
			&peer.Series{Peer: f.bareName, AtOnce: 1, Rounds: [][]time.Duration{{20 * ms}}},
			&peer.Series{Peer: "fre, " + f.label, AtOnce: 1, Rounds: [][]time.Duration{{2 * ms, 8 * ms}, {2 * ms}}},
			&peer.Series{Peer: "fre, " + f.label, Kind: "runtime", AtOnce: 1, Rounds: [][]time.Duration{{2 * ms}, {2 * ms}}})
	}
	text := r.markdown()
	for _, want := range []string{
		"holds 41.0 MB at its first line, the plain function 10.2 MB",
		"| node -e | 1 | 20.00 | 20.00 | 20.00 | 1.00 |",
		"| fre, node | 3 | 2.00 | 8.00 | 8.00 | 0.10 |",
		"| fre, node: runtime | 2 | 2.00 | 2.00 | 2.00 | 0.10 |",
		"| python no-op | 2 | 450 | 4.00 | 20.00 | 30.00 |",
		"a parked bare shell 60.0 KiB, of which 20.0 KiB is",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// TestReady leaves nothing of the two hosts it opens.
func TestReady(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	if r, err := measureReady(t.Context(), 3); err != nil || r.Things != 3 {
		t.Errorf("got %+v, error %v", r, err)
	}
}
