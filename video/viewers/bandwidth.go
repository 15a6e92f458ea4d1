package viewers

import (
	"math"
	"time"
)

// Bandwidth is estimated, and a rung chosen by it, as hls.js does by default: two
// exponentially weighted means of what downloads measured, the lower of which counts, and
// less of it for a step up than for staying.
const (
	fastHalf = 3 * time.Second // of downloading
	slowHalf = 9 * time.Second

	shareDown = 0.95
	shareUp   = 0.7

	shortest = 50 * time.Millisecond // a download counts as this long at least
	smallest = 16 << 10              // one of fewer bytes says nothing
)

// mean weights each value by the time it was measured for, half as much when half has passed.
type mean struct {
	sum, weight float64
}

func (m *mean) add(value float64, d, half time.Duration) {
	old := math.Exp2(-d.Seconds() / half.Seconds())
	m.sum, m.weight = m.sum*old+value*(1-old), m.weight*old+(1-old)
}

// bandwidth is an estimate of what a network lets through.
type bandwidth struct{ fast, slow mean }

func (b *bandwidth) add(bytes int64, d time.Duration) {
	if bytes < smallest {
		return
	}
	d = max(d, shortest)
	rate := float64(8*bytes) / d.Seconds()
	b.fast.add(rate, d, fastHalf)
	b.slow.add(rate, d, slowHalf)
}

// rate is in bits a second; 0: nothing is known.
func (b *bandwidth) rate() float64 {
	if b.fast.weight == 0 {
		return 0
	}
	return min(b.fast.sum/b.fast.weight, b.slow.sum/b.slow.weight)
}

// choose is the rung to go on with from one: the best that the estimate allows.
func (b *bandwidth) choose(rungs []rung, from int) int {
	rate := b.rate()
	if rate == 0 {
		return from
	}
	for i := len(rungs) - 1; i > 0; i-- {
		share := shareDown
		if i > from {
			share = shareUp
		}
		if float64(rungs[i].bandwidth) <= share*rate {
			return i
		}
	}
	return 0
}
