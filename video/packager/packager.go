// Package packager converts fragmented MP4 on demand: to MPEG transport streams, clear or
// encrypted by AES-128 or SAMPLE-AES, and to MP4 under the cbcs scheme.
//
//	init segment ── ReadTrack ──> Track
//	segment ── Fragment.Read ──> Fragment ──┬─ AppendTS ──> TS ── AppendAES128 ──> AES-128
//	                                        └─ AppendCBCS ──> MP4 under cbcs
//
// The input is a single track of H.264 (avc1, avc3), HEVC (hvc1, hev1) or AAC (mp4a). The input
// may be hostile: any violation is ErrInput. The output is appended to the caller's buffer.
// CBCSSize, TSSize and AES128Size tell its size, or an upper limit, beforehand. HEVC can only
// become a clear transport stream.
package packager

import (
	"bytes"

	"github.com/bluenviron/mediacommon/v2/pkg/codecs/h264"
)

// Codec is the codec of a track.
type Codec uint8

const (
	H264 Codec = iota + 1 // ISO/IEC 14496-10
	HEVC                  // ISO/IEC 23008-2
	AAC                   // ISO/IEC 14496-3
)

// Track is the contents of an initialisation segment with a single track. A Track is immutable,
// so it is safe for concurrent use, and it keeps no reference to the segment's bytes.
type Track struct {
	Codec     Codec
	TimeScale uint32 // units per second

	shift                   int64  // units subtracted from all times by the edit list
	delay                   int64  // units added by the edit list
	duration, size, sampled uint32 // defaults of a sample; flags

	lengthSize int    // size of the length before a NAL unit, in bytes
	delimiter  []byte // the access unit delimiter in the form of a byte stream
	sets       []byte // the delimiter and the parameter sets
	reorder    uint32 // most frames from decoding to output
	pictures   map[uint32]*avcPPS

	config []byte  // AudioSpecificConfig
	adts   [7]byte // header of a frame without payload
}

// ReadTrack parses an initialisation segment (ISO/IEC 14496-12).
func ReadTrack(init []byte) (*Track, error) {
	t := &Track{}
	var m movie
	at := within(init)
	for at.next() {
		if at.kind != boxMoov {
			continue
		}
		if err := m.read(t, at.body); err != nil {
			return nil, err
		}
	}
	if at.err != nil {
		return nil, at.err
	}
	if m.tracks == 0 || !m.extended || t.Codec == 0 || t.TimeScale == 0 {
		return nil, broken("no initialisation segment of one track")
	}
	if m.edits != nil {
		return t, t.readElst(m.edits, m.timeScale)
	}
	return t, nil
}

// movie is the part of a box moov outside of the track.
type movie struct {
	timeScale uint32
	tracks    int
	edits     []byte // body of the track's box elst
	extended  bool   // a box mvex is there
}

func (m *movie) read(t *Track, body []byte) error {
	in := within(body)
	for in.next() {
		var err error
		switch in.kind {
		case boxMvhd:
			m.timeScale, err = timeScale(&in)
		case boxTrak:
			if m.tracks++; m.tracks > 1 {
				return broken("more than one track")
			}
			m.edits, err = t.readTrak(in.body)
		case boxMvex:
			m.extended = true
			err = t.readMvex(in.body)
		}
		if err != nil {
			return err
		}
	}
	return in.err
}

// timeScale returns the time scale of the current box, mvhd or mdhd.
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

// units returns the number at offset at of b, or 0 beyond the end.
func units(b []byte, at int) uint32 {
	if len(b) < at+4 {
		return 0
	}
	return big.Uint32(b[at:])
}

// readTrak parses a track's description and returns its edit list, if any.
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

// Sizes of a sample entry before its boxes, in bytes.
const (
	visualEntry = 78
	audioEntry  = 28
)

// readEntry parses the only sample entry of a track.
func (t *Track) readEntry(b []byte) error {
	at := within(b)
	if !at.next() || at.end != len(b) || t.Codec != 0 {
		return broken("not one sample entry")
	}
	var before int
	var config uint32
	if t.Codec, before, config = entryKind(at.kind); t.Codec == 0 {
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
		return t.readDecoder(in.body)
	}
	return broken("a sample entry without %s", name(config))
}

// readDecoder parses the box with the decoder's configuration.
func (t *Track) readDecoder(b []byte) error {
	switch t.Codec {
	case H264:
		return t.readAvcC(b)
	case HEVC:
		return t.readHvcC(b)
	case AAC:
	}
	return t.readEsds(b)
}

// entryKind returns the codec of a sample entry (0: unknown), the bytes before its boxes, and the
// box with the decoder's configuration.
func entryKind(kind uint32) (codec Codec, before int, config uint32) {
	switch kind {
	case boxAvc1, boxAvc3:
		return H264, visualEntry, boxAvcC
	case boxHvc1, boxHev1:
		return HEVC, visualEntry, boxHvcC
	case boxMp4a:
		return AAC, audioEntry, boxEsds
	}
	return 0, 0, 0
}

// start is the start code before each NAL unit in a byte stream.
var start = []byte{0, 0, 0, 1}

// parameterSet splits a parameter set and the length before it off b.
func parameterSet(b []byte) (unit, rest []byte, err error) {
	if len(b) < 2 || len(b)-2 < int(big.Uint16(b)) || big.Uint16(b) < 4 {
		return nil, nil, broken("a parameter set that breaks off")
	}
	n := 2 + int(big.Uint16(b))
	return b[2:n], b[n:], nil
}

// readAvcC parses an AVCDecoderConfigurationRecord (ISO/IEC 14496-15 section 5.3.3.1).
func (t *Track) readAvcC(b []byte) (err error) {
	if len(b) < 7 {
		return broken("a configuration of %d bytes", len(b))
	}
	t.lengthSize = int(b[4]&3) + 1
	t.delimiter = append(bytes.Clone(start), avcAUD, 0xf0)
	t.sets = bytes.Clone(t.delimiter)
	sequences := map[uint32]*h264.SPS{}
	t.pictures = map[uint32]*avcPPS{}
	n := int(b[5] & 31)
	b = b[6:]
	for range n {
		var unit []byte
		if unit, b, err = parameterSet(b); err != nil {
			return err
		}
		set, err := readAVCSPS(unit)
		if err != nil {
			return err
		}
		sequences[set.ID] = set
		t.reorder = max(t.reorder, avcReorder(set))
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

// readHvcC parses an HEVCDecoderConfigurationRecord (ISO/IEC 14496-15 section 8.3.3.1).
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

// readEsds parses the AudioSpecificConfig in the descriptors (ISO/IEC 14496-1 section 7.2.6) of a
// sample entry.
func (t *Track) readEsds(b []byte) error {
	if len(b) < 4 {
		return broken("descriptors of %d bytes", len(b))
	}
	b, err := descriptor(b[4:], 3, 3)
	if err != nil {
		return err
	}
	if b[2]&0xe0 != 0 {
		return broken("a stream that depends on others")
	}
	if b, err = descriptor(b[3:], 4, 13); err != nil {
		return err
	}
	if kind := b[0]; kind != 0x40 {
		return broken("sound of the type %#x", kind)
	}
	if b, err = descriptor(b[13:], 5, 2); err != nil {
		return err
	}
	if len(b) > 64 {
		return broken("a configuration of %d bytes", len(b))
	}
	t.config = bytes.Clone(b)
	return t.readConfig()
}

// descriptor returns the content, of at least head bytes, of the descriptor at the start of b.
func descriptor(b []byte, tag byte, head int) ([]byte, error) {
	if len(b) == 0 || b[0] != tag {
		return nil, broken("no descriptor %d", tag)
	}
	size, i := 0, 1
	for {
		if i == len(b) || i > 4 {
			return nil, broken("a descriptor that breaks off")
		}
		size = size<<7 | int(b[i]&127)
		i++
		if b[i-1] < 128 {
			break
		}
	}
	if size > len(b)-i || size < head {
		return nil, broken("a descriptor of %d bytes", size)
	}
	return b[i : i+size], nil
}

// readConfig parses the AudioSpecificConfig (ISO/IEC 14496-3 section 1.6.2.1) and prepares the
// ADTS header of a frame (section 1.A.2).
func (t *Track) readConfig() error {
	r := &bitReader{unit: t.config, plain: true}
	object := r.u(5)
	frequency := r.u(4)
	if object == 31 || frequency > 12 {
		return broken("sound that has no ADTS form")
	}
	channels := r.u(4)
	if object == 5 || object == 29 { // spectral band replication: the header describes the core
		object = coreObject(r)
	}
	if r.ended || object < 1 || object > 4 || channels < 1 || channels > 7 {
		return broken("sound that has no ADTS form")
	}
	t.adts = [7]byte{0xff, 0xf1, byte(object-1)<<6 | byte(frequency)<<2 | byte(channels>>2), byte(channels&3) << 6, 0, 0x1f, 0xfc}
	return nil
}

// readMvex parses the defaults of samples.
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

// coreObject skips the frequency of the extension and reads the core's object type.
func coreObject(r *bitReader) uint32 {
	if r.u(4) == 15 {
		r.u(24)
	}
	return r.u(5)
}

// readElst parses an edit list with a single edit. Empty edits may precede it, with durations in
// the movie's time scale.
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
		if err := t.wait(duration, movie); err != nil {
			return err
		}
	}
	return nil
}

// wait adds an empty edit, with its duration in the movie's time scale.
func (t *Track) wait(duration uint64, movie uint32) error {
	if movie == 0 || duration > mostTime/uint64(t.TimeScale) {
		return broken("an empty edit of %d", duration)
	}
	if t.delay += int64(duration * uint64(t.TimeScale) / uint64(movie)); t.delay > mostTime {
		return broken("empty edits without end")
	}
	return nil
}

// mostTime is the limit of every time, in units of the time scale.
const mostTime = 1 << 60
