package transcode

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
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
	if err := through(path, in, s, most); err != nil {
		return nil, err
	}
	if long := in.Duration(); s.Joins == 0 && most > 0 && long > most {
		if s.Duration, err = longer(path, s, most); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// mostShort is how many seconds a file may end before its container says.
const mostShort = 1

// span is how far the packets of a stream go, in seconds.
type span struct {
	last   float64 // packet's time
	length float64 // of that; 0 if nobody says it
	step   float64 // the longest from one to the next
}

func (s *span) add(at, length float64) {
	if at >= s.last {
		s.last, s.length, s.step = at, length, max(s.step, at-s.last)
	}
}

// end is when the last packet ends: if nobody says it, as long after it as another came after one,
// or at a time that nobody knows, infinite.
func (s *span) end(of ffmpeg.Stream) float64 {
	length := s.length
	if length <= 0 {
		length = s.step
	}
	if length <= 0 && !of.Cover && (of.Kind == ffmpeg.Video || of.Kind == ffmpeg.Audio) {
		return math.Inf(1)
	}
	return s.last + length
}

// through goes through all of the file and notes how often its times jump, and where it ends if
// they do, or else how much is missing of what its container announces. Nobody believes one that
// announces more than most seconds.
func through(path string, in *ffmpeg.Input, s *media.Source, most float64) error {
	r := &reading{in: in, packet: ffmpeg.NewPacket(), clock: newTimeline(in)}
	defer r.packet.Close()
	first, spans := math.Inf(1), map[int]*span{}
	for {
		if err := r.any(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		r.stream = in.Streams()[r.packet.Stream()]
		if at, ok := r.at(); ok {
			first = min(first, at)
			n := r.stream.Index
			if spans[n] == nil {
				spans[n] = &span{last: at}
			}
			spans[n].add(at, float64(r.packet.Duration())*r.stream.TimeBase.Float())
		}
	}
	if s.Joins = r.clock.joins; s.Joins == 0 {
		end := math.Inf(-1)
		for n, of := range spans {
			end = max(end, of.end(in.Streams()[n]))
		}
		if math.IsInf(end, 0) {
			return nil
		}
		missing, err := missingOfRIFF(path)
		missing *= end - first
		if promised := believed(in.Promised()); most == 0 || promised <= most {
			// Some containers count from the source's beginning, others from zero.
			missing = max(missing, promised-max(end, end-first))
		}
		if missing > mostShort {
			s.Missing = missing
		}
		return err
	}
	s.Duration = believed(float64(r.clock.latest)/second - s.Offset)
	for i, b := range r.clock.due {
		s.Streams[i].Duration = believed(float64(b.due)/second - s.Offset)
	}
	return nil
}

// missingOfRIFF returns how many bytes a file of RIFF (AVI, WAV) announces for each that it has
// beyond those that it has; 0 if there are no more, if it is none, or does not know.
//
//	"RIFF" | bytes that follow, little-endian | …
//	4        4
func missingOfRIFF(path string) (float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var head [8]byte
	if _, err := io.ReadFull(f, head[:]); err != nil || string(head[:4]) != "RIFF" {
		return 0, nil
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	announced := binary.LittleEndian.Uint32(head[4:])
	if announced >= math.MaxInt32-1<<16 { // as those have who write to a pipe
		return 0, nil
	}
	return max(0, float64(announced)/float64(info.Size()-8)-1), nil
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
