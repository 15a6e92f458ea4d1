// Package bom reads texts with a byte order mark, as some editors write them.
package bom

import (
	"bytes"
	"encoding/binary"
	"unicode/utf16"
)

// byteOrderMarks lists the marks that editors put before a text to name the encoding (Unicode,
// section 23.8). Longer marks come first, because the mark of UTF-32 begins with the mark of
// UTF-16. order is nil for UTF-8.
var byteOrderMarks = []struct {
	mark  string
	order binary.ByteOrder
	size  int // bytes of a code unit
}{
	{"\xef\xbb\xbf", nil, 1},
	{"\xff\xfe\x00\x00", binary.LittleEndian, 4},
	{"\x00\x00\xfe\xff", binary.BigEndian, 4},
	{"\xff\xfe", binary.LittleEndian, 2},
	{"\xfe\xff", binary.BigEndian, 2},
}

// Decode returns a text in UTF-8 and without its byte order mark. pip, npm and YAML accept byte
// order marks, and FRE accepts them in its own files too. A text without a mark stays unchanged.
func Decode(text []byte) []byte {
	for _, m := range byteOrderMarks {
		rest, ok := bytes.CutPrefix(text, []byte(m.mark))
		switch {
		case !ok:
			continue
		case m.order == nil:
			return rest
		}
		var units []uint16
		var runes []rune
		for ; len(rest) >= m.size; rest = rest[m.size:] {
			if m.size == 2 {
				units = append(units, m.order.Uint16(rest))
			} else {
				runes = append(runes, rune(m.order.Uint32(rest)))
			}
		}
		return []byte(string(append(utf16.Decode(units), runes...)))
	}
	return text
}
