// Package packager makes other containers and encryptions of fragmented MP4, as they are
// asked for: MPEG transport streams, clear, by AES-128 or by SAMPLE-AES, and MP4 under the
// cbcs scheme.
//
//	init segment ── ReadTrack ──> Track
//	segment ── Fragment.Read ──> Fragment ──┬─ AppendTS ──> TS ── AppendAES128 ──> AES-128
//	                                        └─ AppendCBCS ──> MP4 under cbcs
//
// What is read has one track, of H.264 (avc1, avc3), HEVC (hvc1, hev1) or AAC (mp4a), and
// comes from files that nobody has to trust: whatever is not as it should be is ErrInput.
// What is made is appended to the caller's buffer, of a size that can be asked for before.
// HEVC can be packaged as a clear transport stream alone.
package packager

import (
	"bytes"
	"errors"
)

// ErrInput is what all errors of this package are: what was given is broken off, broken, or
// of a kind that cannot be packaged.
var ErrInput = errors.New("it cannot be packaged")

// Codec of a track.
type Codec uint8

const (
	H264 Codec = iota + 1 // ISO/IEC 14496-10
	HEVC                  // ISO/IEC 23008-2
	AAC                   // ISO/IEC 14496-3
)

// Track is what an initialisation segment says of its one track. It is not changed by its
// use, which may be at the same time, and keeps nothing of the segment's bytes.
type Track struct {
	Codec     Codec
	TimeScale uint32 // units of a second

	shift                   int64  // what the edit list takes off times, in units
	delay                   int64  // what it puts before them
	duration, size, sampled uint32 // of a sample for which nothing else is said; flags

	lengthSize int    // of a NAL unit's length
	delimiter  []byte // the access unit delimiter, as bytes of a stream
	sets       []byte // it and the parameter sets behind it
	reorder    uint32 // frames by which output may be later than decoding
	pictures   map[uint32]*avcPPS

	config []byte  // AudioSpecificConfig
	adts   [7]byte // the header of a frame without payload
}

// ReadTrack reads an initialisation segment (ISO/IEC 14496-12).
func ReadTrack(init []byte) (*Track, error) {
	t := &Track{}
	var movie uint32
	var edits []byte
	tracks, extended := 0, false
	at := within(init)
	for at.next() {
		if at.kind != boxMoov {
			continue
		}
		in := within(at.body)
		for in.next() {
			var err error
			switch in.kind {
			case boxMvhd:
				movie, err = timeScale(&in)
			case boxTrak:
				if tracks++; tracks > 1 {
					return nil, broken("more than one track")
				}
				edits, err = t.readTrak(in.body)
			case boxMvex:
				extended = true
				err = t.readMvex(in.body)
			}
			if err != nil {
				return nil, err
			}
		}
		if in.err != nil {
			return nil, in.err
		}
	}
	if at.err != nil {
		return nil, at.err
	}
	if tracks == 0 || !extended || t.Codec == 0 || t.TimeScale == 0 {
		return nil, broken("no initialisation segment of one track")
	}
	if edits != nil {
		return t, t.readElst(edits, movie)
	}
	return t, nil
}

// timeScale is what the current box, mvhd or mdhd, says.
func timeScale(b *boxes) (uint32, error) {
	version, _, body, err := b.full(20)
	if err != nil || version == 0 {
		return units(body, 8), err
	}
	if len(body) < 20 {
		return 0, broken("a box %s that breaks off", name(b.kind))
	}
	return units(body, 16), nil
}

// units is the number at a place, 0 where there is none.
func units(b []byte, at int) uint32 {
	if len(b) < at+4 {
		return 0
	}
	return big.Uint32(b[at:])
}

// readTrak reads a track's description, and gives out its edit list where it has one.
func (t *Track) readTrak(b []byte) (edits []byte, err error) {
	at := within(b)
	for at.next() {
		switch at.kind {
		case boxEdts:
			in := within(at.body)
			for in.next() {
				if in.kind == boxElst {
					edits = in.body
				}
			}
			err = in.err
		case boxMdia:
			err = t.readMdia(at.body)
		}
		if err != nil {
			return nil, err
		}
	}
	return edits, at.err
}

func (t *Track) readMdia(b []byte) (err error) {
	at := within(b)
	for at.next() {
		switch at.kind {
		case boxMdhd:
			t.TimeScale, err = timeScale(&at)
		case boxMinf:
			err = t.readMinf(at.body)
		}
		if err != nil {
			return err
		}
	}
	return at.err
}

func (t *Track) readMinf(b []byte) error {
	at := within(b)
	for at.next() {
		if at.kind != boxStbl {
			continue
		}
		in := within(at.body)
		for in.next() {
			if in.kind != boxStsd {
				continue
			}
			_, _, body, err := in.full(4)
			if err != nil {
				return err
			}
			if err := t.readEntry(body[4:]); err != nil {
				return err
			}
		}
		if in.err != nil {
			return in.err
		}
	}
	return at.err
}

// The bytes of a sample entry before its boxes.
const (
	visualEntry = 78
	audioEntry  = 28
)

// readEntry reads the one sample entry of a track.
func (t *Track) readEntry(b []byte) error {
	at := within(b)
	if !at.next() || at.end != len(b) || t.Codec != 0 {
		return broken("not one sample entry")
	}
	before, config := visualEntry, boxAvcC
	switch at.kind {
	case boxAvc1, boxAvc3:
		t.Codec = H264
	case boxHvc1, boxHev1:
		t.Codec, config = HEVC, boxHvcC
	case boxMp4a:
		t.Codec, before, config = AAC, audioEntry, boxEsds
	default:
		return broken("samples of the kind %s", name(at.kind))
	}
	if len(at.body) < before {
		return broken("a sample entry of %d bytes", len(at.body))
	}
	if t.Codec == AAC && big.Uint16(at.body[8:]) != 0 {
		return broken("a sample entry of QuickTime")
	}
	in := within(at.body[before:])
	for in.next() {
		if in.kind != config {
			continue
		}
		switch t.Codec {
		case H264:
			return t.readAvcC(in.body)
		case HEVC:
			return t.readHvcC(in.body)
		case AAC:
			return t.readEsds(in.body)
		}
	}
	return broken("a sample entry without %s", name(config))
}

// start begins each NAL unit in a stream of bytes.
var start = []byte{0, 0, 0, 1}

// parameterSet takes one off b, which begins with its length.
func parameterSet(b []byte) (unit, rest []byte, err error) {
	if len(b) < 2 || len(b)-2 < int(big.Uint16(b)) || big.Uint16(b) < 4 {
		return nil, nil, broken("a parameter set that breaks off")
	}
	n := 2 + int(big.Uint16(b))
	return b[2:n], b[n:], nil
}

// readAvcC reads an AVCDecoderConfigurationRecord (ISO/IEC 14496-15 section 5.3.3.1).
func (t *Track) readAvcC(b []byte) (err error) {
	if len(b) < 7 {
		return broken("a configuration of %d bytes", len(b))
	}
	t.lengthSize = int(b[4]&3) + 1
	t.delimiter = append(bytes.Clone(start), avcAUD, 0xf0)
	t.sets = bytes.Clone(t.delimiter)
	sequences := map[uint32]*avcSPS{}
	t.pictures = map[uint32]*avcPPS{}
	n := int(b[5] & 31)
	b = b[6:]
	for range n {
		var unit []byte
		if unit, b, err = parameterSet(b); err != nil {
			return err
		}
		id, set, err := readAVCSPS(unit)
		if err != nil {
			return err
		}
		sequences[id] = set
		t.reorder = max(t.reorder, set.reorder)
		t.sets = append(append(t.sets, start...), unit...)
	}
	if len(b) < 1 {
		return broken("a configuration without picture parameter sets")
	}
	n, b = int(b[0]), b[1:]
	for range n {
		var unit []byte
		if unit, b, err = parameterSet(b); err != nil {
			return err
		}
		id, set, err := readAVCPPS(unit, sequences)
		if err != nil {
			return err
		}
		t.pictures[id] = set
		t.sets = append(append(t.sets, start...), unit...)
	}
	return nil
}

// readHvcC reads an HEVCDecoderConfigurationRecord (ISO/IEC 14496-15 section 8.3.3.1).
func (t *Track) readHvcC(b []byte) error {
	if len(b) < 23 {
		return broken("a configuration of %d bytes", len(b))
	}
	t.lengthSize = int(b[21]&3) + 1
	t.delimiter = append(bytes.Clone(start), hevcAUD<<1, 1, 0x50)
	t.sets = bytes.Clone(t.delimiter)
	arrays := int(b[22])
	b = b[23:]
	for range arrays {
		if len(b) < 3 {
			return broken("a configuration that breaks off")
		}
		n := int(big.Uint16(b[1:]))
		b = b[3:]
		for range n {
			unit, rest, err := parameterSet(b)
			if err != nil {
				return err
			}
			b = rest
			if unit[0]>>1&63 == hevcSetS {
				reorder, err := readHEVCReorder(unit)
				if err != nil {
					return err
				}
				t.reorder = max(t.reorder, reorder)
			}
			t.sets = append(append(t.sets, start...), unit...)
		}
	}
	return nil
}

// readEsds reads the AudioSpecificConfig in the descriptors (ISO/IEC 14496-1 section 7.2.6)
// of a sample entry.
func (t *Track) readEsds(b []byte) error {
	if len(b) < 4 {
		return broken("descriptors of %d bytes", len(b))
	}
	b = b[4:]
	descriptor := func(tag byte, head int) error {
		if len(b) == 0 || b[0] != tag {
			return broken("no descriptor %d", tag)
		}
		size, i := 0, 1
		for {
			if i == len(b) || i > 4 {
				return broken("a descriptor that breaks off")
			}
			size = size<<7 | int(b[i]&127)
			i++
			if b[i-1] < 128 {
				break
			}
		}
		if size > len(b)-i || size < head {
			return broken("a descriptor of %d bytes", size)
		}
		b = b[i : i+size]
		return nil
	}
	if err := descriptor(3, 3); err != nil {
		return err
	}
	if b[2]&0xe0 != 0 {
		return broken("a stream that depends on others")
	}
	b = b[3:]
	if err := descriptor(4, 13); err != nil {
		return err
	}
	if kind := b[0]; kind != 0x40 {
		return broken("sound of the type %#x", kind)
	}
	b = b[13:]
	if err := descriptor(5, 2); err != nil {
		return err
	}
	if len(b) > 64 {
		return broken("a configuration of %d bytes", len(b))
	}
	t.config = bytes.Clone(b)
	return t.readConfig()
}

// readConfig reads the AudioSpecificConfig (ISO/IEC 14496-3 section 1.6.2.1), and makes the
// header of frames (section 1.A.2) of it.
func (t *Track) readConfig() error {
	r := &bitReader{unit: t.config, plain: true}
	object := r.u(5)
	frequency := r.u(4)
	if object == 31 || frequency > 12 {
		return broken("sound that has no ADTS form")
	}
	channels := r.u(4)
	if object == 5 || object == 29 { // spectral band replication: the core is what a header tells
		if r.u(4) == 15 {
			r.u(24)
		}
		object = r.u(5)
	}
	if r.ended || object < 1 || object > 4 || channels < 1 || channels > 7 {
		return broken("sound that has no ADTS form")
	}
	t.adts = [7]byte{0xff, 0xf1, byte(object-1)<<6 | byte(frequency)<<2 | byte(channels>>2), byte(channels&3) << 6, 0, 0x1f, 0xfc}
	return nil
}

// readMvex reads what samples are like for which nothing else is said.
func (t *Track) readMvex(b []byte) error {
	at := within(b)
	for at.next() {
		if at.kind != boxTrex {
			continue
		}
		_, _, body, err := at.full(20)
		if err != nil {
			return err
		}
		t.duration, t.size, t.sampled = big.Uint32(body[8:]), big.Uint32(body[12:]), big.Uint32(body[16:])
	}
	return at.err
}

// readElst reads an edit list of one edit, which may have empty ones before it, whose
// durations are in units of the movie's time scale.
func (t *Track) readElst(b []byte, movie uint32) error {
	if len(b) < 8 {
		return broken("an edit list of %d bytes", len(b))
	}
	n := big.Uint32(b[4:])
	size := 12
	if b[0] == 1 {
		size = 20
	}
	version := b[0]
	b = b[8:]
	if uint64(n)*uint64(size) > uint64(len(b)) {
		return broken("an edit list that breaks off")
	}
	for range n {
		duration, time := uint64(big.Uint32(b)), int64(int32(big.Uint32(b[4:])))
		if version == 1 {
			duration, time = big.Uint64(b), int64(big.Uint64(b[8:]))
		}
		b = b[size:]
		if time >= 0 {
			if time > mostTime {
				return broken("an edit at %d", time)
			}
			t.shift = time
			return nil
		}
		if movie == 0 || duration > mostTime/uint64(t.TimeScale) {
			return broken("an empty edit of %d", duration)
		}
		if t.delay += int64(duration * uint64(t.TimeScale) / uint64(movie)); t.delay > mostTime {
			return broken("empty edits without end")
		}
	}
	return nil
}

// mostTime is the farthest that anything is from the beginning, in units of time.
const mostTime = 1 << 60
