package transcode

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/fre-engine/fre/video/ffmpeg"
)

// MostSeconds is how long a source may be; later times are not believed.
const MostSeconds = 48 * 3600

// mostLost is after how many reads in a row that fail a file is taken to end there.
const mostLost = 64

// reading is one stream of a file that is read.
type reading struct {
	path   string
	in     *ffmpeg.Input
	stream ffmpeg.Stream
	offset float64 // when the source begins, in seconds of its own time
	packet *ffmpeg.Packet
	held   bool      // the packet is still to be decoded
	step   int64     // how long a frame takes that does not say it, in the stream's units
	end    int64     // of the last frame decoded, in the same
	most   float64   // seconds: later times are not believed
	clock  *timeline // nil where the source's times do not jump
	late   bool      // the container does not say when frames are shown, only when decoded

	wanted int64 // when the first frame is shown that anybody sees, in the stream's units; NoTime for all
	before int64 // the last up to then that a packet has come of
}

// open opens a file to read one of its streams, which has to be of a kind and no cover. Where
// the file's times jump, joined, all streams are read, from the begin on.
func open(path string, stream int, kind ffmpeg.Kind, offset float64, joined bool) (*reading, error) {
	r := &reading{path: path, offset: offset, most: MostSeconds, packet: ffmpeg.NewPacket(), wanted: ffmpeg.NoTime, before: ffmpeg.NoTime}
	in, err := ffmpeg.Open(path)
	if err != nil {
		r.packet.Close()
		return nil, err
	}
	r.in = in
	if stream < 0 || stream >= len(in.Streams()) || in.Streams()[stream].Kind != kind || in.Streams()[stream].Cover {
		r.close()
		return nil, fmt.Errorf("stream %d is no %s", stream, kind)
	}
	if joined {
		r.clock = newTimeline(in)
	} else {
		in.Only(stream)
	}
	r.stream = in.Streams()[stream]
	r.end = r.units(offset)
	if rate := r.stream.FrameRate.Float(); rate > 0 {
		r.step = r.units(1 / rate)
	}
	return r, nil
}

func (r *reading) close() {
	r.packet.Close()
	r.in.Close()
}

// seconds since the source's beginning.
func (r *reading) seconds(t int64) float64 {
	return float64(t)*r.stream.TimeBase.Float() - r.offset
}

// upTo has what comes after so many seconds left out; 0 is as if it were not said.
func (r *reading) upTo(most float64) {
	if most > 0 {
		r.most = min(most, MostSeconds)
	}
}

// units are those of the stream's time.
func (r *reading) units(seconds float64) int64 {
	base := r.stream.TimeBase.Float()
	if base <= 0 {
		return 0
	}
	return int64(math.Round(min(max(seconds/base, -1<<60), 1<<60)))
}

// next reads the stream's next packet. What is broken is left out; where nothing else
// comes, the file ends.
func (r *reading) next() error {
	for {
		if err := r.any(); err != nil || r.packet.Stream() == r.stream.Index {
			return err
		}
	}
}

// any reads the next packet of any stream.
func (r *reading) any() error {
	for lost := 0; ; {
		err := r.in.Read(r.packet)
		switch {
		case err == nil:
			if r.clock != nil {
				r.clock.set(r.packet, r.in.Streams()[r.packet.Stream()])
			}
			return nil
		case errors.Is(err, io.EOF):
			return err
		case r.in.Fault():
			return err
		default:
			if lost++; lost == mostLost {
				return io.EOF
			}
		}
	}
}

// at is when the packet is shown, as well as it says, in seconds.
func (r *reading) at() (float64, bool) {
	t := r.packet.PTS()
	if t == ffmpeg.NoTime {
		t = r.packet.DTS()
	}
	return r.seconds(t), t != ffmpeg.NoTime
}

// seek goes to where decoding can begin to get what is shown at t seconds: to a key frame
// that is shown then, or before. Containers find one only where they have an index: from
// what else they find it goes back, farther each time.
func (r *reading) seek(t float64) error {
	if r.clock != nil {
		return r.walk(t)
	}
	back := 0.0
	if r.in.Format() == "mpeg" {
		back = 4 // it is right about times only after a while
	}
	for ; back < t; back = max(2*back, 1) {
		if r.in.Seek(r.stream.Index, t-back+r.offset) != nil {
			break
		}
		ok, err := r.key(t)
		if ok || err != nil {
			r.held = ok
			return err
		}
	}
	return r.again()
}

// again begins anew with the file.
func (r *reading) again() error {
	again, err := open(r.path, r.stream.Index, r.stream.Kind, r.offset, r.clock != nil)
	if err != nil {
		return err
	}
	again.step, again.most, again.wanted = r.step, r.most, r.wanted
	r.close()
	*r = *again
	return nil
}

// walk is [reading.seek] where times jump: an index knows nothing of what they become.
func (r *reading) walk(t float64) error {
	key := 0 // the packet of the stream to begin with
	for n := 0; ; n++ {
		if err := r.next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if dts := r.packet.DTS(); dts != ffmpeg.NoTime && r.seconds(dts) > t {
			break
		}
		if at, ok := r.at(); ok && at <= t && r.packet.Key() {
			key = n
		}
	}
	if err := r.again(); err != nil {
		return err
	}
	for range key + 1 {
		if err := r.next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	r.held = true
	return nil
}

// key reads up to a key frame; false if none is shown at t seconds or before.
func (r *reading) key(t float64) (bool, error) {
	for {
		err := r.next()
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		at, ok := r.at()
		if !ok || at > t && r.packet.Key() || at > t+1 {
			return false, nil
		}
		if r.packet.Key() {
			return true, nil
		}
	}
}

// decode gives what the stream decodes to to take, until its end, or enough; each frame has
// a time. Packets that are broken cost what they would have been; if all are, it is an
// error.
func (r *reading) decode(o ffmpeg.DecoderOptions, enough func() bool, take func(*ffmpeg.Frame) error) error {
	o.MostSize = MostPixels
	decoder, err := ffmpeg.NewDecoder(r.in, r.stream.Index, o)
	if err != nil {
		return err
	}
	defer decoder.Close()
	frame := ffmpeg.NewFrame()
	defer frame.Close()
	var broken error
	decoded := false
	for end := false; !end && !enough(); {
		next := r.packet
		if !r.held {
			if err := r.next(); errors.Is(err, io.EOF) {
				next, end = nil, true
			} else if err != nil {
				return err
			}
		}
		r.held = false
		if next != nil {
			decoder.Skip(max(o.Skip, r.skip(next.PTS())))
		}
		if err := decoder.Send(next); err != nil && !errors.Is(err, io.EOF) {
			broken = err
			continue
		}
		for {
			err := decoder.Receive(frame)
			if errors.Is(err, ffmpeg.ErrAgain) || errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				broken = err
				continue
			}
			if !decoded {
				r.late = frame.Guessed() && slices.Contains([]string{"avi", "mpegvideo", "m4v"}, r.in.Format())
			}
			decoded = true
			if !r.time(frame, decoder.Late()) {
				continue
			}
			if err := take(frame); err != nil {
				return err
			}
		}
	}
	if !decoded {
		return broken
	}
	return nil
}

// skip is what need not be decoded of a packet shown at t: a frame that no other needs, if
// one has come before it that takes its place before anybody sees either. Where one packet
// does not say its time, those of others are not relied on.
func (r *reading) skip(t int64) ffmpeg.Skip {
	switch {
	case t == ffmpeg.NoTime:
		r.wanted = ffmpeg.NoTime
	case r.wanted == ffmpeg.NoTime:
	case t < r.before:
		return ffmpeg.SkipNonRef
	case t <= r.wanted:
		r.before = t
	}
	return ffmpeg.SkipNone
}

// time gives a frame its time, and says when it ends; false where that cannot be. Where a
// container says only when packets are decoded, the libraries have frames begin late by
// those that a decoder holds back. What has no time at all comes when the one before ends.
func (r *reading) time(f *ffmpeg.Frame, held int) bool {
	t := f.PTS()
	switch {
	case t == ffmpeg.NoTime:
		t = r.end
	case r.late:
		t -= int64(held) * max(f.Duration(), 1)
	}
	if r.seconds(t) > r.most {
		return false
	}
	f.SetPTS(t)
	length := max(f.Duration(), r.step)
	if rate := f.SampleRate(); rate > 0 {
		length = ffmpeg.Rescale(int64(f.Samples()), ffmpeg.Rational{Num: 1, Den: rate}, r.stream.TimeBase)
	}
	r.end = t + length
	return true
}
