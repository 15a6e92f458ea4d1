package packager

import (
	"encoding/binary"
	"fmt"
)

// big is the order of bytes in all that is read and written here.
var big = binary.BigEndian

// fourCC is a box's type.
type fourCC uint32

func (c fourCC) String() string { return fmt.Sprintf("%q", big.AppendUint32(nil, uint32(c))) }

const (
	boxMoov fourCC = 'm'<<24 | 'o'<<16 | 'o'<<8 | 'v'
	boxMvhd fourCC = 'm'<<24 | 'v'<<16 | 'h'<<8 | 'd'
	boxTrak fourCC = 't'<<24 | 'r'<<16 | 'a'<<8 | 'k'
	boxEdts fourCC = 'e'<<24 | 'd'<<16 | 't'<<8 | 's'
	boxElst fourCC = 'e'<<24 | 'l'<<16 | 's'<<8 | 't'
	boxMdia fourCC = 'm'<<24 | 'd'<<16 | 'i'<<8 | 'a'
	boxMdhd fourCC = 'm'<<24 | 'd'<<16 | 'h'<<8 | 'd'
	boxMinf fourCC = 'm'<<24 | 'i'<<16 | 'n'<<8 | 'f'
	boxStbl fourCC = 's'<<24 | 't'<<16 | 'b'<<8 | 'l'
	boxStsd fourCC = 's'<<24 | 't'<<16 | 's'<<8 | 'd'
	boxMvex fourCC = 'm'<<24 | 'v'<<16 | 'e'<<8 | 'x'
	boxTrex fourCC = 't'<<24 | 'r'<<16 | 'e'<<8 | 'x'
	boxAvc1 fourCC = 'a'<<24 | 'v'<<16 | 'c'<<8 | '1'
	boxAvc3 fourCC = 'a'<<24 | 'v'<<16 | 'c'<<8 | '3'
	boxAvcC fourCC = 'a'<<24 | 'v'<<16 | 'c'<<8 | 'C'
	boxHvc1 fourCC = 'h'<<24 | 'v'<<16 | 'c'<<8 | '1'
	boxHev1 fourCC = 'h'<<24 | 'e'<<16 | 'v'<<8 | '1'
	boxHvcC fourCC = 'h'<<24 | 'v'<<16 | 'c'<<8 | 'C'
	boxMp4a fourCC = 'm'<<24 | 'p'<<16 | '4'<<8 | 'a'
	boxEsds fourCC = 'e'<<24 | 's'<<16 | 'd'<<8 | 's'
	boxMoof fourCC = 'm'<<24 | 'o'<<16 | 'o'<<8 | 'f'
	boxMfhd fourCC = 'm'<<24 | 'f'<<16 | 'h'<<8 | 'd'
	boxTraf fourCC = 't'<<24 | 'r'<<16 | 'a'<<8 | 'f'
	boxTfhd fourCC = 't'<<24 | 'f'<<16 | 'h'<<8 | 'd'
	boxTfdt fourCC = 't'<<24 | 'f'<<16 | 'd'<<8 | 't'
	boxTrun fourCC = 't'<<24 | 'r'<<16 | 'u'<<8 | 'n'
	boxSenc fourCC = 's'<<24 | 'e'<<16 | 'n'<<8 | 'c'
	boxSaiz fourCC = 's'<<24 | 'a'<<16 | 'i'<<8 | 'z'
	boxSaio fourCC = 's'<<24 | 'a'<<16 | 'i'<<8 | 'o'
	boxMdat fourCC = 'm'<<24 | 'd'<<16 | 'a'<<8 | 't'
	boxSidx fourCC = 's'<<24 | 'i'<<16 | 'd'<<8 | 'x'
	boxEncv fourCC = 'e'<<24 | 'n'<<16 | 'c'<<8 | 'v'
	boxEnca fourCC = 'e'<<24 | 'n'<<16 | 'c'<<8 | 'a'
	boxSinf fourCC = 's'<<24 | 'i'<<16 | 'n'<<8 | 'f'
	boxFrma fourCC = 'f'<<24 | 'r'<<16 | 'm'<<8 | 'a'
	boxSchm fourCC = 's'<<24 | 'c'<<16 | 'h'<<8 | 'm'
	boxSchi fourCC = 's'<<24 | 'c'<<16 | 'h'<<8 | 'i'
	boxTenc fourCC = 't'<<24 | 'e'<<16 | 'n'<<8 | 'c'
	boxPssh fourCC = 'p'<<24 | 's'<<16 | 's'<<8 | 'h'
)

// broken is an ErrInput that says what is wrong.
func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInput, fmt.Sprintf(format, args...))
}

// boxes are those that follow each other in some bytes.
//
//	size 4 | type 4 | (size 1: size 8) | body
type boxes struct {
	all  []byte
	at   int    // where the current one begins in all
	end  int    // where it ends
	kind fourCC // of the current one
	body []byte // of the current one
	err  error
}

// within are the boxes in b.
func within(b []byte) boxes { return boxes{all: b} }

// next goes to the next box; false at the end, or where err says what is wrong.
func (b *boxes) next() bool {
	rest := b.all[b.end:]
	if len(rest) == 0 || b.err != nil {
		return false
	}
	if len(rest) < 8 {
		b.err = broken("%d bytes behind the last box", len(rest))
		return false
	}
	size, head := uint64(big.Uint32(rest)), uint64(8)
	b.kind = fourCC(big.Uint32(rest[4:]))
	switch {
	case size == 1 && len(rest) >= 16:
		size, head = big.Uint64(rest[8:]), 16
	case size == 0:
		size = uint64(len(rest))
	}
	if size < head || size > uint64(len(rest)) {
		b.err = broken("a box %s of %d bytes where there are %d", b.kind, size, len(rest))
		return false
	}
	b.at, b.end = b.end, b.end+int(size)
	b.body = rest[head:size]
	return true
}

// full takes version and flags off the current box's body, which has size bytes behind them.
func (b *boxes) full(size int) (version byte, flags uint32, body []byte, err error) {
	if len(b.body) < 4+size {
		return 0, 0, nil, broken("a box %s with a body of %d bytes", b.kind, len(b.body))
	}
	return b.body[0], big.Uint32(b.body) & 0xffffff, b.body[4:], nil
}
