package transcode

import (
	"math"

	"github.com/fre-engine/fre/video/ffmpeg"
	"github.com/fre-engine/fre/video/media"
)

// Probe says what is in a file. Pictures that belong to a file, such as covers, are of kind
// other. Durations that cannot be, negative or longer than [MostSeconds], are 0, as those are
// that nobody has said.
func Probe(path string) (*media.Source, error) {
	in, err := ffmpeg.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	s := &media.Source{Format: in.Format(), Duration: believed(in.Duration()), Offset: math.Inf(1), BitRate: in.BitRate()}
	picture := math.Inf(1) // when it begins
	for _, from := range in.Streams() {
		to := media.Stream{
			Index: from.Index, Kind: string(from.Kind), Codec: from.Codec, Duration: believed(from.Duration), BitRate: from.BitRate,
			Language: from.Language, Title: from.Title, Default: from.Default, SampleRate: from.SampleRate, Channels: from.Channels,
		}
		switch {
		case from.Cover:
			to.Kind = string(ffmpeg.Other)
		case from.Kind == ffmpeg.Video:
			to.Width, to.Height = shown(from)
			to.Rotation = from.Rotation
			to.FrameRate = media.Fraction{Num: from.FrameRate.Num, Den: from.FrameRate.Den}
		}
		switch to.Kind {
		case string(ffmpeg.Video):
			picture = min(picture, from.Start)
			fallthrough
		case string(ffmpeg.Audio):
			s.Offset = min(s.Offset, from.Start)
		}
		s.Streams = append(s.Streams, to)
	}
	switch {
	case math.IsInf(s.Offset, 1):
		s.Offset = 0
	case picture-s.Offset <= priming:
		s.Offset = picture
	}
	return s, nil
}

// priming is how much earlier than the picture sound may begin, in seconds, and nothing be
// lost: what an encoder of sound puts before what it encodes, which not every container
// takes away.
const priming = 0.1

func believed(seconds float64) float64 {
	if seconds < 0 || seconds > MostSeconds {
		return 0
	}
	return seconds
}
