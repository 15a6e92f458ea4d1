package service

import (
	"errors"
	"fmt"
	"math"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
)

// Sizes of chunks and limits of tracks.
const (
	segmentSeconds = 4
	mostChunk      = 6  // segments
	leastChunk     = 2  // segments; a chunk may decode some seconds before its start in vain
	mostAudio      = 8  // tracks
	mostText       = 16 // tracks
	mostTextBytes  = 16 << 20
	thumbsWidth    = 160
	thumbsSide     = 10 // columns and rows of a sheet
)

// plan plans the renditions of a source, with pictures in codec.
func (w *work) plan(s *media.Source, codec string) (*asset.Plan, error) {
	if limit := w.cfg.MostDuration.Seconds(); s.Duration > limit {
		return nil, fmt.Errorf("it takes %.0f seconds, more than the %.0f that are allowed: fre-video serve --max-duration allows more", s.Duration, limit)
	}
	p := &asset.Plan{Video: -1, Segment: segmentSeconds, Most: w.cfg.MostDuration.Seconds(), Preset: w.cfg.Preset}
	var picture *media.Stream
	if s.Picture >= 0 && s.Streams[s.Picture].Width > 0 && s.Streams[s.Picture].Height > 0 {
		picture = &s.Streams[s.Picture]
	}
	planStreams(p, s)
	if picture == nil && len(p.Audio) == 0 {
		return nil, errors.New("there is neither a picture nor sound in it")
	}
	if len(p.Audio) > 0 && s.Duration > media.MostSound {
		return nil, fmt.Errorf("it takes %.0f seconds, and sound can be made of %d at most: cut it, or take the sound out", s.Duration, media.MostSound)
	}
	if picture != nil {
		p.Video = picture.Index
		p.Grid.Rate = frameRate(picture.FrameRate, picture.Interlaced)
		rate := float64(p.Grid.Rate.Num) / float64(p.Grid.Rate.Den)
		p.Grid.Segment = max(1, int(math.Round(segmentSeconds*rate)))
		p.Chunk = p.Grid.Segment * chunkSize(s.Duration, w.cfg.Slots)
		p.Rungs = media.Coloured(picture.Colour, media.In(codec, media.Ladder(picture.Width, picture.Height, rate, w.cfg.Rungs)))
		p.Thumbs = max(1, math.Round(s.Duration/120))
	}
	return p, nil
}

// planStreams adds the streams of sound and subtitles, up to the limits.
func planStreams(p *asset.Plan, s *media.Source) {
	for _, stream := range s.Streams {
		switch stream.Kind {
		case "audio":
			if len(p.Audio) < mostAudio && stream.Channels > 0 {
				p.Audio = append(p.Audio, stream.Index)
			}
		case "subtitle":
			if len(p.Text) < mostText {
				p.Text = append(p.Text, stream.Index)
			}
		}
	}
}

// chunkSize returns the number of segments in a chunk, for a video of a duration in seconds.
// Chunks are as long as allowed, but short enough that all slots get the same number of chunks
// and stay busy to the end. A duration of 0 means unknown.
func chunkSize(seconds float64, slots int) int {
	segments := int(math.Ceil(seconds / segmentSeconds))
	if segments == 0 {
		return mostChunk
	}
	each := (segments + slots*mostChunk - 1) / (slots * mostChunk) // chunks of a slot
	return max((segments+slots*each-1)/(slots*each), leastChunk)
}

// frameRate returns the frame rate of the renditions. Up to 60 a source keeps its rate; a higher
// rate is halved until it is at most 60. An unknown or implausible rate becomes 30. Up to 30.5
// frames per second, an interlaced frame counts as two pictures.
func frameRate(f media.Fraction, interlaced bool) media.Fraction {
	if rate := float64(f.Num) / float64(f.Den); interlaced && rate <= 30.5 {
		f.Num *= 2
	}
	rate := float64(f.Num) / float64(f.Den)
	if f.Num <= 0 || f.Den <= 0 || rate < 0.1 || rate > 240 {
		return media.Fraction{Num: 30, Den: 1}
	}
	for ; rate > 60.5; rate /= 2 {
		f.Den *= 2
	}
	return f
}

// estimateChunks returns the number of chunks if the source lasts as long as it says.
func estimateChunks(p *asset.Plan, duration float64) int {
	if p.Video < 0 {
		return 0
	}
	rate := float64(p.Grid.Rate.Num) / float64(p.Grid.Rate.Den)
	return max(1, int(math.Ceil(min(duration, p.Most)*rate/float64(p.Chunk))))
}
