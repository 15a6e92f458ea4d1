// Package media is what the video service and its transcoder say to each other, and the
// choice of what is made of a source.
package media

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Rung is one rendition of a ladder.
type Rung struct {
	Name    string `json:"name"` // such as 720p
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	BitRate int64  `json:"bit_rate"`        // bits each second: what it may have for long
	Codec   string `json:"codec,omitempty"` // of [Codecs]; H264 if it is not given
	Colour  Colour `json:"colour,omitzero"` // with 10 bits if it has HDR, else 8; the usual of its size if it is not given
}

// What pictures are encoded in.
const (
	H264 = "h264" // everything plays it
	HEVC = "hevc" // what Apple makes, and many televisions
	AV1  = "av1"  // browsers; newer devices
)

// Codecs are all of them.
var Codecs = []string{H264, HEVC, AV1}

// sparing is how many of H.264's bits a codec takes for pictures that look the same.
var sparing = map[string]float64{H264: 1, HEVC: 0.7, AV1: 0.6}

// smallest is the least side of a picture that every codec takes.
const smallest = 64

// ParseCodec is one of [Codecs] by its name, "" that of "".
func ParseCodec(s string) (string, error) {
	if s != "" && !slices.Contains(Codecs, s) {
		return "", fmt.Errorf("codec %q: %s", s, strings.Join(Codecs, ", "))
	}
	return s, nil
}

// In are the rungs of a ladder in a codec, with the bits that it takes; as they are if it is
// none of [Codecs], or the smallest rung is too small for some.
func In(codec string, rungs []Rung) []Rung {
	last := rungs[len(rungs)-1]
	if sparing[codec] == 0 || min(last.Width, last.Height) < smallest {
		codec = H264
	}
	var in []Rung
	for _, r := range rungs {
		r.Codec, r.BitRate = codec, int64(float64(r.BitRate)*sparing[codec])
		in = append(in, r)
	}
	return in
}

// Coloured are the rungs of a ladder in what every screen can show of a source's colours, and
// behind them, where the source has HDR and the codec does, the same in HDR.
func Coloured(source Colour, rungs []Rung) []Rung {
	var in, bright []Rung
	for _, r := range rungs {
		r.Colour = source.Plain()
		in = append(in, r)
		if source.HDR() && (r.Codec == HEVC || r.Codec == AV1) {
			r.Name, r.Colour = r.Name+"-hdr", source.Bright()
			bright = append(bright, r)
		}
	}
	return append(in, bright...)
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
		rungs = append(rungs, Rung{Name: fmt.Sprintf("%dp", short), Width: within(w, width), Height: within(h, height), BitRate: int64(bits)})
	}
	own := min(within(side, side), usual[0].side)
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

// within is the even number from n on, or below it where that is more than most; 2 at least.
func within(n, most int) int {
	even := (n + 1) / 2 * 2
	if even > most {
		even -= 2
	}
	return max(2, even)
}
