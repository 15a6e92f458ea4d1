package packager

// mostSamples is the most samples of a segment.
const mostSamples = 1 << 16

// Fragment is a parsed segment. It refers to the segment's bytes, which must not change until the
// segment is packaged. The zero value is ready. Reading into a used Fragment, for example from a
// pool, allocates nothing. A Fragment is not safe for concurrent use.
type Fragment struct {
	track    *Track
	segment  []byte
	samples  []sample
	parts    []part
	sequence uint32 // of the first part
	longest  uint32 // longest duration of a sample

	chain     chain  // the last used cipher
	plain     []byte // a NAL unit to be encrypted
	built     []byte // the elementary stream of samples, if it differs from the segment
	auxiliary []byte // auxiliary information of cbcs
}

// part is a moof with its mdat.
type part struct {
	moof, moofEnd int // offsets in the segment
	mdat, mdatEnd int // offsets of the body in the segment
	from, to      int // indices of samples
}

// sample is a sample of a segment.
type sample struct {
	at, end int    // offsets in the segment
	time    int64  // decoding time in units, without the edit list
	offset  int64  // composition offset
	length  uint32 // duration in units
	key     bool
	sets    bool // contains parameter sets
	skip    int  // size of the access unit delimiter in bytes
	units   int  // number of NAL units after the delimiter
}

// Read parses a segment of a track: one or more pairs of moof and mdat, possibly with other boxes
// between. All errors are ErrInput.
func (f *Fragment) Read(t *Track, segment []byte) error {
	f.track, f.segment, f.samples, f.parts, f.longest = t, segment, f.samples[:0], f.parts[:0], 0
	waits := false // for the mdat of the last moof
	at := within(segment)
	for at.next() {
		var err error
		if waits, err = f.readBox(&at, waits); err != nil {
			return err
		}
	}
	if at.err != nil {
		return at.err
	}
	if waits || len(f.samples) == 0 {
		return broken("no segment")
	}
	return nil
}

// readBox reads a box of the segment. waits, before and after, says that an mdat must follow.
func (f *Fragment) readBox(at *boxes, waits bool) (bool, error) {
	switch at.kind {
	case boxSidx:
		if waits {
			return waits, broken("a segment index before an mdat")
		}
	case boxMoof:
		if waits {
			return waits, broken("a moof without its mdat")
		}
		f.parts = append(f.parts, part{moof: at.at, moofEnd: at.end, from: len(f.samples)})
		return true, f.readMoof(at.body, at.at)
	case boxMdat:
		if !waits {
			return waits, broken("an mdat without a moof")
		}
		p := &f.parts[len(f.parts)-1]
		p.mdat, p.mdatEnd, p.to = at.end-len(at.body), at.end, len(f.samples)
		return false, f.readSamples(p)
	}
	return waits, nil
}

// readSamples checks that the samples of a part lie in its mdat, in order, and reads the NAL units
// of pictures.
func (f *Fragment) readSamples(p *part) error {
	end := p.mdat
	for i := p.from; i < p.to; i++ {
		s := &f.samples[i]
		if s.at < end || s.end > p.mdatEnd {
			return broken("a sample at %d to %d, outside of its mdat or of order", s.at, s.end)
		}
		end = s.end
		if f.track.Codec != AAC {
			if err := f.readUnits(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// readMoof parses a movie fragment of a single track. The moof starts at byte at of the segment.
func (f *Fragment) readMoof(b []byte, at int) error {
	trafs := 0
	in := within(b)
	for in.next() {
		switch in.kind {
		case boxMfhd:
			_, _, body, err := in.full(4)
			if err != nil {
				return err
			}
			if len(f.parts) == 1 {
				f.sequence = big.Uint32(body)
			}
		case boxTraf:
			if trafs++; trafs > 1 {
				return broken("more than one track")
			}
			if err := f.readTraf(in.body, at); err != nil {
				return err
			}
		}
	}
	return in.err
}

// run is the state of parsing a track fragment's samples.
type run struct {
	moof                  int   // start of the moof in the segment
	at                    int64 // offset of the next sample in the segment
	placed                bool  // at is known
	time                  int64
	duration, size, flags uint32 // defaults
}

func (f *Fragment) readTraf(b []byte, moof int) error {
	r := run{moof: moof, duration: f.track.duration, size: f.track.size, flags: f.track.sampled}
	headed, timed := false, false
	in := within(b)
	for in.next() {
		var err error
		switch in.kind {
		case boxTfhd:
			headed, err = true, r.readTfhd(&in)
		case boxTfdt:
			timed, err = true, r.readTfdt(&in)
		case boxTrun:
			if !headed || !timed {
				return broken("samples without tfhd or tfdt")
			}
			err = f.readTrun(&r, &in)
		case boxSenc, boxSaiz, boxSaio:
			err = broken("it is encrypted")
		}
		if err != nil {
			return err
		}
	}
	return in.err
}

// readTfhd reads the defaults of a track fragment's samples.
func (r *run) readTfhd(in *boxes) error {
	_, flags, body, err := in.full(4)
	if err != nil {
		return err
	}
	if flags&0x01 != 0 {
		return broken("data from a place in the file on")
	}
	body = body[4:]
	take := func(flag uint32, to *uint32) {
		if flags&flag != 0 && err == nil {
			if len(body) < 4 {
				err = broken("a box tfhd that breaks off")
				return
			}
			*to, body = big.Uint32(body), body[4:]
		}
	}
	var description uint32
	take(0x02, &description)
	take(0x08, &r.duration)
	take(0x10, &r.size)
	take(0x20, &r.flags)
	return err
}

// readTfdt reads the decoding time of the first sample.
func (r *run) readTfdt(in *boxes) error {
	version, _, body, err := in.full(4)
	if err != nil {
		return err
	}
	time := uint64(big.Uint32(body))
	if version == 1 {
		if len(body) < 8 {
			return broken("a box tfdt that breaks off")
		}
		time = big.Uint64(body)
	}
	if time > mostTime {
		return broken("a segment at %d", time)
	}
	r.time = int64(time)
	return nil
}

// Flags of a trun (ISO/IEC 14496-12 section 8.8.8.1).
const (
	trunOffset     = 0x001
	trunFirstFlags = 0x004
	trunDuration   = 0x100
	trunSize       = 0x200
	trunFlags      = 0x400
	trunTime       = 0x800

	nonSync = 0x10000 // sample_is_non_sync_sample
)

func (f *Fragment) readTrun(r *run, in *boxes) error {
	version, flags, b, err := in.full(4)
	if err != nil {
		return err
	}
	count := int64(big.Uint32(b))
	first, b, err := r.readTrunHead(flags, b[4:])
	if err != nil {
		return err
	}
	if count > mostSamples-int64(len(f.samples)) || count*trunEach(flags) > int64(len(b)) {
		return broken("%d samples", count)
	}
	for i := range count {
		s := sample{time: r.time, length: r.duration}
		size, flag := r.size, r.flags
		if flags&trunDuration != 0 {
			s.length, b = big.Uint32(b), b[4:]
		}
		if flags&trunSize != 0 {
			size, b = big.Uint32(b), b[4:]
		}
		if flags&trunFlags != 0 {
			flag, b = big.Uint32(b), b[4:]
		}
		if i == 0 && flags&trunFirstFlags != 0 {
			flag = first
		}
		if flags&trunTime != 0 {
			if s.offset = int64(big.Uint32(b)); version > 0 {
				s.offset = int64(int32(s.offset))
			}
			b = b[4:]
		}
		end := r.at + int64(size)
		if r.at < 0 || size == 0 || end > int64(len(f.segment)) {
			return broken("a sample of %d bytes at %d", size, r.at)
		}
		s.at, s.end, s.key = int(r.at), int(end), flag&nonSync == 0
		r.at = end
		r.time += int64(s.length)
		f.longest = max(f.longest, s.length)
		f.samples = append(f.samples, s)
	}
	return nil
}

// readTrunHead reads the optional fields before the samples: their place, and the flags of the first
// sample.
func (r *run) readTrunHead(flags uint32, b []byte) (first uint32, rest []byte, err error) {
	if flags&trunOffset != 0 {
		if len(b) < 4 {
			return 0, nil, broken("a box trun that breaks off")
		}
		r.at, r.placed = int64(r.moof)+int64(int32(big.Uint32(b))), true
		b = b[4:]
	}
	if !r.placed {
		return 0, nil, broken("samples without a place")
	}
	if flags&trunFirstFlags != 0 {
		if len(b) < 4 {
			return 0, nil, broken("a box trun that breaks off")
		}
		first, b = big.Uint32(b), b[4:]
	}
	return first, b, nil
}

// trunEach returns the size of a sample's entry in bytes.
func trunEach(flags uint32) (size int64) {
	for _, flag := range [...]uint32{trunDuration, trunSize, trunFlags, trunTime} {
		if flags&flag != 0 {
			size += 4
		}
	}
	return size
}

// unitKind tells from a NAL unit's first byte whether the unit is an access unit delimiter, a
// sequence parameter set or a slice of a key frame.
func (t *Track) unitKind(b byte) (delimiter, set, key bool) {
	if t.Codec == HEVC {
		kind := b >> 1 & 63
		return kind == hevcAUD, kind == hevcSetS, kind >= hevcFirstIRAP && kind <= hevcLastIRAP
	}
	kind := b & 31
	return kind == avcAUD, kind == avcSetS, kind == avcIDR
}

// readUnits records the NAL units of a sample.
func (f *Fragment) readUnits(s *sample) error {
	t := f.track
	for rest := f.segment[s.at:s.end]; len(rest) > 0; {
		unit, after, err := t.nextUnit(rest)
		if err != nil {
			return err
		}
		delimiter, set, key := t.unitKind(unit[0])
		if delimiter && s.units == 0 && s.skip == 0 {
			s.skip = len(rest) - len(after)
		} else {
			s.units++
		}
		s.sets, s.key = s.sets || set, s.key || key
		rest = after
	}
	if s.units == 0 {
		return broken("a sample without a picture")
	}
	return nil
}

// nextUnit splits a NAL unit and the length before it off b.
func (t *Track) nextUnit(b []byte) (unit, rest []byte, err error) {
	if len(b) < t.lengthSize {
		return nil, nil, broken("a NAL unit that breaks off")
	}
	n := uint32(0)
	for _, c := range b[:t.lengthSize] {
		n = n<<8 | uint32(c)
	}
	b = b[t.lengthSize:]
	if n == 0 || uint64(n) > uint64(len(b)) {
		return nil, nil, broken("a NAL unit of %d bytes where there are %d", n, len(b))
	}
	return b[:n], b[n:], nil
}

// lead returns the bytes before a sample in its elementary stream.
func (f *Fragment) lead(s *sample) []byte {
	if s.key && !s.sets {
		return f.track.sets
	}
	return f.track.delimiter
}

// picture returns the size of a sample of video in its elementary stream, in bytes.
func (f *Fragment) picture(s *sample) int {
	return len(f.lead(s)) + s.end - s.at - s.skip + s.units*(len(start)-f.track.lengthSize)
}

// ticks converts a time in units of the track to units of 1/90,000 s.
func (t *Track) ticks(time int64) int64 {
	scale := int64(t.TimeScale)
	whole, rest := time/scale, time%scale
	if rest < 0 {
		whole, rest = whole-1, rest+scale
	}
	return whole*90000 + (rest*90000+scale/2)/scale
}

// times returns a sample's times of decoding and presentation, in units of 1/90,000 s from Zero
// on. With negative composition offsets, allowed in CMAF, the decoding time is earlier by the
// most frames of reordering stated by the codec.
func (f *Fragment) times(s *sample) (decoded, shown int64) {
	t := f.track
	shown = t.ticks(s.time + s.offset + t.delay - t.shift)
	if t.Codec == AAC {
		return shown, shown
	}
	return min(shown, t.ticks(s.time+t.delay-max(t.shift, int64(t.reorder)*int64(f.longest)))), shown
}
