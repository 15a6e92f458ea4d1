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

// sampleRate of all sound that is made, in samples each second; also its unit of time.
const sampleRate = 48000

// mostRate is how many samples each second a source may have.
const mostRate = 768_000

// Sound encodes a track of sound as AAC in stereo, in fragments that end close to where the
// video's segments do. It begins with the encoder's priming, which an edit list takes away.
// The parts, one after another, are what was made.
func Sound(path string, s media.Sound) (made *media.Made, parts [][]byte, err error) {
	if s.Segment <= 0 {
		return nil, nil, fmt.Errorf("segments of %v seconds", s.Segment)
	}
	e, err := sound(path, s)
	if errors.Is(err, errNoSound) && e.graph != nil && e.next <= e.units(s.Offset) { // the container has it all begin later than it does
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
	graph   *ffmpeg.Graph // nil until the first frame says what comes
	heard   voice         // what it is made for
	other   *ffmpeg.Graph // makes that of another sort; nil where there is none
	sort    voice         // what the other is made for
	began   int64         // when the first sound comes, in the stream's units
	next    int64         // when the sound ends that has come, in the stream's units
	silence float64       // seconds that were put in
	far     []*ffmpeg.Frame
	encoder *ffmpeg.Encoder
	encoded *ffmpeg.Packet
	frame   *ffmpeg.Frame // filtered
	samples int64         // encoded, priming included
	fragments
}

// voice is a sort of sound.
type voice struct {
	rate           int
	format, layout string
}

func voiceOf(f *ffmpeg.Frame) voice { return voice{f.SampleRate(), f.SampleFormat(), f.Layout()} }

// source is the filter that takes in such sound, whose times are in a unit.
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
	if err := e.cut(); err != nil {
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
	code := base.ISO3() // as mdhd has it
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

// filter sends sound through the filters and encodes what comes out. They are made for what
// comes first: what is of another sort later, such as other channels, is made as that was.
func (e *sounding) filter(f *ffmpeg.Frame) error {
	v := voiceOf(f)
	if v.rate < 1 || v.rate > mostRate {
		return fmt.Errorf("sound of %d samples each second", v.rate)
	}
	if e.graph == nil {
		var err error
		two := ""
		if strings.HasSuffix(v.layout, " channels") { // nobody knows what they are
			two = ",pan=stereo|c0=c0|c1=c1"
		}
		e.graph, err = ffmpeg.NewGraph(fmt.Sprintf("%s%s,asetpts=PTS-(%.9f/TB),aresample=%d:async=1000:first_pts=0,aformat=sample_fmts=fltp:channel_layouts=stereo,abuffersink",
			v.source(e.stream.TimeBase), two, e.s.Offset, sampleRate), 1)
		if err != nil {
			return err
		}
		e.graph.FrameSize(0, e.encoder.FrameSize())
		e.heard, e.began, e.next = v, f.PTS(), e.units(e.s.Offset)
	}
	if v == e.heard {
		return e.place(f)
	}
	if e.other == nil || v != e.sort {
		if e.other != nil {
			e.other.Close()
		}
		var err error
		e.other, err = ffmpeg.NewGraph(fmt.Sprintf("%s,aresample=%d,aformat=sample_fmts=%s:channel_layouts=%s,abuffersink",
			v.source(e.stream.TimeBase), e.heard.rate, e.heard.format, e.heard.layout), 1)
		if err != nil {
			return err
		}
		e.sort = v
	}
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
		at += e.length(f)
		if err := e.place(f); err != nil {
			return err
		}
	}
}

// Gaps in the sound, in seconds: silence is put into what is longer than mostGap, a second
// at a time, for the filters would make it at once; what is farther than mostJump is only
// believed when as many frames as enoughFar say so, and not where there would be more silence
// than mostSilence in all: that is long to encode.
const (
	mostGap     = 1
	mostJump    = 10
	mostSilence = 2 * 3600
	enoughFar   = 8
)

// place sends sound that is of the sort of the first at its time.
func (e *sounding) place(f *ffmpeg.Frame) error {
	gap := float64(f.PTS()-e.next) * e.stream.TimeBase.Float()
	if gap < -mostJump || e.silence+gap > mostSilence {
		return nil // it comes too late to be heard, or cannot be so far
	}
	if gap <= mostJump {
		e.forget()
		return e.send(f)
	}
	if n := len(e.far); n > 0 {
		if last := e.far[n-1]; math.Abs(float64(f.PTS()-last.PTS()-e.length(last))*e.stream.TimeBase.Float()) > mostGap {
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

// forget drops what has not been believed.
func (e *sounding) forget() {
	for _, f := range e.far {
		f.Close()
	}
	e.far = e.far[:0]
}

// length of a frame in the stream's units.
func (e *sounding) length(f *ffmpeg.Frame) int64 {
	return ffmpeg.Rescale(int64(f.Samples()), ffmpeg.Rational{Num: 1, Den: max(f.SampleRate(), 1)}, e.stream.TimeBase)
}

// send sends a frame, and before it the silence of a long gap.
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
	e.next = max(e.next, f.PTS()+e.length(f))
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

// packets takes what the encoder has made.
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
		// As close to the segment's end as a packet ends.
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
