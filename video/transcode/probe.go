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

// A compile-time check: media.MostStreams is at least ffmpeg.MostStreams.
var _ [media.MostStreams - ffmpeg.MostStreams]struct{}

// Probe returns the contents of a file. Attached pictures, such as covers, have kind other. An
// unknown or impossible duration (negative, or longer than [MostSeconds]) is 0. Containers may
// state any duration: unless most is 0, the file's duration exceeds most seconds only if a packet
// is that late.
func Probe(path string, most float64) (*media.Source, error) {
	in, err := ffmpeg.Open(path)
	if err != nil {
		return nil, unread(path, err)
	}
	defer in.Close()
	s := &media.Source{Picture: -1, Format: in.Format(), Duration: believed(in.Duration()), BitRate: in.BitRate()}
	s.Streams, s.Offset = streamsOf(in)
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

func streamOf(from ffmpeg.Stream) media.Stream {
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
	return to
}

// mostShort is how many seconds before its stated end a file may end.
const mostShort = 1

// span is the extent of a stream's packets, in seconds.
type span struct {
	last   float64 // time of the last packet
	length float64 // duration of the last packet; 0: unknown
	step   float64 // longest distance between two packets
}

func (s *span) add(at, length float64) {
	if at >= s.last {
		s.last, s.length, s.step = at, length, max(s.step, at-s.last)
	}
}

// end returns the end of the last packet. An unknown duration is the longest distance between two
// packets. Without such a distance the end of pictures and sound is infinite, meaning unknown.
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

// streamsOf returns the streams of a file and the start of the source.
func streamsOf(in *ffmpeg.Input) (streams []media.Stream, offset float64) {
	offset = math.Inf(1)
	begins := math.Inf(1) // of the picture
	for _, from := range in.Streams() {
		to := streamOf(from)
		switch to.Kind {
		case string(ffmpeg.Video):
			begins = min(begins, from.Start)
			fallthrough
		case string(ffmpeg.Audio):
			offset = min(offset, from.Start)
		}
		streams = append(streams, to)
	}
	switch {
	case math.IsInf(offset, 1):
		offset = 0
	case begins-offset <= priming:
		offset = begins
	}
	return streams, offset
}

// missingOf returns how many of the promised seconds a file lacks. Its packets are from the time
// first to the time end.
func missingOf(path string, promised, most, first, end float64) (float64, error) {
	missing, err := missingOfRIFF(path)
	missing *= end - first
	if most == 0 || promised <= most {
		// Some containers count from the start of the source, others from zero.
		missing = max(missing, promised-max(end, end-first))
	}
	return missing, err
}

// through reads the whole file and counts the jumps in its times. With jumps, through sets the
// durations. Without, it sets how much is missing of the stated duration. Unless most is 0, a
// stated duration above most seconds is ignored.
func through(path string, in *ffmpeg.Input, s *media.Source, most float64) error {
	r := &reading{in: in, packet: ffmpeg.NewPacket(), clock: newTimeline(in)}
	defer r.packet.Close()
	first, spans, err := spansOf(r)
	if err != nil {
		return err
	}
	if s.Joins = r.clock.joins; s.Joins == 0 {
		end := math.Inf(-1)
		for n, of := range spans {
			end = max(end, of.end(in.Streams()[n]))
		}
		if math.IsInf(end, 0) {
			return nil
		}
		missing, err := missingOf(path, believed(in.Promised()), most, first, end)
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

// spansOf reads all packets, and returns the time of the first and the span of each stream.
func spansOf(r *reading) (first float64, spans map[int]*span, err error) {
	first, spans = math.Inf(1), map[int]*span{}
	for {
		if err := r.any(); errors.Is(err, io.EOF) {
			return first, spans, nil
		} else if err != nil {
			return 0, nil, err
		}
		r.stream = r.in.Streams()[r.packet.Stream()]
		if at, ok := r.at(); ok {
			first = min(first, at)
			n := r.stream.Index
			if spans[n] == nil {
				spans[n] = &span{last: at}
			}
			spans[n].add(at, float64(r.packet.Duration())*r.stream.TimeBase.Float())
		}
	}
}

// missingOfRIFF returns the announced but missing bytes of a RIFF file (AVI, WAV), per present
// byte. The result is 0 for a complete file, another format or an unknown size.
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
	if announced >= math.MaxInt32-1<<16 { // the size written by a program that writes to a pipe
		return 0, nil
	}
	return max(0, float64(announced)/float64(info.Size()-8)-1), nil
}

// mostTried is the most streams to try in search of a decodable picture.
const mostTried = 4

// picture chooses a stream of pictures: the best with a decodable picture, whose properties it
// notes in s. If none can be decoded and the file has sound, n is -1 and unseen is the reason.
// Without sound n is the best stream, whose decoder will report the error. n is -1 if the file
// has no pictures.
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
		if s.Kind == ffmpeg.Video && !s.Cover { // of a codec without a decoder
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

// languageOf converts a file's language to a tag of BCP 47. The file may use either form of ISO
// 639-2 (ger, deu), ISO 639-1 or a tag. The result is "" for an unknown language.
func languageOf(s string) string {
	t, err := language.Parse(strings.TrimSpace(s))
	if err != nil || t == language.Und {
		return ""
	}
	return t.String()
}

// longer returns the duration of a source that claims more than most seconds. It is above most
// only if a packet of the picture, or else of the sound, is that late.
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

// priming is how much earlier than the picture sound may begin without loss, in seconds. Encoders
// of sound put priming before the content, and not every container removes it.
const priming = 0.1

func believed(seconds float64) float64 {
	if seconds < 0 || seconds > MostSeconds {
		return 0
	}
	return seconds
}
