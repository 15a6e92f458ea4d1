package transcode

import (
	"errors"
	"io"
	"math"
	"slices"
	"strings"

	"golang.org/x/text/language"

	"github.com/fre-engine/fre/video/ffmpeg"
	"github.com/fre-engine/fre/video/media"
)

// Whoever asks takes as many streams as a file can have here.
var _ [media.MostStreams - ffmpeg.MostStreams]struct{}

// Probe says what is in a file. Pictures that belong to a file, such as covers, are of kind
// other. Durations that cannot be, negative or longer than [MostSeconds], are 0, as those are
// that nobody has said. That of the file is only more than most seconds, unless that is 0,
// where something is there so late: containers say what they like.
func Probe(path string, most float64) (*media.Source, error) {
	in, err := ffmpeg.Open(path)
	if err != nil {
		return nil, unread(path, err)
	}
	defer in.Close()
	s := &media.Source{Picture: -1, Format: in.Format(), Duration: believed(in.Duration()), Offset: math.Inf(1), BitRate: in.BitRate()}
	begins := math.Inf(1) // the picture
	for _, from := range in.Streams() {
		to := media.Stream{
			Index: from.Index, Kind: string(from.Kind), Codec: from.Codec, Duration: believed(from.Duration), BitRate: from.BitRate,
			Language: languageOf(from.Language), Title: from.Title, Default: from.Default, SampleRate: from.SampleRate, Channels: from.Channels,
		}
		switch {
		case from.Cover:
			to.Kind = string(ffmpeg.Other)
		case from.Kind == ffmpeg.Video:
			to.Width, to.Height = shown(from, from.Width, from.Height, ffmpeg.Rational{})
			to.Interlaced = from.Interlaced
			to.Colour = colourOf(look{colour: from.Colour}, from, 0)
			to.Rotation, to.Mirrored = from.Rotation, from.Mirrored
			to.FrameRate = media.Fraction{Num: from.FrameRate.Num, Den: from.FrameRate.Den}
		}
		switch to.Kind {
		case string(ffmpeg.Video):
			begins = min(begins, from.Start)
			fallthrough
		case string(ffmpeg.Audio):
			s.Offset = min(s.Offset, from.Start)
		}
		s.Streams = append(s.Streams, to)
	}
	switch {
	case math.IsInf(s.Offset, 1):
		s.Offset = 0
	case begins-s.Offset <= priming:
		s.Offset = begins
	}
	s.Picture, s.Unseen = picture(path, in, s)
	if err := joins(in, s); err != nil {
		return nil, err
	}
	if long := in.Duration(); s.Joins == 0 && most > 0 && long > most {
		if s.Duration, err = longer(path, s, most); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// joins goes through all of the file and notes how often its times jump, and where it ends
// then.
func joins(in *ffmpeg.Input, s *media.Source) error {
	r := &reading{in: in, packet: ffmpeg.NewPacket(), clock: newTimeline(in)}
	defer r.packet.Close()
	for {
		if err := r.any(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
	}
	if s.Joins = r.clock.joins; s.Joins == 0 {
		return nil
	}
	s.Duration = believed(float64(r.clock.latest)/second - s.Offset)
	for i, b := range r.clock.due {
		s.Streams[i].Duration = believed(float64(b.due)/second - s.Offset)
	}
	return nil
}

// mostTried is of how many streams a picture is decoded to find one.
const mostTried = 4

// picture is the stream of pictures to take: the best of which one can be decoded, which says
// more of them. If none can be decoded and there is sound, n is -1 and unseen says why; without
// sound n is the best, whose decoder reports the error. -1 also if there are none.
func picture(path string, in *ffmpeg.Input, s *media.Source) (n int, unseen string) {
	best := in.Best(ffmpeg.Video)
	for _, i := range best[:min(len(best), mostTried)] {
		err := first(path, &s.Streams[i], s.Offset)
		if err == nil {
			return i, ""
		}
		if unseen == "" {
			unseen = err.Error()
		}
	}
	for _, s := range in.Streams() {
		if s.Kind == ffmpeg.Video && !s.Cover { // of a codec that nobody decodes
			best = append(best, s.Index)
			if unseen == "" {
				unseen = "there is no decoder for " + s.Codec
			}
		}
	}
	if len(best) == 0 || len(in.Best(ffmpeg.Audio)) > 0 {
		return -1, unseen
	}
	return best[0], ""
}

// first decodes the first picture of a stream and notes its properties.
func first(path string, s *media.Stream, offset float64) error {
	r, err := open(path, s.Index, ffmpeg.Video, offset, false)
	if err != nil {
		return err
	}
	defer r.close()
	found := false
	err = r.decode(ffmpeg.DecoderOptions{Threads: 1}, func() bool { return found }, func(f *ffmpeg.Frame) error {
		found = true
		s.Interlaced = s.Interlaced || f.Interlaced()
		s.Colour = colourOf(lookOf(f), r.stream, f.Peak())
		return nil
	})
	if err == nil && !found {
		err = errNoPicture
	}
	return err
}

// languageOf is a language tag (BCP 47) of what a file says: ISO 639-2 in either of its forms
// (ger, deu), ISO 639-1, or a tag. "" where that names no language.
func languageOf(s string) string {
	t, err := language.Parse(strings.TrimSpace(s))
	if err != nil || t == language.Und {
		return ""
	}
	return t.String()
}

// longer is how long a source is that claims more than most seconds: at the most what the
// packets say that come then, of the picture or else of the sound.
func longer(path string, s *media.Source, most float64) (float64, error) {
	kind := ffmpeg.Audio
	n := s.Picture
	if n >= 0 {
		kind = ffmpeg.Video
	} else if n = slices.IndexFunc(s.Streams, func(s media.Stream) bool { return s.Kind == string(ffmpeg.Audio) }); n < 0 {
		return 0, nil
	}
	r, err := open(path, s.Streams[n].Index, kind, s.Offset, false)
	if err != nil {
		return 0, err
	}
	defer r.close()
	if err := r.seek(most); err != nil {
		return 0, err
	}
	for end := 0.0; ; r.held = false {
		if !r.held {
			if err := r.next(); errors.Is(err, io.EOF) {
				return end, nil
			} else if err != nil {
				return 0, err
			}
		}
		if at, ok := r.at(); ok {
			if at > most && at <= MostSeconds {
				return max(at, believed(s.Duration)), nil
			}
			end = max(end, min(at+float64(max(r.packet.Duration(), r.step))*r.stream.TimeBase.Float(), most))
		}
	}
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
