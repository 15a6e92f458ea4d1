// Package media is what the video service and its transcoder say to each other, and the
// choice of what is made of a source.
package media

import (
	"fmt"
	"math"
)

// Rung is one rendition of a ladder.
type Rung struct {
	Name    string `json:"name"` // such as 720p
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	BitRate int64  `json:"bit_rate"` // bits each second: what it may have for long
}

// heights of the usual rungs in pixels, by the shorter side, and the bit rates that they
// have at 30 frames each second with H.264.
var usual = []struct {
	side int
	rate int64
}{{2160, 16_000_000}, {1440, 9_000_000}, {1080, 5_000_000}, {720, 2_800_000}, {480, 1_400_000}, {360, 800_000}, {240, 400_000}}

// Ladder chooses the rungs for a picture of a size in pixels, as it is shown, and a rate in
// frames each second: the picture's own size, even, and what is usual below it, at most n.
// None is larger than the source, and none is next to one of nearly its size.
func Ladder(width, height int, rate float64, n int) []Rung {
	side := min(width, height)
	var rungs []Rung
	add := func(short int, bits float64) {
		w, h := short*width/side, short
		if width < height {
			w, h = short, short*height/side
		}
		rungs = append(rungs, Rung{Name: fmt.Sprintf("%dp", short), Width: even(w), Height: even(h), BitRate: int64(bits)})
	}
	own := min(even(side), usual[0].side)
	add(own, bitRate(own, rate))
	for _, u := range usual {
		if len(rungs) < n && float64(u.side) < 0.85*float64(own) {
			add(u.side, bitRate(u.side, rate))
		}
	}
	return rungs
}

// bitRate goes with the 1.6th power of a side between the usual ones, as those do, and with
// the root of the frame rate: frames that are close to each other are like each other.
func bitRate(side int, rate float64) float64 {
	near := usual[len(usual)-1]
	for _, u := range usual {
		if side >= u.side {
			near = u
			break
		}
	}
	bits := float64(near.rate) * math.Pow(float64(side)/float64(near.side), 1.6)
	if rate > 0 {
		bits *= math.Sqrt(max(rate, 10) / 30)
	}
	return max(32_000, math.Round(bits/1000)*1000)
}

func even(n int) int { return max(2, (n+1)/2*2) }
