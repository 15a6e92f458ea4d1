package peer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/bench/internal/peer"
	"github.com/fre-engine/fre/bench/internal/stats"
)

func TestSummary(t *testing.T) {
	rounds := [][]time.Duration{{1, 2}, {3, 40}, {5, 6}}
	pooled := stats.Summary{Count: 6, P50: 3, P99: 40, Slowest: 40}
	burst := pooled
	burst.Slowest = 6 // the median of 2, 40 and 6
	for _, c := range []struct {
		name   string
		atOnce int
		want   peer.Line
	}{
		{"sequence", 1, peer.Line{Summary: pooled, Worst: 40}},
		{"burst", 2, peer.Line{Summary: burst, Worst: 40}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := (&peer.Series{AtOnce: c.atOnce, Rounds: rounds}).Summary()
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("summary (-want +got):\n%s", diff)
			}
		})
	}
}

// counted starts no process: the duration of a start is its number.
type counted struct {
	starts *int
	kinds  []string // kinds[i%len] is the kind of start i
}

func (c counted) Sequential(n int) ([]peer.Start, error) {
	var starts []peer.Start
	for range n {
		starts = append(starts, peer.Start{Took: time.Duration(*c.starts), Kind: c.kinds[*c.starts%len(c.kinds)]})
		*c.starts++
	}
	return starts, nil
}

func (c counted) Burst(n int) ([]peer.Start, error) { return c.Sequential(n) }
func (counted) Close() error                        { return nil }

func TestSequentialTakesTurns(t *testing.T) {
	starts := 0
	got, err := peer.Sequential(t.Context(), []peer.Entry{
		{Name: "a", Peer: counted{&starts, []string{""}}, N: 20},
		{Name: "b", Peer: counted{&starts, []string{"x", "y"}}, N: 4},
	}, 20, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []*peer.Series{
		{Peer: "a", AtOnce: 1, Rounds: [][]time.Duration{
			{0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
			{12, 13, 14, 15, 16, 17, 18, 19, 20, 21},
		}},
		{Peer: "b", AtOnce: 1, Rounds: [][]time.Duration{{10, 11}, {22, 23}}},
		{Peer: "b", Kind: "x", AtOnce: 1, Rounds: [][]time.Duration{{10}, {22}}},
		{Peer: "b", Kind: "y", AtOnce: 1, Rounds: [][]time.Duration{{11}, {23}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestBursts(t *testing.T) {
	starts, settled := 0, 0
	entries := []peer.Entry{
		{Name: "a", Peer: counted{&starts, []string{""}}, Burst: 4, Rounds: 2},
		{Name: "too many", Peer: counted{&starts, []string{""}}, Burst: 3, Rounds: 2},
		{Name: "once", Peer: counted{&starts, []string{""}}, Burst: 4, Rounds: 1},
	}
	got, err := peer.Bursts(t.Context(), entries, 4, 2, func(context.Context) error { settled++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := []*peer.Series{
		{Peer: "a", AtOnce: 4, Rounds: [][]time.Duration{{0, 1, 2, 3}, {8, 9, 10, 11}}},
		{Peer: "once", AtOnce: 4, Rounds: [][]time.Duration{{4, 5, 6, 7}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	if settled != 3 {
		t.Errorf("settled %d times, want before each of 3 bursts", settled)
	}
	over := errors.New("over")
	if _, err := peer.Bursts(t.Context(), entries, 4, 2, func(context.Context) error { return over }); !errors.Is(err, over) {
		t.Errorf("got error %v, want %v", err, over)
	}
}
