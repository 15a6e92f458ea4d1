package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/bench/internal/peer"
)

func TestMarkdownRatios(t *testing.T) {
	ms := time.Millisecond
	r := &result{Series: []*peer.Series{
		{Peer: "bare", AtOnce: 1, Rounds: [][]time.Duration{{2 * ms}}},
		{Peer: "fre", AtOnce: 1, Rounds: [][]time.Duration{{3 * ms}}},
		{Peer: "bare" + peer.CSuffix, AtOnce: 1, Rounds: [][]time.Duration{{ms / 2}}},
		{Peer: "fre" + peer.CSuffix, AtOnce: 1, Rounds: [][]time.Duration{{ms}}},
		{Peer: "fre" + peer.CSuffix, Kind: "bare", AtOnce: 1, Rounds: [][]time.Duration{{2 * ms}}},
		{Peer: "bare", AtOnce: 4, Rounds: [][]time.Duration{{4 * ms, 5 * ms}}},
		{Peer: "fre", AtOnce: 4, Rounds: [][]time.Duration{{8 * ms, 10 * ms}}},
	}}
	table := r.markdown()
	for _, want := range []string{
		"| 1 | fre | 1 | 3.00 | 3.00 | 3.00 | 3.00 | 1.50 | 1.50 |",
		"| 1 | fre, C without libc | 1 | 1.00 | 1.00 | 1.00 | 1.00 | 2.00 | 2.00 |",
		"| 1 | fre, C without libc: bare | 1 | 2.00 | 2.00 | 2.00 | 2.00 | 4.00 | 4.00 |",
		"| 4 | fre | 2 | 8.00 | 10.00 | 10.00 | 10.00 | 2.00 | 2.00 |",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no line %q in:\n%s", want, table)
		}
	}
}

func TestParseSizes(t *testing.T) {
	for _, c := range []struct {
		list string
		want []int
		ok   bool
	}{
		{"64,256", []int{64, 256}, true},
		{" 8 ", []int{8}, true},
		{"", nil, true},
		{"1", nil, false},
		{"64,x", nil, false},
		{"100000", nil, false},
	} {
		got, err := parseSizes(c.list)
		if diff := cmp.Diff(c.want, got); (err == nil) != c.ok || c.ok && diff != "" {
			t.Errorf("%q: got %v, error %v, want %v", c.list, got, err, c.want)
		}
	}
}
