package transcode_test

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/media"
)

// TestBuffer: a film that needs more bits than its rung allows plays from a buffer of two seconds
// at the rung's rate, nine tenths full at first. Over any number of chunks the buffer neither runs
// dry nor accumulates a reserve.
func TestBuffer(t *testing.T) {
	checkLeaks(t)
	const rate, seconds, chunk, limit = 25, 20, 50, 200_000
	source := clip(t, "noise.mp4", strings.Fields("-f lavfi -i testsrc2=size=160x96:rate="+strconv.Itoa(rate)+":duration="+strconv.Itoa(seconds)+",noise=alls=40:allf=t -c:v libx264 -preset ultrafast -crf 10")...)
	for _, codec := range []string{media.H264, media.HEVC} {
		t.Run(codec, func(t *testing.T) {
			path := film(t, source, media.Chunk{
				Grid:  media.Grid{Rate: media.Fraction{Num: rate, Den: 1}, Segment: 25},
				Rungs: []media.Rung{{Width: 160, Height: 96, BitRate: limit, Codec: codec}}, Preset: "veryfast", Threads: 1,
			}, chunk)
			out, err := exec.Command("ffprobe", "-v", "error", "-show_entries", "packet=size", "-of", "csv=p=0", path).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			const all = 2. * limit
			full, least, frames := .9*all, all, 0
			for line := range strings.FieldsSeq(string(out)) {
				bytes, err := strconv.ParseFloat(strings.Trim(line, ","), 64)
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				full -= 8 * bytes
				least = min(least, full)
				full = min(all, full+limit/rate)
				frames++
			}
			t.Logf("least %.2f, at last %.2f", least/all, full/all)
			if frames != rate*seconds || least < 0 || full > .9*all {
				t.Errorf("%d frames; least %.2f of the buffer, at last %.2f", frames, least/all, full/all)
			}
		})
	}
}
