package transcode

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/fre-engine/fre/video/ffmpeg"
)

// MostSeconds is the longest source. Later times are ignored.
const MostSeconds = 48 * 3600

// mostLost is the number of failed reads in a row after which the file counts as ended.
const mostLost = 64

// reading is a stream of a file being read.
type reading struct {
	path   string
	in     *ffmpeg.Input
	stream ffmpeg.Stream
	offset float64 // start of the source, in seconds of its own time
	packet *ffmpeg.Packet
	held   bool      // the packet is not decoded yet
	step   int64     // assumed duration of a frame without its own, in the stream's units
	end    int64     // end of the last decoded frame, in the stream's units
	most   float64   // seconds; later times are ignored
	clock  *timeline // nil if the source's times do not jump
	late   bool      // the container has only decoding times, no presentation times

	wanted int64 // time of the first visible frame, in the stream's units; NoTime: all are visible
	before int64 // the latest time of a packet, up to wanted
}

// open opens a file to read a stream. The stream must be of a kind and no cover. If the file's
// times jump, joined is true, and the reading sees all streams from the start of the file.
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

// seconds converts a time of the stream to seconds since the start of the source.
func (r *reading) seconds(t int64) float64 {
	return float64(t)*r.stream.TimeBase.Float() - r.offset
}

// upTo drops the source after a number of seconds. 0 keeps all of it.
func (r *reading) upTo(most float64) {
	if most > 0 {
		r.most = min(most, MostSeconds)
	}
}

// units converts seconds to the stream's units.
func (r *reading) units(seconds float64) int64 {
	base := r.stream.TimeBase.Float()
	if base <= 0 {
		return 0
	}
	return int64(math.Round(min(max(seconds/base, -1<<60), 1<<60)))
}

// next reads the stream's next packet. Broken packets are skipped; if only broken packets follow,
// the error is io.EOF.
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

// at returns the packet's presentation time in seconds, or else its decoding time; false without
// either.
func (r *reading) at() (float64, bool) {
	t := r.packet.PTS()
	if t == ffmpeg.NoTime {
		t = r.packet.DTS()
	}
	return r.seconds(t), t != ffmpeg.NoTime
}

// seek goes to a point from which the frame shown at t seconds can be decoded: a key frame shown
// at t or before. Only a container with an index finds such a key frame at once. Else seek goes
// back, farther with each try.
func (r *reading) seek(t float64) error {
	if r.clock != nil {
		return r.walk(t)
	}
	back := 0.0
	if r.in.Format() == "mpeg" {
		back = 4 // its index gives correct times only after some packets
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

// again reopens the file at its start.
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

// walk is [reading.seek] for jumping times, which an index does not know.
func (r *reading) walk(t float64) error {
	key, err := r.lastKey(t)
	if err != nil {
		return err
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

// lastKey reads up to t seconds and returns the number of the stream's packet with the last key
// frame, from 0.
func (r *reading) lastKey(t float64) (key int, err error) {
	for n := 0; ; n++ {
		if err := r.next(); errors.Is(err, io.EOF) {
			return key, nil
		} else if err != nil {
			return 0, err
		}
		if dts := r.packet.DTS(); dts != ffmpeg.NoTime && r.seconds(dts) > t {
			return key, nil
		}
		if at, ok := r.at(); ok && at <= t && r.packet.Key() {
			key = n
		}
	}
}

// key reads up to the next key frame. The result is false if no key frame follows that is shown
// at t seconds or before.
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

// decode decodes the stream and calls take with each frame, until the end or until enough returns
// true. Each frame has a time. A broken packet loses only its own frames. If all packets are
// broken, decode returns an error.
func (r *reading) decode(o ffmpeg.DecoderOptions, enough func() bool, take func(*ffmpeg.Frame) error) error {
	o.MostSize = MostPixels
	decoder, err := ffmpeg.NewDecoder(r.in, r.stream.Index, o)
	if err != nil {
		return err
	}
	defer decoder.Close()
	frame := ffmpeg.NewFrame()
	defer frame.Close()
	d := &decoding{reading: r, decoder: decoder, frame: frame}
	for end := false; !end && !enough(); {
		packet, err := r.undecoded()
		if err != nil {
			return err
		}
		if end = packet == nil; !end {
			decoder.Skip(max(o.Skip, r.skip(packet.PTS())))
		}
		if err := decoder.Send(packet); err != nil && !errors.Is(err, io.EOF) {
			d.broken = err
			continue
		}
		if err := d.receive(take); err != nil {
			return err
		}
	}
	if !d.decoded {
		return d.broken
	}
	return nil
}

// undecoded returns the stream's next packet that is not decoded yet, or nil at the end.
func (r *reading) undecoded() (*ffmpeg.Packet, error) {
	if r.held {
		r.held = false
		return r.packet, nil
	}
	err := r.next()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	return r.packet, err
}

// decoding is a stream being decoded.
type decoding struct {
	*reading
	decoder *ffmpeg.Decoder
	frame   *ffmpeg.Frame
	decoded bool  // there was a frame
	broken  error // of the last broken packet
}

// receive calls take with each frame that the decoder has ready.
func (d *decoding) receive(take func(*ffmpeg.Frame) error) error {
	for {
		err := d.decoder.Receive(d.frame)
		switch {
		case errors.Is(err, ffmpeg.ErrAgain) || errors.Is(err, io.EOF):
			return nil
		case err != nil:
			d.broken = err
			continue
		case !d.decoded:
			d.late = d.frame.Guessed() && slices.Contains([]string{"avi", "mpegvideo", "m4v"}, d.in.Format())
			d.decoded = true
		}
		if !d.time(d.frame, d.decoder.Late()) {
			continue
		}
		if err := take(d.frame); err != nil {
			return err
		}
	}
}

// skip tells the decoder what to skip of a packet shown at t. A frame is skipped if no other
// frame refers to it, and if an earlier packet has a frame shown later but not after wanted: the
// skipped frame is never visible. After a packet without a time, nothing is skipped.
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

// time sets a frame's time and records its end. The result is false for a time beyond the limit.
// With decoding times only, FFmpeg's libraries put frames late by the number of frames the
// decoder holds back; time corrects this. A frame without a time follows the frame before.
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
