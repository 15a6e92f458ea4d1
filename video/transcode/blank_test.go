package transcode_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// TestBlank: a chunk without a source is black in every rung, and fits between the neighbouring
// chunks without a seam: equal parameter sets, continuous times, key frames on the grid.
func TestBlank(t *testing.T) {
	checkLeaks(t)
	const chunk, segment = 40, 20
	path := coded(t, "in.mp4", "30000/1001", 110, "-c:v libx264 -preset ultrafast -bf 2")
	c := media.Chunk{
		Grid:   media.Grid{Rate: media.Fraction{Num: 30000, Den: 1001}, Segment: segment},
		Rungs:  []media.Rung{{Width: codedWidth, Height: codedHeight, BitRate: 1_000_000}, {Width: 128, Height: 76, BitRate: 200_000}},
		Preset: "veryfast", Threads: 1,
	}
	for _, tt := range []struct {
		name, path string
		codec      string
		black, end int
	}{
		{"in the middle", path, "", 1, 110},
		{"at the end", path, media.H264, 2, 110},
		{"of a segment and a bit", path, media.H264, 2, 101},
		{"HEVC", path, media.HEVC, 1, 110},
		{"AV1", path, media.AV1, 1, 110},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := make([][]byte, len(c.Rungs))
			for n := range 3 {
				c, path := c, tt.path
				c.Rungs = slices.Clone(c.Rungs)
				for i := range c.Rungs {
					c.Rungs[i].Codec = tt.codec
				}
				c.From, c.To = n*chunk, min((n+1)*chunk, tt.end)
				if n == tt.black {
					c.Blank, path = true, "/nowhere"
				}
				head, bodies, err := transcode.Chunk(path, c)
				if err != nil {
					t.Fatal(err)
				}
				if want := (c.To - c.From + segment - 1) / segment; head.Frames != c.To-c.From || len(head.Rungs[1].Segments) != want {
					t.Errorf("chunk %d has %d frames in %d segments", n, head.Frames, len(head.Rungs[1].Segments))
				}
				for i, made := range head.Rungs {
					if n > 0 && !bytes.Equal(bodies[i][:made.Init], files[i][:made.Init]) {
						t.Errorf("rung %d begins otherwise in chunk %d", i, n)
					}
					if n > 0 {
						bodies[i] = bodies[i][made.Init:]
					}
					files[i] = append(files[i], bodies[i]...)
				}
			}
			for i, b := range files {
				out := filepath.Join(t.TempDir(), fmt.Sprintf("%d.mp4", i))
				if err := os.WriteFile(out, b, 0o600); err != nil {
					t.Fatal(err)
				}
				var first float64 // FFmpeg's demuxer delays the start of films with B-frames by the B-frames' time
				for n, f := range frames(t, out) {
					var at float64
					_, _ = fmt.Sscan(f.Time, &at)
					if n == 0 {
						first = at
					}
					if d := at - first - float64(n)*1001/30000; math.Abs(d) > 0.0001 || (n%segment == 0) != (f.Key == 1) {
						t.Errorf("rung %d: frame %d is %+v, off by %.6f", i, n, f, d)
						break
					}
				}
				var want []int
				for n := range tt.end {
					if n/chunk == tt.black {
						n = 0 // black shows the number 0
					}
					want = append(want, n)
				}
				if got := numbers(t, out); !slices.Equal(got, want) {
					t.Errorf("rung %d shows %v", i, got)
				}
				cmd := exec.Command("ffmpeg", "-v", "error", "-nostdin", "-i", out, "-vf", fmt.Sprintf("select=eq(n\\,%d)", tt.black*chunk), "-frames:v", "1", "-pix_fmt", "yuv420p", "-f", "rawvideo", "-")
				if pixels, err := cmd.Output(); err != nil || slices.ContainsFunc(pixels[:c.Rungs[i].Width*c.Rungs[i].Height], func(y byte) bool { return y > 20 }) {
					t.Errorf("rung %d: %v, not black: % x", i, err, pixels[:min(20, len(pixels))])
				}
			}
		})
	}
	c.Blank, c.To = true, -1
	if _, _, err := transcode.Chunk(path, c); err == nil {
		t.Error("black without an end")
	}
}
