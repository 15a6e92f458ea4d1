package packager

// Protection holds the key of a track under the cbcs scheme (ISO/IEC 23001-7 section 10.4), the
// key's id, and the initialisation vector of all samples.
type Protection struct {
	Key, KeyID, IV [16]byte
}

// w3cCommon is the id of a protection system with nothing but key ids ("cenc" Initialization Data
// Format, W3C).
var w3cCommon = [16]byte{0x10, 0x77, 0xef, 0xec, 0xc0, 0xb2, 0x4d, 0x02, 0xac, 0xe3, 0x3c, 0x1e, 0x52, 0xe2, 0xfb, 0x4b}

// openBox begins a box. closeBox fills in its size.
func openBox(dst []byte, kind uint32) ([]byte, int) {
	return big.AppendUint32(append(dst, 0, 0, 0, 0), kind), len(dst)
}

func closeBox(dst []byte, at int) { big.PutUint32(dst[at:], uint32(len(dst)-at)) }

// AppendCBCSInit appends an initialisation segment with the encryption of the track. Its only
// protection system is the W3C's, by which players ask for a key by its id ("Clear Key"). The
// error is ErrInput, also for HEVC.
func AppendCBCSInit(dst, init []byte, p *Protection) ([]byte, error) {
	t, err := ReadTrack(init)
	if err != nil {
		return dst, err
	}
	if t.Codec == HEVC {
		return dst, broken("there is no cbcs for HEVC here")
	}
	begin := len(dst)
	if dst, err = appendProtected(dst, init, 0, t, p); err != nil {
		return dst[:begin], err
	}
	return dst, nil
}

// toEntry is the path of boxes to the sample entry, each box in the box before.
var toEntry = [...]uint32{boxMoov, boxTrak, boxMdia, boxMinf, boxStbl, boxStsd}

// appendProtected appends the boxes in b and rewrites the box toEntry[depth] among them.
func appendProtected(dst, b []byte, depth int, t *Track, p *Protection) ([]byte, error) {
	at := within(b)
	for at.next() {
		if at.kind != toEntry[depth] {
			dst = append(dst, b[at.at:at.end]...)
			continue
		}
		var box int
		dst, box = openBox(dst, at.kind)
		var err error
		if at.kind == boxStsd {
			if len(at.body) < 8 {
				return dst, broken("a box stsd that breaks off")
			}
			dst = append(dst, at.body[:8]...) // version, flags and count of entries
			dst, err = appendEntry(dst, at.body[8:], t, p)
		} else {
			dst, err = appendProtected(dst, at.body, depth+1, t, p)
		}
		if err != nil {
			return dst, err
		}
		if at.kind == boxMoov {
			var pssh int
			dst, pssh = openBox(dst, boxPssh)
			dst = append(dst, 1, 0, 0, 0)
			dst = append(dst, w3cCommon[:]...)
			dst = append(dst, 0, 0, 0, 1)
			dst = append(dst, p.KeyID[:]...)
			dst = append(dst, 0, 0, 0, 0)
			closeBox(dst, pssh)
		}
		closeBox(dst, box)
	}
	return dst, at.err
}

// appendEntry appends a sample entry as an encrypted sample entry (ISO/IEC 14496-12 section 8.12,
// ISO/IEC 23001-7 section 8.2).
func appendEntry(dst, b []byte, t *Track, p *Protection) ([]byte, error) {
	at := within(b)
	if !at.next() {
		return dst, broken("no sample entry")
	}
	kind, crypted := boxEncv, byte(0x19) // one block of ten encrypted, nine clear
	if t.Codec == AAC {
		kind, crypted = boxEnca, 0
	}
	dst, entry := openBox(dst, kind)
	dst = append(dst, at.body...)
	dst, sinf := openBox(dst, boxSinf)
	dst, frma := openBox(dst, boxFrma)
	dst = big.AppendUint32(dst, at.kind)
	closeBox(dst, frma)
	dst, schm := openBox(dst, boxSchm)
	dst = append(dst, 0, 0, 0, 0, 'c', 'b', 'c', 's', 0, 1, 0, 0)
	closeBox(dst, schm)
	dst, schi := openBox(dst, boxSchi)
	dst, tenc := openBox(dst, boxTenc)
	dst = append(dst, 1, 0, 0, 0, 0, crypted, 1, 0) // version 1; protected, without an IV for each sample
	dst = append(dst, p.KeyID[:]...)
	dst = append(dst, block)
	dst = append(dst, p.IV[:]...)
	closeBox(dst, tenc)
	closeBox(dst, schi)
	closeBox(dst, sinf)
	closeBox(dst, entry)
	return dst, nil
}

// CBCSSize returns the most bytes appended by AppendCBCS.
func (f *Fragment) CBCSSize() int64 {
	n := int64(len(f.segment))
	if f.track.Codec == AAC {
		return n
	}
	for i := range f.samples {
		s := &f.samples[i]
		// the entries in saiz and senc, with a subsample for each NAL unit and for each 65,535
		// bytes
		n += 1 + 2 + 6*int64(s.units+2+(s.end-s.at)>>16)
	}
	return n + int64(len(f.parts))*(16+17+20)
}

// AppendCBCS appends the segment encrypted under cbcs: of video, one block in ten after each
// slice's header; of sound, all whole blocks of a sample. A segment index (sidx) is left out.
// HEVC is ErrInput.
func (f *Fragment) AppendCBCS(dst []byte, p *Protection) ([]byte, error) {
	if f.track.Codec == HEVC {
		return dst, broken("there is no cbcs for HEVC here")
	}
	f.chain.open(&p.Key, &p.IV)
	begin, part := len(dst), 0
	at := within(f.segment)
	for at.next() {
		var err error
		switch at.kind {
		case boxSidx:
		case boxMoof:
			dst, err = f.appendMoof(dst, &f.parts[part])
		case boxMdat:
			dst, err = f.appendMdat(dst, &f.parts[part], at.at)
			part++
		default:
			dst = append(dst, f.segment[at.at:at.end]...)
		}
		if err != nil {
			return dst[:begin], err
		}
	}
	return dst, at.err
}

// ranges calls what for each encrypted range of a sample of video, in order, with the number of
// clear bytes before it. For clear bytes at the end, the encrypted range is empty.
func (f *Fragment) ranges(s *sample, what func(before, encrypted int) error) error {
	before := 0
	for rest := f.segment[s.at:s.end]; len(rest) > 0; {
		unit, after, err := f.track.nextUnit(rest)
		if err != nil {
			return err
		}
		rest = after
		before += f.track.lengthSize
		head, err := f.track.clearHead(unit)
		if err != nil {
			return err
		}
		before += head
		if len(unit)-head < block {
			before += len(unit) - head
			continue
		}
		if err := what(before, len(unit)-head); err != nil {
			return err
		}
		before = 0
	}
	if before > 0 {
		return what(before, 0)
	}
	return nil
}

// clearHead returns the number of bytes at the start of a NAL unit that stay clear: a slice's header,
// else the whole unit.
func (t *Track) clearHead(unit []byte) (int, error) {
	kind := unit[0] & 31
	if kind == avcSlice || kind == avcIDR {
		return avcSliceHeader(unit, t.pictures)
	}
	if kind > avcSlice && kind < avcIDR {
		return 0, broken("data partitions")
	}
	return len(unit), nil
}

// describe builds the auxiliary information of a part's samples in f.auxiliary. A byte with the
// size (at most 255) precedes each entry.
func (f *Fragment) describe(p *part) error {
	f.auxiliary = f.auxiliary[:0]
	for i := p.from; i < p.to; i++ {
		at := len(f.auxiliary)
		f.auxiliary = append(f.auxiliary, 0, 0, 0)
		count := 0
		err := f.ranges(&f.samples[i], func(before, encrypted int) error {
			for ; before > 0xffff; before -= 0xffff {
				f.auxiliary = append(f.auxiliary, 0xff, 0xff, 0, 0, 0, 0)
				count++
			}
			f.auxiliary = append(f.auxiliary, byte(before>>8), byte(before))
			f.auxiliary = big.AppendUint32(f.auxiliary, uint32(encrypted))
			count++
			return nil
		})
		if err != nil {
			return err
		}
		n := len(f.auxiliary) - at - 1
		if n > 255 {
			return broken("a sample of %d ranges", count)
		}
		f.auxiliary[at] = byte(n)
		f.auxiliary[at+1], f.auxiliary[at+2] = byte(count>>8), byte(count)
	}
	return nil
}

// appendMoof appends a part's moof with the description of its samples' encryption (ISO/IEC
// 23001-7 section 7.2, ISO/IEC 14496-12 section 8.7.8). Sound needs no description, since all
// whole blocks of a sample are encrypted.
func (f *Fragment) appendMoof(dst []byte, p *part) ([]byte, error) {
	if f.track.Codec == AAC {
		return append(dst, f.segment[p.moof:p.moofEnd]...), nil
	}
	if err := f.describe(p); err != nil {
		return dst, err
	}
	count := p.to - p.from
	dst, moof := openBox(dst, boxMoof)
	out := within(f.segment[p.moof:p.moofEnd])
	out.next()
	in := within(out.body)
	for in.next() {
		if in.kind != boxTraf {
			dst = append(dst, out.body[in.at:in.end]...)
			continue
		}
		var traf, saiz, saio, senc int
		dst, traf = openBox(dst, boxTraf)
		inside := len(dst)
		dst = append(dst, in.body...)
		dst, saiz = openBox(dst, boxSaiz)
		dst = append(dst, 0, 0, 0, 0, 0)
		dst = big.AppendUint32(dst, uint32(count))
		for b := f.auxiliary; len(b) > 0; b = b[1+int(b[0]):] {
			dst = append(dst, b[0])
		}
		closeBox(dst, saiz)
		dst, saio = openBox(dst, boxSaio)
		dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 1)
		dst = big.AppendUint32(dst, uint32(len(dst)+4+16-moof)) // points to the first entry of senc
		closeBox(dst, saio)
		dst, senc = openBox(dst, boxSenc)
		dst = append(dst, 0, 0, 0, 2) // with subsamples
		dst = big.AppendUint32(dst, uint32(count))
		for b := f.auxiliary; len(b) > 0; b = b[1+int(b[0]):] {
			dst = append(dst, b[1:1+int(b[0])]...)
		}
		closeBox(dst, senc)
		closeBox(dst, traf)
		growth := len(dst) - moof + (len(out.body) - in.end) - (p.moofEnd - p.moof)
		runs := within(dst[inside : inside+len(in.body)])
		for runs.next() {
			if runs.kind == boxTrun && big.Uint32(runs.body)&trunOffset != 0 {
				big.PutUint32(runs.body[8:], big.Uint32(runs.body[8:])+uint32(growth))
			}
		}
	}
	closeBox(dst, moof)
	return dst, nil
}

// appendMdat appends a part's mdat, which starts at byte at of the segment, with encrypted
// samples.
func (f *Fragment) appendMdat(dst []byte, p *part, at int) ([]byte, error) {
	base := len(dst) - at
	dst = append(dst, f.segment[at:p.mdatEnd]...)
	for i := p.from; i < p.to; i++ {
		s := &f.samples[i]
		b := dst[base+s.at : base+s.end]
		if f.track.Codec == AAC {
			f.chain.all(b)
			continue
		}
		if err := f.ranges(s, func(before, encrypted int) error {
			f.chain.tenth(b[before:before+encrypted], block-1)
			b = b[before+encrypted:]
			return nil
		}); err != nil {
			return dst, err
		}
	}
	return dst, nil
}
