package packager

import "encoding/binary"

// Zero is the time stamp of presentation time zero in transport streams, in units of 1/90,000 s.
// Subtitles state it in X-TIMESTAMP-MAP (RFC 8216 section 3.5).
const Zero = 10 * 90000

// SampleAES holds the key of a transport stream's samples, and the initialisation vector for the
// start of each sample ("MPEG-2 Stream Encryption Format for HTTP Live Streaming").
type SampleAES struct {
	Key, IV [16]byte
}

// Sizes and packet identifiers of a transport stream.
const (
	packet  = 188
	header  = 4
	payload = packet - header
	clock   = 8 // bytes of an adaptation field with a clock reference

	pidMap   = 0x1000
	pidMedia = 0x100
)

// clockLead is how far the clock reference is behind a sample's decoding time, in units of
// 1/90,000 s: the time between arrival and decoding.
const clockLead = 63000

// Sizes of a PES packet's header, in bytes: with one time stamp, and with two.
const (
	onePES = 14
	twoPES = 19
)

// mostPES and mostWait limit the sound in a PES packet, in bytes and in units of 1/90,000 s. A
// PES packet has a clock reference, required every 100 ms (ISO/IEC 13818-1 section 2.7.2).
const (
	mostPES  = 16 * payload
	mostWait = 9000
)

// TSSize returns the number of bytes appended by AppendTS: the exact number for a clear stream (e
// is nil), an upper limit for an encrypted stream.
func (f *Fragment) TSSize(e *SampleAES) int64 {
	packets := int64(0)
	for from := 0; from < len(f.samples); {
		to, size, head := f.group(from)
		if e != nil && f.track.Codec != AAC {
			size += size / 2 // at most one guard byte for each two bytes
		}
		n := packetsOf(head + size)
		packets += int64(n)
		if to == len(f.samples) {
			packets += int64(spare(packets, n, size))
			if e != nil {
				packets += 15
			}
		}
		from = to
	}
	return (2 + packets) * packet
}

// packetsOf returns the number of packets for n bytes of a PES packet. The first packet has a
// clock reference.
func packetsOf(n int) int { return 1 + max(0, n-(payload-clock)+payload-1)/payload }

// spare returns the number of extra packets for the last PES packet, to make the segment's
// packets a multiple of 16. The continuity counter has four bits, so the next segment can then
// begin with 0. all counts the packets of the segment, n the packets of the last PES packet. Each
// packet needs at least a byte of payload.
func spare(all int64, n, size int) int { return min(int(-all&15), max(0, size+1-n)) }

// group returns the extent of the PES packet that begins with sample from: the sample after the
// last, the size of the samples, and the size of the header.
func (f *Fragment) group(from int) (to, size, head int) {
	s := &f.samples[from]
	if f.track.Codec != AAC {
		head = onePES
		if decoded, shown := f.times(s); decoded != shown {
			head = twoPES
		}
		return from + 1, f.picture(s), head
	}
	begin := f.track.ticks(s.time)
	for to = from; to < len(f.samples); to++ {
		s := &f.samples[to]
		n := len(f.track.adts) + s.end - s.at
		if to > from && (size+n > mostPES || f.track.ticks(s.time+int64(s.length))-begin > mostWait) {
			break
		}
		size += n
	}
	return to, size, onePES
}

// AppendTS appends the segment as an MPEG transport stream (ISO/IEC 13818-1, RFC 8216 section
// 3.2) of one program with one elementary stream. Unless e is nil, AppendTS encrypts the samples;
// encrypted HEVC is ErrInput.
//
// Presentation time zero, after the edit list, has the time stamp Zero in all renditions.
// Continuity counters continue across segments with consecutive sequence numbers, even if
// different processes make the segments.
func (f *Fragment) AppendTS(dst []byte, e *SampleAES) ([]byte, error) {
	t := f.track
	if e != nil {
		if t.Codec == HEVC {
			return dst, broken("there is no SAMPLE-AES for HEVC")
		}
		f.chain.open(&e.Key, &e.IV)
	}
	begin := len(dst)
	dst = grow(dst, int(f.TSSize(e)))
	w := &stream{b: dst[begin:]}
	f.tables(w, e != nil)
	for from := 0; from < len(f.samples); {
		to, _, _ := f.group(from)
		s := &f.samples[from]
		p := elementary{key: s.key, id: 0xe0}
		p.decoded, p.shown = f.times(s)
		switch {
		case t.Codec == AAC:
			p.id = 0xc0
			var err error
			if p.body, err = f.sound(from, to, e != nil); err != nil {
				return dst[:begin], err
			}
		case e != nil || t.lengthSize != len(start):
			p.lead, p.body = f.lead(s), f.pictureOf(s, e != nil)
		default:
			p.lead, p.body, p.lengths = f.lead(s), f.segment[s.at+s.skip:s.end], true
		}
		size := len(p.lead) + len(p.body)
		head := p.header(size)
		n := packetsOf(head + size)
		if to == len(f.samples) {
			n += spare(w.packets+int64(n), n, size)
		}
		w.write(&p, n)
		from = to
	}
	return dst[:begin+w.at], nil
}

// pictureOf returns a sample of video in its elementary stream, without its lead. The result is
// valid until the next call.
func (f *Fragment) pictureOf(s *sample, encrypted bool) []byte {
	f.built = f.built[:0]
	for rest := f.segment[s.at+s.skip : s.end]; len(rest) > 0; {
		unit, after, err := f.track.nextUnit(rest)
		if err != nil {
			break // Read has checked all units
		}
		rest = after
		f.built = append(f.built, start...)
		if kind := unit[0] & 31; !encrypted || kind != avcSlice && kind != avcIDR || len(unit) <= 48 {
			f.built = append(f.built, unit...)
			continue
		}
		f.plain = append(f.plain[:0], unit...)
		f.chain.tenth(f.plain[32:], block)
		f.built = appendGuarded(f.built, f.plain)
	}
	return f.built
}

// appendGuarded appends b with emulation prevention bytes (ISO/IEC 14496-10 section 7.4.1).
func appendGuarded(dst, b []byte) []byte {
	for {
		i := twoZeros(b)
		if i+2 >= len(b) {
			return append(dst, b...)
		}
		dst = append(dst, b[:i+2]...)
		if b = b[i+2:]; b[0] <= 3 {
			dst = append(dst, 3)
		}
	}
}

// twoZeros returns the index of the first two consecutive zeros, or len(b). It checks 16 bytes at a
// time: the standard library's search for two bytes is slower than all the rest of packaging.
func twoZeros(b []byte) int {
	const low, high = 0x0101010101010101, 0x8080808080808080
	rest := b
	for len(rest) > 16 {
		v, w := binary.LittleEndian.Uint64(rest), binary.LittleEndian.Uint64(rest[8:])
		if ((v-low)&^v|(w-low)&^w)&high != 0 { // some byte is zero
			for j := range 16 {
				if rest[j] == 0 && rest[j+1] == 0 {
					return len(b) - len(rest) + j
				}
			}
		}
		rest = rest[16:]
	}
	for ; len(rest) > 1; rest = rest[1:] {
		if rest[0] == 0 && rest[1] == 0 {
			return len(b) - len(rest)
		}
	}
	return len(b)
}

// sound returns samples of sound in the elementary stream: frames with ADTS headers (ISO/IEC
// 14496-3 section 1.A.2). The result is valid until the next call.
func (f *Fragment) sound(from, to int, encrypted bool) ([]byte, error) {
	f.built = f.built[:0]
	for _, s := range f.samples[from:to] {
		n := len(f.track.adts) + s.end - s.at
		if n > 1<<13-1 {
			return nil, broken("a frame of %d bytes of sound", n)
		}
		head := f.track.adts
		head[3] |= byte(n >> 11)
		head[4] = byte(n >> 3)
		head[5] |= byte(n << 5)
		f.built = append(f.built, head[:]...)
		at := len(f.built)
		f.built = append(f.built, f.segment[s.at:s.end]...)
		if frame := f.built[at:]; encrypted && len(frame) >= 32 {
			f.chain.all(frame[16:])
		}
	}
	return f.built, nil
}

// tables writes the program association table and the program map table (ISO/IEC 13818-1 sections
// 2.4.4.3 and 2.4.4.8).
func (f *Fragment) tables(w *stream, encrypted bool) {
	counter := byte(f.sequence-1) & 15
	w.section(0, counter, []byte{
		0x00, 0xb0, 13, 0, 1, 0xc1, 0, 0, // table, length, stream, version, sections
		0, 1, 0xe0 | pidMap>>8, pidMap & 255,
	})
	var room [payload]byte
	b := append(room[:0],
		0x02, 0xb0, 0, 0, 1, 0xc1, 0, 0,
		0xe0|pidMedia>>8, pidMedia&255, 0xf0, 0, // PID of the clock, no descriptors
	)
	kind := [...]byte{H264: 0x1b, HEVC: 0x24, AAC: 0x0f}[f.track.Codec]
	if encrypted {
		kind = [...]byte{H264: 0xdb, AAC: 0xcf}[f.track.Codec]
	}
	b = append(b, kind, 0xe0|pidMedia>>8, pidMedia&255, 0xf0, 0)
	at := len(b)
	switch {
	case f.track.Codec == HEVC:
		b = append(b, 5, 4, 'H', 'E', 'V', 'C')
	case encrypted && f.track.Codec == H264:
		b = append(b, 15, 4, 'z', 'a', 'v', 'c')
	case encrypted:
		config := f.track.config
		b = append(b, 15, 4, 'a', 'a', 'c', 'd', 5, byte(4+8+len(config)), 'a', 'p', 'a', 'd')
		// The audio setup: type, priming, version, configuration.
		b = append(b, f.track.setUp()...)
		b = append(b, 0, 0, 1, byte(len(config)))
		b = append(b, config...)
	}
	b[at-1] = byte(len(b) - at)
	b[2] = byte(len(b) - 3 + 4)
	w.section(pidMap, counter, b)
}

// setUp returns the audio type in SAMPLE-AES.
func (t *Track) setUp() string {
	switch t.config[0] >> 3 {
	case 5:
		return "zach"
	case 29:
		return "zacp"
	}
	return "zaac"
}

// elementary is a PES packet, a packet of the elementary stream (ISO/IEC 13818-1 section
// 2.4.3.6).
type elementary struct {
	id             byte
	key            bool
	decoded, shown int64
	lead, body     []byte
	lengths        bool // body has lengths of four bytes, to be replaced by start codes
	head           [twoPES]byte
}

// header builds the header for size bytes and returns the header's size.
func (p *elementary) header(size int) int {
	n := onePES
	flags := byte(0x80)
	stamp := func(at int, mark byte, time int64) {
		v := uint64(time + Zero)
		p.head[at] = mark<<4 | byte(v>>29)&0x0e | 1
		p.head[at+1] = byte(v >> 22)
		p.head[at+2] = byte(v>>14) | 1
		p.head[at+3] = byte(v >> 7)
		p.head[at+4] = byte(v<<1) | 1
	}
	if p.decoded == p.shown {
		stamp(9, 2, p.shown)
	} else {
		n, flags = twoPES, 0xc0
		stamp(9, 3, p.shown)
		stamp(14, 1, p.decoded)
	}
	length := size + n - 6
	if length > 0xffff {
		length = 0 // pictures need no length
	}
	copy(p.head[:], []byte{0, 0, 1, p.id, byte(length >> 8), byte(length), 0x84, flags, byte(n - 9)})
	return n
}

// stream is a transport stream being written. b must have room for all of it.
type stream struct {
	b       []byte
	at      int
	packets int64 // of the elementary stream
}

// section writes a section, given without its CRC, as one packet.
func (w *stream) section(pid int, counter byte, b []byte) {
	p := w.b[w.at : w.at+packet]
	w.at += packet
	n := copy(p, []byte{0x47, 0x40 | byte(pid>>8), byte(pid), 0x10 | counter, 0})
	n += copy(p[n:], b)
	big.PutUint32(p[n:], check(b))
	for i := n + 4; i < packet; i++ {
		p[i] = 0xff
	}
}

// check returns the CRC of a section (ISO/IEC 13818-1 annex A).
func check(b []byte) uint32 {
	crc := ^uint32(0)
	for _, c := range b {
		crc ^= uint32(c) << 24
		for range 8 {
			if crc&(1<<31) != 0 {
				crc = crc<<1 ^ 0x04c11db7
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}

// write writes a PES packet as n packets.
func (w *stream) write(p *elementary, n int) {
	head := p.head[:9+int(p.head[8])]
	c := copying{head: head, lead: p.lead, body: p.body, next: len(p.body)}
	if p.lengths {
		c.next = 0
	}
	left := len(head) + len(p.lead) + len(p.body)
	for i := range n {
		b := (*[packet]byte)(w.b[w.at:])
		w.at += packet
		b[0], b[1], b[2] = 0x47, pidMedia>>8, pidMedia&255
		counter := byte(w.packets) & 15
		w.packets++
		size := min(payload, left-(n-1-i)) // each later packet needs at least a byte
		if i > 0 && size == payload {
			b[3] = 0x10 | counter
			left -= payload
			c.fillNext(b[header:])
			continue
		}
		b[3] = 0x30 | counter
		field := header
		if i == 0 {
			size = min(size, payload-clock)
			b[1] |= 0x40
			flags := byte(0x10)
			if p.key {
				flags |= 0x40
			}
			reference := uint64(p.decoded + Zero - clockLead)
			b[5] = flags
			big.PutUint32(b[6:], uint32(reference>>1))
			b[10], b[11] = byte(reference<<7)|0x7e, 0
			field += clock
		} else if payload-size > 1 {
			b[5] = 0
			field += 2
		} else {
			field++
		}
		b[4] = byte(payload - size - 1)
		for i := field; i < packet-size; i++ {
			b[i] = 0xff
		}
		left -= size
		c.fillNext(b[packet-size:])
	}
}

// copying copies the pieces of a PES packet in order.
type copying struct {
	head, lead, body []byte
	at               int // offset of the next byte in body
	next             int // offset in body of the next length to be replaced by a start code
}

// fillNext fills b with the next bytes. Enough bytes must be left.
func (c *copying) fillNext(b []byte) {
	for len(c.head) > 0 && len(b) > 0 {
		n := copy(b, c.head)
		b, c.head = b[n:], c.head[n:]
		if len(c.head) == 0 {
			c.head, c.lead = c.lead, nil
		}
	}
	from := c.at
	if len(b) == payload {
		*(*[payload]byte)(b) = *(*[payload]byte)(c.body[from:])
	} else {
		copy(b, c.body[from:])
	}
	c.at += len(b)
	for c.next < c.at && c.next < len(c.body) {
		for i, v := range start {
			if at := c.next + i; at >= from && at < c.at {
				b[at-from] = v
			}
		}
		if c.next+len(start) > c.at {
			break // the rest follows in the next packet
		}
		c.next += len(start) + int(big.Uint32(c.body[c.next:]))
	}
}
