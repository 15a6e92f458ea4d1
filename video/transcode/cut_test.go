package transcode_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/transcode"
)

// TestCutOff: the probe reports the missing seconds of a file that ends earlier than its container
// says, and reports none for a whole file.
func TestCutOff(t *testing.T) {
	checkLeaks(t)
	const picture, sound = "-f lavfi -i testsrc2=size=176x144:rate=25:duration=20 -c:v mpeg4 -b:v 1M -g 25 ", "-f lavfi -i sine=duration=20 "
	const both = "-f lavfi -i testsrc2=size=176x144:rate=25:duration=20 -f lavfi -i sine=duration=20 -b:v 1M -g 25 "
	for _, tt := range []struct{ name, args string }{
		{"a.mp4", both + "-c:v libx264 -bf 2 -c:a aac -movflags faststart"},
		{"late.mp4", both + "-c:v libx264 -c:a aac -movflags faststart -output_ts_offset 7"},
		{"a.mov", both + "-c:v mpeg4 -c:a pcm_s16le -movflags faststart"},
		{"a.mkv", both + "-c:v libx264 -bf 2 -c:a libopus"},
		{"late.mkv", both + "-c:v libx264 -c:a libopus -output_ts_offset 7"},
		{"a.webm", both + "-c:v libvpx -deadline realtime -cpu-used 8 -c:a libopus"},
		{"a.avi", both + "-c:v mpeg4 -c:a mp3"},
		{"a.flv", both + "-c:v flv1 -ar 44100 -c:a mp3"},
		{"slow.mkv", "-f lavfi -i testsrc2=size=176x144:rate=1:duration=20 -c:v mpeg4"},
		{"no sound.mp4", picture + "-movflags faststart"},
		{"a.wav", sound},
		{"eight bits.wav", sound + "-c:a pcm_u8 -ar 8000"},
		{"a.flac", sound},
		{"a.mp3", sound},
		{"a picture of its own.m4a", "-f lavfi -i sine=duration=20 -f lavfi -i testsrc2=size=64x64:duration=0.04 -map 0 -map 1 -c:v mjpeg -pix_fmt yuvj420p -disposition:v attached_pic -c:a aac -movflags faststart"},
		{"a.m4a", sound + "-c:a aac -movflags faststart"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := clip(t, tt.name, strings.Fields(tt.args)...)
			whole, err := transcode.Probe(path, 100)
			if err != nil || whole.Missing != 0 || math.Abs(whole.Duration-20) > 1 && math.Abs(whole.Duration-27) > 1 {
				t.Fatalf("whole: %+v, %v", whole, err)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			half := filepath.Join(t.TempDir(), tt.name)
			if err := os.WriteFile(half, b[:len(b)/2], 0o600); err != nil {
				t.Fatal(err)
			}
			cut, err := transcode.Probe(half, 100)
			if err != nil || cut.Missing < 5 || cut.Missing > 15 {
				t.Errorf("half of it: %+v, %v", cut, err)
			}
		})
	}
}
