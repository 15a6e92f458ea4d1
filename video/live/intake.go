package live

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/Eyevinn/mp4ff/mp4"
	"github.com/bluenviron/mediacommon/v2/pkg/codecs/h264"

	"github.com/fre-engine/fre/video/asset"
)

// clockRate is the time scale of publishers' times: units per second, as in MPEG-TS.
const clockRate = 90000

// Limits of a publisher's clock, against the stream's clock.
const (
	mostAhead  = time.Second     // a publisher ahead of real time has to wait
	mostBehind = 5 * time.Second // beyond, or after a jump in time, samples belong to a new epoch
)

// mostQueued is the size limit in bytes of the queue before the tracks are known.
const mostQueued = 16 << 20

// mostTime is the largest accepted publisher time, twelve years in units of clockRate.
// Computations with smaller times do not overflow.
const mostTime = 1 << 45

var errTime = errors.New("the publisher's clock is too far from zero")

// errCodec refuses a publisher with an unsupported codec or broken codec data.
var errCodec = errors.New("only H.264 and AAC can be published")

// intake turns a publisher's H.264 and AAC into samples, without decoding. Only a single
// goroutine may use an intake.
type intake struct {
	*Stream
	ctx context.Context // ends with the publisher

	pictures, sounds *Track // current description; nil: none yet
	size             int    // bytes of the length before each NAL unit
	begun            bool   // an epoch with these tracks has begun
	queue            []queued
	bytes            int // size of queue

	timed bool     // time holds the last message's time
	time  int64    // of RTMP, in milliseconds
	last  [2]int64 // last decoding times, by index of tracks
	sound struct { // the clock of sound, counted in samples
		zero, count int64
	}
}

// queued is a sample waiting for its epoch to begin.
type queued struct {
	sound bool
	Sample
}

// describePictures takes H.264 parameter sets. Changed sets begin a new epoch.
func (in *intake) describePictures(sps, pps [][]byte) error {
	if len(sps) == 0 || len(pps) == 0 || len(sps[0]) < 4 || len(pps[0]) < 1 {
		return fmt.Errorf("%w: H.264 without parameter sets", errCodec)
	}
	// mp4ff trusts the counts in a parameter set and may allocate gigabytes. This parser refuses
	// false counts first.
	var of h264.SPS
	if err := of.Unmarshal(sps[0]); err != nil {
		return fmt.Errorf("%w: H.264: %w", errCodec, err)
	}
	init := mp4.CreateEmptyInit()
	track := init.AddEmptyTrack(clockRate, "video", "und")
	if err := track.SetAVCDescriptor("avc1", sps, pps, true); err != nil {
		return fmt.Errorf("%w: H.264: %w", errCodec, err)
	}
	t := &Track{TimeScale: clockRate, LiveTrack: asset.LiveTrack{Name: "v0", Kind: "video", Codec: fmt.Sprintf("avc1.%02x%02x%02x", sps[0][1], sps[0][2], sps[0][3])}}
	t.Width, t.Height = of.Width(), of.Height()
	t.FrameRate = frameRate(of.VUI)
	return in.describe(&in.pictures, t, init)
}

// frameRate returns the fixed rate that a parameter set states, or 0.
func frameRate(v *h264.SPS_VUI) float64 {
	if v == nil || v.TimingInfo == nil || v.TimingInfo.NumUnitsInTick == 0 || !v.TimingInfo.FixedFrameRateFlag {
		return 0
	}
	return float64(v.TimingInfo.TimeScale) / float64(2*uint64(v.TimingInfo.NumUnitsInTick))
}

// describeSound takes an AudioSpecificConfig (ISO/IEC 14496-3) with its parsed fields.
func (in *intake) describeSound(config []byte, object, rate, channels int) error {
	if object < 1 || object > 4 || rate < 7000 || rate > 96000 || channels < 1 || channels > 8 {
		return fmt.Errorf("%w: AAC of type %d, %d channels, %d samples each second", errCodec, object, channels, rate)
	}
	init := mp4.CreateEmptyInit()
	track := init.AddEmptyTrack(uint32(rate), "audio", "und")
	track.Mdia.Minf.Stbl.Stsd.AddChild(mp4.CreateAudioSampleEntryBox("mp4a", uint16(channels), 16, uint16(min(rate, 65535)), mp4.CreateEsdsBox(config)))
	return in.describe(&in.sounds, &Track{TimeScale: int64(rate), LiveTrack: asset.LiveTrack{Name: "a0", Kind: "audio", Codec: fmt.Sprintf("mp4a.40.%d", object), SampleRate: rate, Channels: channels}}, init)
}

// describe sets a track's description. In the initialisation segment mvex comes last (RFC 8216,
// 3.3).
func (in *intake) describe(to **Track, t *Track, init *mp4.InitSegment) error {
	init.Moov.Children = append(slices.DeleteFunc(init.Moov.Children, func(b mp4.Box) bool { return b == init.Moov.Mvex }), init.Moov.Mvex)
	var b bytes.Buffer
	if err := init.Encode(&b); err != nil {
		return err
	}
	t.Init = b.Bytes()
	if *to != nil && bytes.Equal((*to).Init, t.Init) {
		return nil
	}
	*to = t
	if in.begun {
		return in.begin()
	}
	return nil
}

// begin begins an epoch with the described tracks.
func (in *intake) begin() error {
	var tracks []Track
	if in.pictures != nil {
		tracks = append(tracks, *in.pictures)
	}
	if in.sounds != nil {
		tracks = append(tracks, *in.sounds)
	}
	in.begun, in.last, in.sound.count = true, [2]int64{math.MinInt64, math.MinInt64}, 0
	if err := in.Begin(tracks); err != nil {
		return err
	}
	waiting := in.queue
	in.queue, in.bytes = nil, 0
	for _, q := range waiting {
		if err := in.put(q); err != nil {
			return err
		}
	}
	return nil
}

// picture takes an access unit of NAL units. A length of in.size bytes precedes each NAL unit.
func (in *intake) picture(decode, offset int64, unit []byte) error {
	data, key, err := nalUnits(unit, in.size)
	if err != nil || in.pictures == nil || len(data) == 0 {
		return err
	}
	return in.put(queued{Sample: Sample{Decode: decode, Offset: offset, Key: key, Data: data}})
}

// aac takes an access unit of sound.
func (in *intake) aac(decode int64, unit []byte) error {
	if in.sounds == nil || len(unit) == 0 {
		return nil
	}
	return in.put(queued{true, Sample{Decode: decode, Key: true, Data: bytes.Clone(unit)}})
}

// put writes a sample once its time has come. Before the epoch begins put queues the sample.
func (in *intake) put(q queued) error {
	if q.Decode > mostTime || q.Decode < -mostTime {
		return errTime
	}
	if !in.begun {
		return in.enqueue(q)
	}
	if !q.sound && in.pictures == nil {
		return nil
	}
	index, scale := in.track(q.sound)
	before := in.last[index]
	in.last[index] = q.Decode
	if before != math.MinInt64 && jumps(units(q.Decode-before, clockRate)) {
		return in.again(q)
	}
	if q.sound {
		q.Decode = in.soundTime(q.Decode)
	}
	d, ok := in.ahead(index, q.Decode)
	if ok && d < -mostBehind {
		return in.again(q)
	}
	for ok && d > mostAhead {
		if err := sleep(in.ctx, d-mostAhead); err != nil {
			return err
		}
		d, ok = in.ahead(index, q.Decode)
	}
	q.Offset = q.Offset * scale / clockRate
	return in.Write(index, q.Sample)
}

// track returns the index of the picture or sound track in the epoch, and its time scale.
func (in *intake) track(sound bool) (index int, scale int64) {
	switch {
	case !sound:
		return 0, clockRate
	case in.pictures == nil:
		return 0, in.sounds.TimeScale
	}
	return 1, in.sounds.TimeScale
}

// jumps reports whether a track's time cannot change by d between two samples.
func jumps(d time.Duration) bool { return d < -mostAhead || d > mostBehind }

// enqueue keeps a sample for the epoch, and begins the epoch once both tracks are known, or a second
// has passed and the other track will not come.
func (in *intake) enqueue(q queued) error {
	if in.bytes += len(q.Data) + 64; in.bytes > mostQueued {
		return fmt.Errorf("%w: %d before its tracks are known", errBacklog, mostQueued)
	}
	in.queue = append(in.queue, q)
	if in.pictures != nil && in.sounds != nil || q.Decode-in.queue[0].Decode > clockRate {
		return in.begin()
	}
	return nil
}

// again begins a new epoch after a jump of the clock.
func (in *intake) again(q queued) error {
	if err := in.begin(); err != nil {
		return err
	}
	if q.sound && in.pictures != nil {
		return nil // sound waits for the next key frame
	}
	if !q.sound && !q.Key {
		return nil
	}
	return in.put(q)
}

// soundTime converts a decoding time to samples. RTMP has milliseconds, and a frame of 1024
// samples is no whole number of milliseconds. Therefore soundTime counts frames, and follows the
// publisher's time if both differ by more than 50 ms.
func (in *intake) soundTime(decode int64) int64 {
	rate := in.sounds.TimeScale
	at := decode * rate / clockRate
	next := in.sound.zero + 1024*in.sound.count
	if in.sound.count == 0 || at-next > rate/20 || next-at > rate/20 {
		in.sound.zero, in.sound.count, next = at, 0, at
	}
	in.sound.count++
	return next
}

// nalUnits copies NAL units from lengths of size bytes (ISO/IEC 14496-15) to lengths of four
// bytes, without empty units. key reports whether a unit belongs to an IDR picture.
func nalUnits(unit []byte, size int) (to []byte, key bool, err error) {
	if size < 1 || size > 4 {
		return nil, false, fmt.Errorf("%w: lengths of %d bytes", errCodec, size)
	}
	to = make([]byte, 0, len(unit)+16)
	for len(unit) > 0 {
		if len(unit) < size {
			return nil, false, fmt.Errorf("%w: an access unit that breaks off", errCodec)
		}
		n := 0
		for _, b := range unit[:size] {
			n = n<<8 | int(b)
		}
		unit = unit[size:]
		if n > len(unit) {
			return nil, false, fmt.Errorf("%w: an access unit that breaks off", errCodec)
		}
		if n > 0 {
			key = key || unit[0]&0x1f == avcIDR
			to = binary.BigEndian.AppendUint32(to, uint32(n))
			to = append(to, unit[:n]...)
		}
		unit = unit[n:]
	}
	return to, key, nil
}

// avcIDR is the NAL unit type of an IDR picture (ISO/IEC 14496-10 table 7-1).
const avcIDR = 5
