package transcode

import (
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/ffmpeg"
)

// TestSkip: before the first shown picture, only reference frames are decoded; after it, all
// frames. In a container without presentation times, all frames are decoded.
func TestSkip(t *testing.T) {
	const frames, wanted, rate = 50, 30, 25
	for _, tt := range []struct {
		name    string
		skipped bool
	}{{"in.mp4", true}, {"in.mkv", true}, {"in.ts", true}, {"in.avi", false}} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), tt.name)
			args := strings.Fields("-v error -nostdin -f lavfi -i testsrc2=size=160x96:rate=25:duration=2 -c:v libx264 -preset veryfast -bf 2 -b_strategy 0 -x264-params b-pyramid=0:keyint=250:scenecut=0 " + path)
			if out, err := exec.Command("ffmpeg", args...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			s, err := Probe(path, 0)
			if err != nil {
				t.Fatal(err)
			}
			r, err := open(path, 0, ffmpeg.Video, s.Offset, false)
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			r.wanted = r.units(s.Offset + wanted/float64(rate))
			var before, after int
			err = r.decode(ffmpeg.DecoderOptions{Threads: 1}, func() bool { return false }, func(f *ffmpeg.Frame) error {
				if math.Round(r.seconds(f.PTS())*rate) < wanted {
					before++
				} else {
					after++
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			most := wanted
			if tt.skipped {
				most = wanted/3 + 2 // every third frame is no B-frame
			}
			if before > most || !tt.skipped && before != wanted || after != frames-wanted {
				t.Errorf("%d frames before, at most %d; %d after, of %d", before, most, after, frames-wanted)
			}
		})
	}
}
