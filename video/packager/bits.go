package packager

// bitReader reads bits of a NAL unit. It skips the emulation prevention bytes (ISO/IEC 14496-10
// section 7.4.1). After the end it reads zeros and sets ended.
type bitReader struct {
	unit  []byte
	at    int  // index of the next byte
	bit   uint // number of unread bits in last
	last  byte
	zeros int  // number of zero bytes just read
	plain bool // no emulation prevention bytes are skipped
	ended bool
}

func (r *bitReader) fill() {
	if r.at >= len(r.unit) {
		r.last, r.bit, r.ended = 0, 8, true
		return
	}
	b := r.unit[r.at]
	r.at++
	if r.zeros >= 2 && b == 3 && !r.plain {
		r.zeros = 0
		r.fill()
		return
	}
	if b == 0 {
		r.zeros++
	} else {
		r.zeros = 0
	}
	r.last, r.bit = b, 8
}

// u reads n bits, at most 32.
func (r *bitReader) u(n uint) (v uint32) {
	for n > 0 {
		if r.bit == 0 {
			r.fill()
		}
		take := min(n, r.bit)
		r.bit -= take
		v = v<<take | uint32(r.last>>r.bit)&(1<<take-1)
		n -= take
	}
	return v
}

func (r *bitReader) flag() bool { return r.u(1) == 1 }

// ue reads an Exp-Golomb code (section 9.1). Codes of signed values, se(v) in the standard, have the
// same form.
func (r *bitReader) ue() uint32 {
	n := uint(0)
	for !r.flag() {
		if n++; n == 32 || r.ended {
			r.ended = true
			return 0
		}
	}
	return uint32(uint64(1)<<n - 1 + uint64(r.u(n)))
}

// bytesRead returns the number of bytes read, even in part.
func (r *bitReader) bytesRead() int { return r.at }
