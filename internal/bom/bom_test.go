package bom

import (
	"encoding/binary"
	"testing"
	"unicode/utf16"
)

func TestDecode(t *testing.T) {
	const want = "six==1.16.0\r\n# ü 𝄞\n"
	encode := func(order binary.AppendByteOrder, size int, mark string) string {
		out := []byte(mark)
		if size == 2 {
			for _, u := range utf16.Encode([]rune(want)) {
				out = order.AppendUint16(out, u)
			}
			return string(out)
		}
		for _, r := range want {
			out = order.AppendUint32(out, uint32(r))
		}
		return string(out)
	}
	for name, text := range map[string]string{
		"none": want, "UTF-8": "\xef\xbb\xbf" + want,
		"UTF-16LE": encode(binary.LittleEndian, 2, "\xff\xfe"), "UTF-16BE": encode(binary.BigEndian, 2, "\xfe\xff"),
		"UTF-32LE": encode(binary.LittleEndian, 4, "\xff\xfe\x00\x00"), "UTF-32BE": encode(binary.BigEndian, 4, "\x00\x00\xfe\xff"),
	} {
		if got := string(Decode([]byte(text))); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("\xff\xfea\x00\xd8"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if out := Decode(text); len(out) > 3*len(text) {
			t.Errorf("%d bytes of %d", len(out), len(text))
		}
	})
}
