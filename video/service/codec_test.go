package service

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// TestChunkSize: a video keeps all slots busy to its end, in chunks that are not too small.
func TestChunkSize(t *testing.T) {
	for _, tt := range []struct {
		seconds     float64
		slots, want int
	}{{0, 4, 6}, {1, 4, 2}, {24, 1, 6}, {24, 2, 3}, {24, 16, 2}, {30, 2, 4}, {48, 2, 6}, {60, 2, 4}, {102, 2, 5}, {3600, 16, 6}} {
		if got := chunkSize(tt.seconds, tt.slots); got != tt.want {
			t.Errorf("%v seconds in %d slots: %d segments, want %d", tt.seconds, tt.slots, got, tt.want)
		}
	}
}

// TestCodecs: playlists declare the codec that ffprobe finds in the rendition.
func TestCodecs(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.mp4")
	if out, err := exec.Command("ffmpeg", strings.Fields("-v error -nostdin -f lavfi -i testsrc2=size=640x360:rate=25:duration=2 -c:v libx264 -preset ultrafast "+in)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for codec, want := range map[string]struct{ tag, name, profile, codecs string }{
		media.H264: {"avc1", "h264", "High", "avc1.6400%02x"},
		media.HEVC: {"hvc1", "hevc", "Main", "hvc1.1.6.L%d.90"},
		media.AV1:  {"av01", "av1", "Main", "av01.0.%02dM.08"},
	} {
		t.Run(codec, func(t *testing.T) {
			head, bodies, err := transcode.Chunk(in, media.Chunk{
				Grid: media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 25}, To: 50,
				Rungs: media.In(codec, []media.Rung{{Width: 640, Height: 360, BitRate: 800_000}}), Preset: "veryfast",
			})
			if err != nil {
				t.Fatal(err)
			}
			r := &asset.Rendition{}
			if err := (&fragmentReader{}).init(r, bodies[0][:head.Rungs[0].Init]); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "out.mp4")
			if err := os.WriteFile(path, bodies[0], 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("ffprobe", "-v", "error", "-count_frames", "-show_entries", "stream=codec_name,codec_tag_string,profile,level,nb_read_frames", "-of", "json", path).CombinedOutput()
			var found struct {
				Streams []struct {
					Name    string `json:"codec_name"`
					Tag     string `json:"codec_tag_string"`
					Profile string `json:"profile"`
					Level   int    `json:"level"`
					Frames  string `json:"nb_read_frames"`
				} `json:"streams"`
			}
			if err != nil || json.Unmarshal(out, &found) != nil || len(found.Streams) != 1 {
				t.Fatalf("%v\n%s", err, out)
			}
			s := found.Streams[0]
			if s.Name != want.name || s.Tag != want.tag || s.Profile != want.profile || s.Frames != "50" || r.Codec != fmt.Sprintf(want.codecs, s.Level) {
				t.Errorf("%q for %+v", r.Codec, s)
			}
		})
	}
}
