package transcode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/Eyevinn/mp4ff/aac"
	"github.com/Eyevinn/mp4ff/mp4"
	"golang.org/x/text/language"

	"github.com/fre-engine/fre/video/ffmpeg"
	"github.com/fre-engine/fre/video/media"
)

// sampleRate of all encoded sound, in samples per second; also the unit of its times.
const sampleRate = 48000

// mostRate is the most samples per second of a source.
const mostRate = 768_000

// Sound encodes a track of sound as AAC in stereo, in fragments that end close to the ends of the
// video's segments. The sound begins with the encoder's priming, which an edit list removes. The
// result is the concatenation of parts.
func Sound(path string, s media.Sound) (made *media.Made, parts [][]byte, err error) {
	if s.Segment <= 0 {
		return nil, nil, fmt.Errorf("segments of %v seconds", s.Segment)
	}
	e, err := sound(path, s)
	if errors.Is(err, errNoSound) && e.graph != nil && e.next <= e.units(s.Offset) { // the container states a start after all of the sound
		s.Offset = float64(e.began) * e.stream.TimeBase.Float()
		e, err = sound(path, s)
	}
	if err != nil {
		return nil, nil, err
	}
	return &e.made, e.parts, nil
}

// sound makes a track. With an error the track is incomplete.
func sound(path string, s media.Sound) (*sounding, error) {
	r, err := open(path, s.Stream, ffmpeg.Audio, s.Offset, s.Joined)
	if err != nil {
		return nil, err
	}
	defer r.close()
	r.upTo(s.Most)
	e := &sounding{s: s, reading: r, encoded: ffmpeg.NewPacket(), frame: ffmpeg.NewFrame(), fragments: fragments{limit: mostOfSound}}
	defer e.close()
	return e, e.run()
}

// sounding is a track of sound being made.
type sounding struct {
	s media.Sound
	*reading
	graph   *ffmpeg.Graph // nil before the first frame
	heard   voice         // the voice of graph's input
	other   *ffmpeg.Graph // converts another voice to heard; nil: none yet
	sort    voice         // the voice of other's input
	began   int64         // time of the first sound, in the stream's units
	next    int64         // end of the sound so far, in the stream's units
	silence float64       // seconds of inserted silence
	far     []*ffmpeg.Frame
	encoder *ffmpeg.Encoder
	encoded *ffmpeg.Packet
	frame   *ffmpeg.Frame // filtered
	samples int64         // encoded samples, priming included
	fragments
}

// voice is a format of sound.
type voice struct {
	rate           int
	format, layout string
}

func voiceOf(f *ffmpeg.Frame) voice { return voice{f.SampleRate(), f.SampleFormat(), f.Layout()} }

// source returns the input filter for sound of the voice, with times in units of base.
func (v voice) source(base ffmpeg.Rational) string {
	return fmt.Sprintf("abuffer=time_base=%s:sample_rate=%d:sample_fmt=%s:channel_layout=%s", base, v.rate, v.format, v.layout)
}

func (e *sounding) close() {
	e.forget()
	e.encoded.Close()
	e.frame.Close()
	if e.encoder != nil {
		e.encoder.Close()
	}
	if e.graph != nil {
		e.graph.Close()
	}
	if e.other != nil {
		e.other.Close()
	}
}

func (e *sounding) run() (err error) {
	rate := e.s.BitRate
	if rate == 0 {
		rate = 128_000
	}
	e.encoder, err = ffmpeg.NewEncoder(ffmpeg.EncoderOptions{
		Codec: "aac", TimeBase: ffmpeg.Rational{Num: 1, Den: sampleRate}, BitRate: rate, Threads: 1,
		SampleRate: sampleRate, Channels: 2, SampleFormat: "fltp",
	})
	if err != nil {
		return err
	}
	if err := e.describe(); err != nil {
		return err
	}
	if err := e.decode(ffmpeg.DecoderOptions{Threads: 1}, func() bool { return e.graph != nil && e.seconds(e.next) >= e.most }, e.filter); err != nil {
		return err
	}
	if e.graph == nil {
		return errNoSound
	}
	if err := e.drain(); err != nil {
		return err
	}
	if len(e.made.Segments) == 0 {
		return errNoSound
	}
	return nil
}

var errNoSound = errors.New("nothing of the sound could be decoded")

// describe writes the initialisation segment.
func (e *sounding) describe() error {
	init := mp4.CreateEmptyInit()
	spoken := language.Und
	if t, err := language.Parse(languageOf(e.stream.Language)); err == nil {
		spoken = t
	}
	base, _ := spoken.Base()
	code := base.ISO3() // as in the box mdhd
	if spoken == language.Und {
		code = "und"
	}
	track := init.AddEmptyTrack(sampleRate, "audio", code)
	if err := track.SetAACDescriptor(aac.AAClc, sampleRate); err != nil {
		return fmt.Errorf("describe the sound: %w", err)
	}
	shifted(track, int64(e.encoder.Delay()))
	return e.begin(init)
}

// drain encodes the sound that the filters and the encoder hold.
func (e *sounding) drain() error {
	if err := e.graph.End(e.next); err != nil {
		return err
	}
	if err := e.pull(); err != nil {
		return err
	}
	if err := e.encoder.Send(nil); err != nil {
		return err
	}
	if err := e.packets(); err != nil {
		return err
	}
	return e.cut()
}

// filter sends sound through the filters and encodes the output. The filters are made for the
// voice of the first frame. Sound of another voice, such as other channels, is converted to the
// first.
func (e *sounding) filter(f *ffmpeg.Frame) error {
	v := voiceOf(f)
	if v.rate < 1 || v.rate > mostRate {
		return fmt.Errorf("sound of %d samples each second", v.rate)
	}
	if e.graph == nil {
		if err := e.openGraph(v); err != nil {
			return err
		}
		e.heard, e.began, e.next = v, f.PTS(), e.units(e.s.Offset)
	}
	if v == e.heard {
		return e.place(f)
	}
	if e.other == nil || v != e.sort {
		if err := e.openOther(v); err != nil {
			return err
		}
	}
	return e.convert(f)
}

// convert sends sound of another voice through its filter and places the output.
func (e *sounding) convert(f *ffmpeg.Frame) error {
	at := f.PTS()
	if err := e.other.Send(f); err != nil {
		return err
	}
	for {
		err := e.other.Receive(0, f)
		if errors.Is(err, ffmpeg.ErrAgain) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.SetPTS(at)
		at += e.frameLength(f)
		if err := e.place(f); err != nil {
			return err
		}
	}
}

// openGraph makes the filters for sound of a voice.
func (e *sounding) openGraph(v voice) (err error) {
	two := ""
	if strings.HasSuffix(v.layout, " channels") { // the meaning of the channels is unknown
		two = ",pan=stereo|c0=c0|c1=c1"
	}
	e.graph, err = ffmpeg.NewGraph(fmt.Sprintf("%s%s,asetpts=PTS-(%.9f/TB),aresample=%d:async=1000:first_pts=0,aformat=sample_fmts=fltp:channel_layouts=stereo,abuffersink",
		v.source(e.stream.TimeBase), two, e.s.Offset, sampleRate), 1)
	if err != nil {
		return err
	}
	e.graph.FrameSize(0, e.encoder.FrameSize())
	return nil
}

// openOther makes the filter that converts sound of a voice to the first voice.
func (e *sounding) openOther(v voice) (err error) {
	if e.other != nil {
		e.other.Close()
	}
	e.other, err = ffmpeg.NewGraph(fmt.Sprintf("%s,aresample=%d,aformat=sample_fmts=%s:channel_layouts=%s,abuffersink",
		v.source(e.stream.TimeBase), e.heard.rate, e.heard.format, e.heard.layout), 1)
	if err != nil {
		return err
	}
	e.sort = v
	return nil
}

// Limits of gaps in the sound, in seconds. A gap above mostGap is filled with silence, a second
// at a time, since the filters would make all of it at once. A jump above mostJump counts only if
// enoughFar frames confirm it. All silence together is at most mostSilence, since silence takes
// long to encode.
const (
	mostGap     = 1
	mostJump    = 10
	mostSilence = 2 * 3600
	enoughFar   = 8
)

// place sends sound of the first voice at its time.
func (e *sounding) place(f *ffmpeg.Frame) error {
	gap := float64(f.PTS()-e.next) * e.stream.TimeBase.Float()
	if gap < -mostJump || e.silence+gap > mostSilence {
		return nil // too late to be heard, or impossibly far
	}
	if gap <= mostJump {
		e.forget()
		return e.send(f)
	}
	if n := len(e.far); n > 0 {
		if last := e.far[n-1]; math.Abs(float64(f.PTS()-last.PTS()-e.frameLength(last))*e.stream.TimeBase.Float()) > mostGap {
			e.forget()
		}
	}
	kept := ffmpeg.NewFrame()
	kept.Take(f)
	e.far = append(e.far, kept)
	if len(e.far) < enoughFar {
		return nil
	}
	defer e.forget()
	for _, f := range e.far {
		if err := e.send(f); err != nil {
			return err
		}
	}
	return nil
}

// forget drops the unconfirmed frames in far.
func (e *sounding) forget() {
	for _, f := range e.far {
		f.Close()
	}
	e.far = e.far[:0]
}

// frameLength returns a frame's duration in the stream's units.
func (e *sounding) frameLength(f *ffmpeg.Frame) int64 {
	return ffmpeg.Rescale(int64(f.Samples()), ffmpeg.Rational{Num: 1, Den: max(f.SampleRate(), 1)}, e.stream.TimeBase)
}

// send sends the silence of a long gap, then a frame.
func (e *sounding) send(f *ffmpeg.Frame) error {
	second := e.units(1)
	for second > 0 && f.PTS()-e.next > second {
		silence, err := ffmpeg.NewSilence(f, f.SampleRate())
		if err != nil {
			return err
		}
		silence.SetPTS(e.next)
		e.silence++
		e.next += second
		err = e.graph.Send(silence)
		silence.Close()
		if err != nil {
			return err
		}
		if err := e.pull(); err != nil {
			return err
		}
	}
	e.next = max(e.next, f.PTS()+e.frameLength(f))
	if err := e.graph.Send(f); err != nil {
		return err
	}
	return e.pull()
}

func (e *sounding) pull() error {
	for {
		err := e.graph.Receive(0, e.frame)
		if errors.Is(err, ffmpeg.ErrAgain) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := e.encoder.Send(e.frame); err != nil {
			return err
		}
		if err := e.packets(); err != nil {
			return err
		}
	}
}

// packets reads the encoder's packets.
func (e *sounding) packets() error {
	for {
		err := e.encoder.Receive(e.encoded)
		if errors.Is(err, ffmpeg.ErrAgain) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		size := int64(e.encoder.FrameSize())
		// Cut at the packet end closest to the segment's end.
		if next := float64(len(e.made.Segments)+1) * e.s.Segment * sampleRate; float64(e.samples) >= next-float64(size)/2 {
			if err := e.cut(); err != nil {
				return err
			}
		}
		data := bytes.Clone(e.encoded.Data())
		e.open = append(e.open, mp4.FullSample{
			Sample: mp4.NewSample(mp4.SyncSampleFlags, uint32(size), uint32(len(data)), 0), DecodeTime: uint64(e.samples), Data: data,
		})
		e.samples += size
	}
}
