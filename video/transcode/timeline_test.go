package transcode_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// TestJoins: a source whose times jump is transcoded completely, once, without a gap and in the
// file's order, with sound in step with the pictures. Real gaps stay.
func TestJoins(t *testing.T) {
	checkLeaks(t)
	const frames, chunk = 20, 10 // of each part; at 10 a second
	pictures := coded(t, "pictures.mkv", "10", frames, "-c:v ffv1")
	part := func(t *testing.T, name string, offset float64) []byte {
		t.Helper()
		path := clip(t, name, append([]string{"-i", pictures}, strings.Fields("-f lavfi -i sine=duration=2 -map 0 -map 1 -c:v libx264 -preset ultrafast -g 7 -bf 0 -c:a mp2 -output_ts_offset "+fmt.Sprint(offset))...)...)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tt := range []struct {
		name    string
		offsets []float64
		joins   bool
	}{
		{"back.ts", []float64{0, 0}, true},
		{"far back.ts", []float64{5000, 0}, true},
		{"ahead.ts", []float64{0, 300}, true},
		{"both.ts", []float64{100, 5000, 0}, true},
		{"back.mpg", []float64{0, 0}, true},
		{"none.ts", []float64{0, 2}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var all []byte
			for _, o := range tt.offsets {
				all = append(all, part(t, tt.name, o)...)
			}
			path := write(t, tt.name, string(all))
			s, err := transcode.Probe(path, 0)
			seconds := float64(2 * len(tt.offsets))
			if err != nil || (s.Joins > 0) != tt.joins || math.Abs(s.Duration-seconds) > .3 {
				t.Fatalf("%+v, %v", s, err)
			}
			var pictures, sound int
			for _, of := range s.Streams {
				switch of.Kind {
				case "video":
					pictures = of.Index
				case "audio":
					sound = of.Index
				}
			}
			got := numbers(t, film(t, path, media.Chunk{
				Stream: pictures, Joined: s.Joins > 0, Grid: media.Grid{Rate: media.Fraction{Num: 10, Den: 1}, Segment: chunk}, Offset: s.Offset,
				Rungs: []media.Rung{{Width: codedWidth, Height: codedHeight, BitRate: 1_000_000}}, Preset: "ultrafast", Threads: 1,
			}, chunk))
			var want []int
			for range tt.offsets {
				for n := range frames {
					want = append(want, n)
				}
			}
			got = slices.Compact(got) // the last picture stands while longer sound plays
			if !slices.Equal(got, want) {
				t.Errorf("%v", got)
			}
			_, parts, err := transcode.Sound(path, media.Sound{Stream: sound, Segment: 2, Offset: s.Offset, Joined: s.Joins > 0})
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "sound.mp4")
			if err := os.WriteFile(out, bytes.Join(parts, nil), 0o600); err != nil {
				t.Fatal(err)
			}
			text, err := exec.Command("ffmpeg", "-nostdin", "-i", out, "-af", "astats=measure_perchannel=none", "-f", "null", "-").CombinedOutput()
			_, after, _ := strings.Cut(string(text), "Number of samples: ")
			var samples float64
			_, _ = fmt.Sscan(after, &samples)
			if got := samples / 48000; err != nil || math.Abs(got-seconds) > .4 {
				t.Errorf("%v seconds of sound, %v", got, err)
			}
			sheets, _, err := transcode.Thumbs(path, media.Thumbs{Stream: pictures, Offset: s.Offset, Joined: s.Joins > 0, Interval: 1, Width: 32, Columns: 5, Rows: 5})
			if err != nil || math.Abs(float64(sheets.Count)-seconds) > 1 {
				t.Errorf("%+v, %v", sheets, err)
			}
		})
	}
}
