package peer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fre-engine/fre/bench/internal/stats"
)

// Entry is a peer with the number of starts to measure.
type Entry struct {
	Name   string
	Peer   Peer
	N      int // sequential starts
	Burst  int // size of the largest burst
	Rounds int // number of bursts of each size
}

// Close closes the peers.
func Close(entries []Entry) error {
	var errs []error
	for _, e := range entries {
		errs = append(errs, e.Peer.Close())
	}
	return errors.Join(errs...)
}

// Series holds all starts of one peer at one concurrency, or only the starts of one kind.
type Series struct {
	Peer   string            `json:"peer"`
	Kind   string            `json:"kind,omitempty"`
	AtOnce int               `json:"at_once"`   // 1: sequential
	Rounds [][]time.Duration `json:"rounds_ns"` // one list per burst, or per turn of the sequence
}

// Name returns the peer's name with the kind.
func (s *Series) Name() string {
	if s.Kind == "" {
		return s.Peer
	}
	return s.Peer + ": " + s.Kind
}

// All returns the durations of all rounds.
func (s *Series) All() []time.Duration {
	var all []time.Duration
	for _, round := range s.Rounds {
		all = append(all, round...)
	}
	return all
}

// Line is a table row of a series.
type Line struct {
	stats.Summary
	Worst time.Duration // slowest start of all bursts; Slowest is the median over bursts
}

// Summary pools all rounds. For bursts, Slowest is the median of the slowest start of each burst,
// because one stall would spoil the slowest start of a whole run.
func (s *Series) Summary() Line {
	l := Line{Summary: stats.Summarize(s.All())}
	l.Worst = l.Slowest
	if s.AtOnce > 1 {
		var slowest []time.Duration
		for _, round := range s.Rounds {
			slowest = append(slowest, stats.Summarize(round).Slowest)
		}
		l.Slowest = stats.Median(slowest)
	}
	return l
}

// results collects the series in the order of the peers. The series of single kinds follow.
type results struct {
	atOnce int
	peers  []*Series
	kinds  []*Series
}

func newResults(entries []Entry, atOnce int) *results {
	r := &results{atOnce: atOnce}
	for _, e := range entries {
		r.peers = append(r.peers, &Series{Peer: e.Name, AtOnce: atOnce})
	}
	return r
}

// add adds one round of peer i.
func (r *results) add(i int, starts []Start) {
	var all []time.Duration
	ofKind := map[string][]time.Duration{}
	for _, s := range starts {
		all = append(all, s.Took)
		if s.Kind != "" {
			ofKind[s.Kind] = append(ofKind[s.Kind], s.Took)
		}
	}
	s := r.peers[i]
	s.Rounds = append(s.Rounds, all)
	for _, kind := range slices.Sorted(maps.Keys(ofKind)) {
		k := r.kind(s.Peer, kind)
		k.Rounds = append(k.Rounds, ofKind[kind])
	}
}

func (r *results) kind(peer, kind string) *Series {
	for _, s := range r.kinds {
		if s.Peer == peer && s.Kind == kind {
			return s
		}
	}
	s := &Series{Peer: peer, Kind: kind, AtOnce: r.atOnce}
	r.kinds = append(r.kinds, s)
	return s
}

// series returns all series except those of peers without a turn.
func (r *results) series() []*Series {
	var all []*Series
	for _, s := range append(r.peers, r.kinds...) {
		if len(s.Rounds) > 0 {
			all = append(all, s)
		}
	}
	return all
}

// turn is the number of sequential starts of a peer before the next peer's turn.
const turn = 10

// Sequential measures sequential starts, at most n per peer, in turns: the starts of each peer are
// spread evenly over the whole run. With a pause every start is a turn of its own after the pause;
// pools refill in the meantime.
func Sequential(ctx context.Context, entries []Entry, n int, pause time.Duration) ([]*Series, error) {
	r := newResults(entries, 1)
	turns := (n + turn - 1) / turn
	if pause > 0 {
		turns = n
	}
	for t := range turns {
		for i, e := range entries {
			peers := min(e.N, n)
			count := peers*(t+1)/turns - peers*t/turns
			if count == 0 {
				continue
			}
			if err := wait(ctx, pause); err != nil {
				return nil, err
			}
			got, err := e.Peer.Sequential(count)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", e.Name, err)
			}
			r.add(i, got)
		}
	}
	return r.series(), nil
}

// Bursts measures bursts of size simultaneous starts, the peers in turns. settle runs before each
// burst.
func Bursts(ctx context.Context, entries []Entry, size, rounds int, settle func(context.Context) error) ([]*Series, error) {
	r := newResults(entries, size)
	for round := range rounds {
		for i, e := range entries {
			if size > e.Burst || round >= e.Rounds {
				continue
			}
			if err := settle(ctx); err != nil {
				return nil, err
			}
			got, err := e.Peer.Burst(size)
			if err != nil {
				return nil, fmt.Errorf("%s, %d at once: %w", e.Name, size, err)
			}
			r.add(i, got)
		}
	}
	return r.series(), nil
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
