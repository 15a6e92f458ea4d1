package viewers

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A player's state, playing time, starts, seeks and stalls follow from the loaded segments.
func TestPlayer(t *testing.T) {
	const s = time.Second
	type want struct {
		state         state
		played        time.Duration
		starts, seeks []time.Duration
		stalls        []interval
	}
	for _, c := range []struct {
		name   string
		tracks int
		play   func(p *player, picture, sound *track)
		want   want
	}{
		{"nothing yet", 1, func(p *player, _, _ *track) { p.advance(9 * s) }, want{state: starting}},
		{"too little to begin", 1, func(p *player, a, _ *track) {
			p.load(3*s, a, 1*s, 1*s)
			p.advance(9 * s)
		}, want{state: starting}},
		{"begins", 1, func(p *player, a, _ *track) {
			p.load(3*s, a, 1*s, 1*s)
			p.load(5*s, a, 3*s, 4*s)
			p.advance(7 * s)
		}, want{state: playing, played: 2 * s, starts: []time.Duration{5 * s}}},
		{"short and whole", 1, func(p *player, a, _ *track) {
			p.load(3*s, a, 1*s, 1*s)
			p.finish(4*s, a)
			p.advance(9 * s)
		}, want{state: ended, played: 1 * s, starts: []time.Duration{4 * s}}},
		{"waits for sound", 2, func(p *player, a, b *track) {
			p.load(1*s, a, 10*s, 10*s)
			p.load(4*s, b, 2*s, 2*s)
			p.advance(5 * s)
		}, want{state: playing, played: 1 * s, starts: []time.Duration{4 * s}}},
		{"stalls, not for less than enough", 1, func(p *player, a, _ *track) {
			p.load(0, a, 4*s, 4*s)
			p.load(7*s, a, 1*s, 5*s) // stalled since 4
			p.load(9*s, a, 1*s, 6*s)
			p.advance(10 * s)
		}, want{state: playing, played: 5 * s, starts: []time.Duration{0}, stalls: []interval{{4 * s, 9 * s}}}},
		{"stalls twice", 1, func(p *player, a, _ *track) {
			p.load(0, a, 4*s, 4*s)
			p.load(5*s, a, 2*s, 6*s)
			p.load(10*s, a, 2*s, 8*s)
		}, want{state: playing, played: 6 * s, starts: []time.Duration{0}, stalls: []interval{{4 * s, 5 * s}, {7 * s, 10 * s}}}},
		{"sound alone is late", 2, func(p *player, a, b *track) {
			p.load(0, a, 20*s, 20*s)
			p.load(0, b, 4*s, 4*s)
			p.load(6*s, b, 4*s, 8*s)
		}, want{state: playing, played: 4 * s, starts: []time.Duration{0}, stalls: []interval{{4 * s, 6 * s}}}},
		{"just in time", 1, func(p *player, a, _ *track) {
			p.load(0, a, 4*s, 4*s)
			p.load(4*s, a, 4*s, 8*s)
			p.advance(8 * s)
		}, want{state: playing, played: 8 * s, starts: []time.Duration{0}}},
		{"sound that is shorter", 2, func(p *player, a, b *track) {
			p.load(0, a, 4*s, 4*s)
			p.load(0, b, 3*s, 3*s)
			p.finish(0, b)
			p.load(4*s, a, 4*s, 8*s)
			p.finish(4*s, a)
			p.advance(9 * s)
		}, want{state: ended, played: 8 * s, starts: []time.Duration{0}}},
		{"a seek is no stall", 1, func(p *player, a, _ *track) {
			p.load(0, a, 4*s, 4*s)
			p.seek(3*s, 40*s)
			p.load(8*s, a, 4*s, 44*s)
			p.advance(9 * s)
		}, want{state: playing, played: 4 * s, starts: []time.Duration{0}, seeks: []time.Duration{5 * s}}},
		{"leaves while it stands", 1, func(p *player, a, _ *track) {
			p.load(0, a, 4*s, 4*s)
			p.leave(9 * s)
		}, want{state: ended, played: 4 * s, starts: []time.Duration{0}, stalls: []interval{{4 * s, 9 * s}}}},
		{"time that goes back", 1, func(p *player, a, _ *track) {
			p.load(2*s, a, 4*s, 4*s)
			p.advance(3 * s)
			p.advance(1 * s)
		}, want{state: playing, played: 1 * s, starts: []time.Duration{2 * s}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &player{enough: 2 * s}
			for range c.tracks {
				p.tracks = append(p.tracks, &track{})
			}
			c.play(p, p.tracks[0], p.tracks[c.tracks-1])
			got := want{p.state, p.played, p.starts, p.seeks, p.stalls}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(want{}, interval{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The estimate of the bandwidth follows the measured downloads cautiously.
func TestBandwidth(t *testing.T) {
	rungs := []rung{{bandwidth: 500_000}, {bandwidth: 1_000_000}, {bandwidth: 4_000_000}}
	var b bandwidth
	if got := b.choose(rungs, 1); b.rate() != 0 || got != 1 {
		t.Errorf("knowing nothing: %v, rung %d", b.rate(), got)
	}
	b.add(smallest-1, time.Second)
	if b.rate() != 0 {
		t.Errorf("by a small download: %v", b.rate())
	}
	b.add(1_000_000, 4*time.Second) // 2 Mbit/s
	if got := b.rate(); math.Abs(got-2e6) > 1 {
		t.Errorf("after the first: %v", got)
	}
	for from, want := range []int{1, 1, 1} {
		if got := b.choose(rungs, from); got != want {
			t.Errorf("at 2 Mbit/s from rung %d: %d, want %d", from, got, want)
		}
	}
	for range 20 {
		b.add(2_500_000, 4*time.Second) // 5 Mbit/s: enough to stay on the last rung, too little to climb there
	}
	if got := b.rate(); got < 4.9e6 || got > 5e6+1 {
		t.Errorf("after many at 5 Mbit/s: %v", got)
	}
	for from, want := range []int{1, 1, 2} {
		if got := b.choose(rungs, from); got != want {
			t.Errorf("at 5 Mbit/s from rung %d: %d, want %d", from, got, want)
		}
	}
	b.add(50_000, 4*time.Second) // 0.1 Mbit/s
	if got := b.rate(); got > 3e6 {
		t.Errorf("after a slow one: %v", got)
	}
	for range 20 {
		b.add(50_000, 4*time.Second)
	}
	if got := b.choose(rungs, 2); got != 0 {
		t.Errorf("at 0.1 Mbit/s: rung %d", got)
	}
	b = bandwidth{}
	b.add(1_000_000, time.Microsecond)
	if got, most := b.rate(), 8e6/shortest.Seconds(); got > most+1 {
		t.Errorf("by a download in no time: %v, want %v at most", got, most)
	}
}
