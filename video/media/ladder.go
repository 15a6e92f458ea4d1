// Package media defines the messages between the video service and its transcoder, and chooses
// the renditions of a source.
package media

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Rung is a rendition of a ladder.
type Rung struct {
	Name    string `json:"name"` // such as 720p
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	BitRate int64  `json:"bit_rate"`        // most bits per second in the long run
	Codec   string `json:"codec,omitempty"` // of [Codecs]; default H264
	Colour  Colour `json:"colour,omitzero"` // 10 bits with HDR, else 8; default: the usual colours of the size
}

// Codecs of pictures.
const (
	H264 = "h264" // plays everywhere
	HEVC = "hevc" // used by Apple and many televisions
	AV1  = "av1"  // plays in browsers and on newer devices
)

// Codecs lists all codecs.
var Codecs = []string{H264, HEVC, AV1}

// sparing is the bit rate of a codec relative to H.264, at the same visible quality.
var sparing = map[string]float64{H264: 1, HEVC: 0.7, AV1: 0.6}

// smallest is the shortest side of a picture, in pixels, accepted by every codec.
const smallest = 64

// ParseCodec checks the name of a codec. "" stays "".
func ParseCodec(s string) (string, error) {
	if s != "" && !slices.Contains(Codecs, s) {
		return "", fmt.Errorf("codec %q: %s", s, strings.Join(Codecs, ", "))
	}
	return s, nil
}

// In returns the rungs of a ladder in a codec, with its bit rates. The codec becomes H.264 if it
// is unknown, or if the smallest rung is too small for some codec.
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

// Coloured returns the rungs with colours for every screen. If the source and the codec have HDR,
// the same rungs in HDR follow.
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

// usual lists the shorter sides of the usual rungs, in pixels, and their bit rates in H.264 at 30
// frames per second.
var usual = []struct {
	side int
	rate int64
}{{2160, 16_000_000}, {1440, 9_000_000}, {1080, 5_000_000}, {720, 2_800_000}, {480, 1_400_000}, {360, 800_000}, {240, 400_000}}

// Ladder chooses at most n rungs for a picture of a size in pixels, as shown, and a rate in
// frames per second: the picture's own size, made even, then the usual smaller sizes. No rung is
// larger than the source, and a rung of nearly its size is skipped.
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

// bitRate returns a bit rate. Between the usual sides it grows with the 1.6th power of the side.
// It grows with the square root of the frame rate, since close frames resemble each other.
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

// within returns n rounded up to an even number, or down if the result exceeds most; at least 2.
func within(n, most int) int {
	even := (n + 1) / 2 * 2
	if even > most {
		even -= 2
	}
	return max(2, even)
}
