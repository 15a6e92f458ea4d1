package transcode_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// film makes all chunks of a source, n frames each, in one rung, and joins them.
func film(t testing.TB, path string, c media.Chunk, n int) string {
	t.Helper()
	var all []byte
	for from := 0; ; from += n {
		c.From, c.To = from, from+n
		head, bodies, err := transcode.Chunk(path, c)
		if err != nil {
			t.Fatal(err)
		}
		if head.Frames == 0 {
			break
		}
		body := bodies[0]
		if from > 0 {
			body = body[head.Rungs[0].Init:]
		}
		all = append(all, body...)
		if head.Frames < n {
			break
		}
	}
	out := filepath.Join(t.TempDir(), "film.mp4")
	if err := os.WriteFile(out, all, 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFrames: each chunk has exactly its own frames, from every container and with any distance of
// key frames.
func TestFrames(t *testing.T) {
	checkLeaks(t)
	const frames, chunk = 230, 40
	for _, tt := range []struct{ name, args string }{
		{"long.mp4", "-c:v libx264 -preset ultrafast -bf 3 -g 250"},
		{"b.mp4", "-c:v libx264 -preset veryfast -bf 3 -g 23 -keyint_min 23 -sc_threshold 0"},
		{"open.mp4", "-c:v libx264 -preset veryfast -bf 3 -g 23 -keyint_min 23 -sc_threshold 0 -flags -cgop -x264-params open-gop=1"},
		{"fragmented.mp4", "-c:v libx264 -preset veryfast -bf 3 -g 23 -keyint_min 23 -sc_threshold 0 -movflags frag_keyframe+empty_moov"},
		{"b.mkv", "-c:v libx264 -preset veryfast -bf 3 -g 23 -keyint_min 23 -sc_threshold 0"},
		{"hevc.mkv", "-c:v libx265 -preset ultrafast -x265-params log-level=none:bframes=3:keyint=23"},
		{"b.ts", "-c:v libx264 -preset veryfast -bf 3 -g 23 -keyint_min 23 -sc_threshold 0"},
		{"open.ts", "-c:v libx264 -preset veryfast -bf 3 -g 23 -keyint_min 23 -sc_threshold 0 -flags -cgop -x264-params open-gop=1"},
		{"long.ts", "-c:v libx264 -preset ultrafast -bf 2 -g 100"},
		{"mpeg2.ts", "-c:v mpeg2video -bf 2 -g 15 -q:v 4"},
		{"mpeg2.mpg", "-c:v mpeg2video -bf 2 -g 15 -q:v 4"},
		{"b.flv", "-c:v libx264 -preset veryfast -bf 3 -g 23 -keyint_min 23 -sc_threshold 0"},
		{"mpeg4.avi", "-c:v mpeg4 -bf 2 -g 23 -q:v 3"},
		{"h264.avi", "-c:v libx264 -preset ultrafast -bf 0 -g 23"},
		{"msmpeg4.avi", "-c:v msmpeg4v3 -g 23 -q:v 3"},
		{"packed.avi", "-c:v mpeg4 -bf 2 -g 23 -q:v 3 -vtag XVID"},
		{"b264.avi", "-c:v libx264 -preset ultrafast -bf 2 -g 23"},
		{"ntsc.mp4", "-c:v libx264 -preset ultrafast -bf 2 -g 50"},
		{"ntsc.mkv", "-c:v libx264 -preset ultrafast -bf 2 -g 20 -keyint_min 20"},
		{"vp9.webm", "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -g 23 -b:v 1M"},
		{"theora.ogg", "-c:v libtheora -g 23 -q:v 7"},
		{"mjpeg.mov", "-c:v mjpeg -q:v 3"},
		{"raw.h264", "-c:v libx264 -preset veryfast -bf 3 -g 23"},
		{"raw.m2v", "-c:v mpeg2video -bf 2 -g 15 -q:v 4"},
		{"wmv.asf", "-c:v wmv2 -g 23 -q:v 3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rate, name := media.Fraction{Num: 25, Den: 1}, "25"
			if strings.HasPrefix(tt.name, "ntsc") {
				rate, name = media.Fraction{Num: 30000, Den: 1001}, "30000/1001"
			}
			path := coded(t, tt.name, name, frames, tt.args)
			s, err := transcode.Probe(path, 0)
			if err != nil {
				t.Fatal(err)
			}
			got := numbers(t, film(t, path, media.Chunk{
				Grid: media.Grid{Rate: rate, Segment: chunk}, Offset: s.Offset,
				Rungs: []media.Rung{{Width: codedWidth, Height: codedHeight, BitRate: 1_000_000}}, Preset: "ultrafast", Threads: 1,
			}, chunk))
			var want []int
			for n := range frames {
				want = append(want, n)
			}
			if !slices.Equal(got, want) {
				t.Errorf("offset %v, frames %v", s.Offset, fmt.Sprint(got))
			}
		})
	}
}
