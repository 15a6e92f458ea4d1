package transcode

import (
	"encoding/binary"
	"testing"

	"github.com/fre-engine/fre/video/ffmpeg"
)

// FuzzTimeline: joined packets with any times continue the earlier packets: no packet is later than
// the latest packet by more than the longest accepted gap, and the sum of the gaps is bounded by
// the number of packets.
func FuzzTimeline(f *testing.F) {
	packet := func(stream byte, dts, duration int64) []byte {
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64([]byte{stream}, uint64(dts)), uint64(duration))
	}
	var steady, back, ahead []byte
	for n := range int64(20) {
		steady = append(append(steady, packet(0, n*3600, 3600)...), packet(1, n*3600, 1920)...)
		back = append(back, packet(0, n%10*3600, 3600)...)
		ahead = append(ahead, packet(byte(n&1), n*90000*700, 0)...)
	}
	for _, seed := range [][]byte{steady, back, ahead, packet(0, 1<<62, 1<<62), append(packet(0, -1<<63, 0), packet(1, 1<<63-1, 1<<63-1)...)} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, b []byte, restarts bool) {
		c := &timeline{restarts: restarts, due: map[int]*beat{}}
		streams := []ffmpeg.Stream{
			{Index: 0, Kind: ffmpeg.Video, TimeBase: ffmpeg.Rational{Num: 1, Den: 90000}, FrameRate: ffmpeg.Rational{Num: 25, Den: 1}},
			{Index: 1, Kind: ffmpeg.Audio, TimeBase: ffmpeg.Rational{Num: 1, Den: 48000}},
		}
		for ; len(b) >= 17; b = b[17:] {
			latest, joins := c.latest, c.joins
			first := c.packets == 0
			s := streams[b[0]&1]
			beat := c.see(s, int64(binary.BigEndian.Uint64(b[1:])), int64(binary.BigEndian.Uint64(b[9:])))
			if !first && beat.last-latest > gapElse {
				t.Fatalf("a packet at %d behind all up to %d", beat.last, latest)
			}
			if beat.due < beat.last || c.latest < latest && !first || c.joins > joins+1 {
				t.Fatalf("%+v, %+v after all up to %d", c, beat, latest)
			}
			if c.kept > gapElse+c.packets*gapPacket {
				t.Fatalf("gaps of %d µs for %d packets", c.kept, c.packets)
			}
		}
	})
}
