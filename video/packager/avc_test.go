package packager

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/bluenviron/mediacommon/v2/pkg/codecs/h264"
)

// Parameter sets of x264: 320x180, at most two frames of reordering, scaling lists without the 8x8
// transform.
const (
	x264SPS = "6764000dacd941419f9f0110000003001000000303c0f1429960"
	x264PPS = "68ebe3cb100b"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ue returns the Exp-Golomb code of v as binary digits.
func ue(v uint64) string {
	return fmt.Sprintf("%0*b", 2*bits.Len64(v+1)-1, v+1)
}

// unitOf returns a NAL unit with a header and the fields, given as binary digits.
func unitOf(head byte, fields ...string) []byte {
	digits := strings.Join(fields, "")
	b := []byte{head}
	for i, digit := range digits {
		if i%8 == 0 {
			b = append(b, 0)
		}
		b[len(b)-1] |= byte(digit-'0') << (7 - i%8)
	}
	return appendGuarded(nil, b)
}

// plainSPS returns the fields of a sequence parameter set of the Main profile up to its usability
// information: 320x180, four references, and the given fields for the order of pictures.
func plainSPS(order ...string) []string {
	head := []string{fmt.Sprintf("%08b%08b%08b", 77, 0, 13), ue(0), ue(0)}
	return append(append(head, order...), ue(4), "0", ue(19), ue(11), "1", "1", "0")
}

// TestAVCSets: sets with false counts are refused, broken usability information costs only the
// stated reordering, and a picture parameter set may have scaling lists without the 8x8 transform.
func TestAVCSets(t *testing.T) {
	const ordered = 9 // frames in the decoded picture buffer at level 1.3
	usable := func(fields ...string) []byte {
		return unitOf(0x67, append(append(plainSPS(ue(0), ue(0)), "1"), fields...)...)
	}
	for _, c := range []struct {
		name    string
		unit    []byte
		reorder uint32
		refused bool
	}{
		{"x264", unhex(t, x264SPS), 2, false},
		{"without usability information", unitOf(0x67, append(plainSPS(ue(0), ue(0)), "0")...), ordered, false},
		{"restricted", usable("00000000", "1", "1", ue(0), ue(0), ue(9), ue(9), ue(3), ue(4)), 3, false},
		{"a reserved aspect ratio", usable("1", "11001000", "0000000", "1", "1", ue(0), ue(0), ue(9), ue(9), ue(3), ue(4)), 3, false},
		{"usability information that breaks off", usable("0"), ordered, false},
		{"2^32-2 buffers", usable("000001", ue(1<<32-2), "00000000"), ordered, false},
		{"order of type 1", unitOf(0x67, append(plainSPS(ue(1), "0", ue(0), ue(0), ue(1), ue(0)), "0")...), ordered, false},
		{"a cycle of 2^32-2 frames", unitOf(0x67, append(plainSPS(ue(1), "0", ue(0), ue(0), ue(1<<32-2), ue(0)), "0")...), 0, true},
		{"a cycle of 256 frames", unitOf(0x67, append(plainSPS(ue(1), "0", ue(0), ue(0), ue(256), strings.Repeat("1", 256)), "0")...), 0, true},
		{"cut", unhex(t, x264SPS)[:7], 0, true},
		{"another unit", unhex(t, x264PPS), 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			set, err := readAVCSPS(c.unit)
			if refused := errors.Is(err, ErrInput); refused != c.refused || !refused && err != nil {
				t.Fatalf("%x: %v; refused %v", c.unit, err, c.refused)
			}
			if err == nil && avcReorder(set) != c.reorder {
				t.Errorf("%x: %d frames of reordering, want %d", c.unit, avcReorder(set), c.reorder)
			}
		})
	}
	set, err := readAVCSPS(unhex(t, x264SPS))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		unit    []byte
		refused bool
	}{
		{"scaling lists", unhex(t, x264PPS), false},
		{"slice groups", unitOf(0x68, ue(0), ue(0), "00", ue(1<<32-2), ue(0)), true},
		{"33 references", unitOf(0x68, ue(0), ue(0), "00", ue(0), ue(32), ue(0), "0", "00", ue(0), ue(0), ue(0), "000", "1"), true},
		{"another sequence", unitOf(0x68, ue(0), ue(1), "00", ue(0), ue(0), ue(0), "0", "00", ue(0), ue(0), ue(0), "000", "1"), true},
		{"cut", unhex(t, x264PPS)[:2], true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := readAVCPPS(c.unit, map[uint32]*h264.SPS{set.ID: set})
			if refused := errors.Is(err, ErrInput); refused != c.refused || !refused && err != nil {
				t.Errorf("%x: %v; refused %v", c.unit, err, c.refused)
			}
		})
	}
}

// TestAVCSlice: the header of a slice with weighted references has the right size, and a slice with
// a false count of references or without an end of its header is refused.
func TestAVCSlice(t *testing.T) {
	set, err := readAVCSPS(unitOf(0x67, append(plainSPS(ue(0), ue(0)), "0")...))
	if err != nil {
		t.Fatal(err)
	}
	id, picture, err := readAVCPPS(unitOf(0x68, ue(0), ue(0), "00", ue(0), ue(0), ue(0), "1", "00", ue(0), ue(0), ue(0), "000", "1"), map[uint32]*h264.SPS{0: set})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name       string
		references uint64
		rest       []string
		bytes      int // 0: refused
	}{
		{"two references", 1, []string{"0", ue(5), ue(5), "1" + ue(7) + ue(8), "0", "0", "0", "0", ue(3), strings.Repeat("10", 40)}, 8},
		{"2^32-2 references", 1<<32 - 2, []string{"0", ue(5), ue(5), strings.Repeat("0", 400)}, 0},
		{"cut", 1, []string{"0", ue(5), ue(5)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			fields := append([]string{ue(0), ue(0), ue(0), "0000", "0000", "1", ue(c.references)}, c.rest...)
			unit := unitOf(0x41, fields...)
			n, err := avcSliceHeader(unit, map[uint32]*avcPPS{id: picture})
			if n != c.bytes || (err != nil) != (c.bytes == 0) || err != nil && !errors.Is(err, ErrInput) {
				t.Errorf("%x: %d bytes and %v, want %d bytes", unit, n, err, c.bytes)
			}
		})
	}
}

// FuzzAVC: any parameter sets and slice are parsed or refused. A header is not longer than its
// slice, and no set states more than 16 frames of reordering.
func FuzzAVC(f *testing.F) {
	f.Add(unhex(f, x264SPS), unhex(f, x264PPS), unhex(f, "6588840033ff"))
	f.Add(unitOf(0x67, append(plainSPS(ue(1), "0", ue(0), ue(0), ue(1<<32-2), ue(0)), "0")...), unitOf(0x68, ue(0), ue(0), "00", ue(1<<32-2)), unitOf(0x41, ue(0), ue(0), ue(0), "00000000", "1", ue(1<<32-2)))
	f.Add(unitOf(0x67, append(plainSPS(ue(2)), "1", "000001", ue(1<<32-2))...), unhex(f, x264PPS), unhex(f, "419a246c41"))
	f.Fuzz(func(t *testing.T, sps, pps, slice []byte) {
		if len(sps) < 4 || len(pps) < 4 || len(slice) < 1 { // as the callers guarantee
			return
		}
		refused := func(err error) bool {
			if err != nil && !errors.Is(err, ErrInput) {
				t.Errorf("another error: %v", err)
			}
			return err != nil
		}
		set, err := readAVCSPS(sps)
		if refused(err) {
			return
		}
		if n := avcReorder(set); n > 16 {
			t.Errorf("%d frames of reordering", n)
		}
		id, picture, err := readAVCPPS(pps, map[uint32]*h264.SPS{set.ID: set})
		if refused(err) {
			return
		}
		n, err := avcSliceHeader(slice, map[uint32]*avcPPS{id: picture})
		if !refused(err) && (n < 1 || n > len(slice)) {
			t.Errorf("a header of %d bytes in a slice of %d", n, len(slice))
		}
	})
}
