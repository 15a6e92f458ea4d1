package viewers

import (
	"math"
	"time"
)

// The bandwidth estimate and the choice of a rung follow the defaults of hls.js: the lower of two
// exponentially weighted means of measured download rates. Switching up needs more reserve than
// staying.
const (
	fastHalf = 3 * time.Second // half-life, in time spent downloading
	slowHalf = 9 * time.Second

	shareDown = 0.95
	shareUp   = 0.7

	shortest = 50 * time.Millisecond // shorter downloads count as this long
	smallest = 16 << 10              // bytes; smaller downloads are not measured
)

// mean is a mean weighted by duration. A value's weight halves with each half-life.
type mean struct {
	sum, weight float64
}

func (m *mean) add(value float64, d, half time.Duration) {
	old := math.Exp2(-d.Seconds() / half.Seconds())
	m.sum, m.weight = m.sum*old+value*(1-old), m.weight*old+(1-old)
}

// bandwidth estimates the bandwidth of a viewer's network.
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

// rate returns bits per second, or 0 without an estimate.
func (b *bandwidth) rate() float64 {
	if b.fast.weight == 0 {
		return 0
	}
	return min(b.fast.sum/b.fast.weight, b.slow.sum/b.slow.weight)
}

// choose returns the best rung within the estimate, for a viewer at rung from.
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
