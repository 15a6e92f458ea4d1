// Package bom reads texts with a byte order mark, as some editors write them.
package bom

import (
	"bytes"
	"encoding/binary"
	"unicode/utf16"
)

// byteOrderMarks are what editors put before a text to say how it is encoded
// (Unicode, section 23.8), the longer ones first; order is nil for UTF-8.
var byteOrderMarks = []struct {
	mark  string
	order binary.ByteOrder
	size  int // of a unit
}{
	{"\xef\xbb\xbf", nil, 1},
	{"\xff\xfe\x00\x00", binary.LittleEndian, 4},
	{"\x00\x00\xfe\xff", binary.BigEndian, 4},
	{"\xff\xfe", binary.LittleEndian, 2},
	{"\xfe\xff", binary.BigEndian, 2},
}

// Decode returns a text in UTF-8 and without its byte order mark. pip, npm and YAML accept
// such marks, so FRE's own files do. A text without a mark stays as it is.
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
