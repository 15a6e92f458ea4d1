package packager

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// big is the byte order of all formats in this package.
var big = binary.BigEndian

// name returns the name of a box type, quoted.
func name(kind uint32) string { return fmt.Sprintf("%q", big.AppendUint32(nil, kind)) }

// Types of boxes.
const (
	boxMoov uint32 = 'm'<<24 | 'o'<<16 | 'o'<<8 | 'v'
	boxMvhd uint32 = 'm'<<24 | 'v'<<16 | 'h'<<8 | 'd'
	boxTrak uint32 = 't'<<24 | 'r'<<16 | 'a'<<8 | 'k'
	boxEdts uint32 = 'e'<<24 | 'd'<<16 | 't'<<8 | 's'
	boxElst uint32 = 'e'<<24 | 'l'<<16 | 's'<<8 | 't'
	boxMdia uint32 = 'm'<<24 | 'd'<<16 | 'i'<<8 | 'a'
	boxMdhd uint32 = 'm'<<24 | 'd'<<16 | 'h'<<8 | 'd'
	boxMinf uint32 = 'm'<<24 | 'i'<<16 | 'n'<<8 | 'f'
	boxStbl uint32 = 's'<<24 | 't'<<16 | 'b'<<8 | 'l'
	boxStsd uint32 = 's'<<24 | 't'<<16 | 's'<<8 | 'd'
	boxMvex uint32 = 'm'<<24 | 'v'<<16 | 'e'<<8 | 'x'
	boxTrex uint32 = 't'<<24 | 'r'<<16 | 'e'<<8 | 'x'
	boxAvc1 uint32 = 'a'<<24 | 'v'<<16 | 'c'<<8 | '1'
	boxAvc3 uint32 = 'a'<<24 | 'v'<<16 | 'c'<<8 | '3'
	boxAvcC uint32 = 'a'<<24 | 'v'<<16 | 'c'<<8 | 'C'
	boxHvc1 uint32 = 'h'<<24 | 'v'<<16 | 'c'<<8 | '1'
	boxHev1 uint32 = 'h'<<24 | 'e'<<16 | 'v'<<8 | '1'
	boxHvcC uint32 = 'h'<<24 | 'v'<<16 | 'c'<<8 | 'C'
	boxMp4a uint32 = 'm'<<24 | 'p'<<16 | '4'<<8 | 'a'
	boxEsds uint32 = 'e'<<24 | 's'<<16 | 'd'<<8 | 's'
	boxMoof uint32 = 'm'<<24 | 'o'<<16 | 'o'<<8 | 'f'
	boxMfhd uint32 = 'm'<<24 | 'f'<<16 | 'h'<<8 | 'd'
	boxTraf uint32 = 't'<<24 | 'r'<<16 | 'a'<<8 | 'f'
	boxTfhd uint32 = 't'<<24 | 'f'<<16 | 'h'<<8 | 'd'
	boxTfdt uint32 = 't'<<24 | 'f'<<16 | 'd'<<8 | 't'
	boxTrun uint32 = 't'<<24 | 'r'<<16 | 'u'<<8 | 'n'
	boxSenc uint32 = 's'<<24 | 'e'<<16 | 'n'<<8 | 'c'
	boxSaiz uint32 = 's'<<24 | 'a'<<16 | 'i'<<8 | 'z'
	boxSaio uint32 = 's'<<24 | 'a'<<16 | 'i'<<8 | 'o'
	boxMdat uint32 = 'm'<<24 | 'd'<<16 | 'a'<<8 | 't'
	boxSidx uint32 = 's'<<24 | 'i'<<16 | 'd'<<8 | 'x'
	boxEncv uint32 = 'e'<<24 | 'n'<<16 | 'c'<<8 | 'v'
	boxEnca uint32 = 'e'<<24 | 'n'<<16 | 'c'<<8 | 'a'
	boxSinf uint32 = 's'<<24 | 'i'<<16 | 'n'<<8 | 'f'
	boxFrma uint32 = 'f'<<24 | 'r'<<16 | 'm'<<8 | 'a'
	boxSchm uint32 = 's'<<24 | 'c'<<16 | 'h'<<8 | 'm'
	boxSchi uint32 = 's'<<24 | 'c'<<16 | 'h'<<8 | 'i'
	boxTenc uint32 = 't'<<24 | 'e'<<16 | 'n'<<8 | 'c'
	boxPssh uint32 = 'p'<<24 | 's'<<16 | 's'<<8 | 'h'
)

// ErrInput is the cause of every error of this package: the input is cut off, broken or of an
// unsupported kind.
var ErrInput = errors.New("it cannot be packaged")

// broken returns an ErrInput with a reason.
func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInput, fmt.Sprintf(format, args...))
}

// boxes iterates over consecutive boxes.
//
//	size 4 | type 4 | (size 1: size 8) | body
type boxes struct {
	all  []byte
	at   int    // start of the current box in all
	end  int    // end of the current box in all
	kind uint32 // of the current box
	body []byte // of the current box
	err  error
}

// within returns an iterator over the boxes in b.
func within(b []byte) boxes { return boxes{all: b} }

// next goes to the next box. It returns false at the end, and after an error, which sets err.
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
	b.kind = big.Uint32(rest[4:])
	switch {
	case size == 1 && len(rest) >= 16:
		size, head = big.Uint64(rest[8:]), 16
	case size == 0:
		size = uint64(len(rest))
	}
	if size < head || size > uint64(len(rest)) {
		b.err = broken("a box %s of %d bytes where there are %d", name(b.kind), size, len(rest))
		return false
	}
	b.at, b.end = b.end, b.end+int(size)
	b.body = rest[head:size]
	return true
}

// full splits version and flags off the current box's body. At least size bytes must follow.
func (b *boxes) full(size int) (version byte, flags uint32, body []byte, err error) {
	if len(b.body) < 4+size {
		return 0, 0, nil, broken("a box %s with a body of %d bytes", name(b.kind), len(b.body))
	}
	return b.body[0], big.Uint32(b.body) & 0xffffff, b.body[4:], nil
}
