package transcode_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// TestOdd: unusual clips become ordinary films: upright, with square pixels, 8 bits, on the grid
// from 0 on, and as long as the source.
func TestOdd(t *testing.T) {
	checkLeaks(t)
	const picture, sound = "-f lavfi -i testsrc2=size=320x180:rate=25:duration=3 ", "-f lavfi -i sine=duration=3 "
	for _, tt := range []struct {
		name, args    string
		width, height int // of the source as displayed
		stream        int
		frames        int
	}{
		{"odd.mkv", "-f lavfi -i testsrc2=size=400x300:rate=25:duration=3 -vf format=yuv444p,crop=321:243 -c:v ffv1", 321, 243, 0, 75},
		{"wide pixels.mp4", picture + quick + "-vf setsar=4/3", 427, 180, 0, 75},
		{"high pixels.mkv", picture + quick + "-vf setsar=1/2", 160, 180, 0, 75},
		{"ten bits.mkv", picture + "-c:v libx265 -preset ultrafast -pix_fmt yuv420p10le -x265-params log-level=none", 320, 180, 0, 75},
		{"HDR.mkv", picture + "-c:v libx265 -preset ultrafast -pix_fmt yuv420p10le -color_primaries bt2020 -color_trc smpte2084 -colorspace bt2020nc -x265-params log-level=none:hdr10=1:repeat-headers=1", 320, 180, 0, 75},
		{"interlaced.ts", picture + "-vf fps=50,tinterlace=interleave_top,fieldorder=tff -r 25 -c:v mpeg2video -flags +ildct+ilme -q:v 4", 320, 180, 0, 75},
		{"late.ts", picture + quick + "-output_ts_offset 5000", 320, 180, 0, 75},
		{"late.mkv", picture + quick + "-output_ts_offset 7.3", 320, 180, 0, 75},
		{"changing rate.mkv", picture + quick + "-vf select='not(between(mod(n\\,10)\\,3\\,8))' -vsync vfr", 320, 180, 0, 75},
		{"two tracks.mkv", picture + "-f lavfi -i testsrc=size=160x120:rate=25:duration=3 -map 0 -map 1 " + quick, 160, 120, 1, 75},
		{"sound first.mkv", sound + picture + "-map 0 -map 1 -c:a flac " + quick, 320, 180, 1, 75},
		{"grey.mkv", picture + "-c:v ffv1 -pix_fmt gray", 320, 180, 0, 75},
		{"palette.gif", picture + "-vf scale=160:90", 160, 90, 0, 75},
		{"long.mp4", "-f lavfi -i testsrc2=size=64x36:rate=10:duration=90 " + quick, 64, 36, 0, 900},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := clip(t, tt.name, strings.Fields(tt.args)...)
			s, err := transcode.Probe(path, 0)
			if err != nil {
				t.Fatal(err)
			}
			of := s.Streams[tt.stream]
			if of.Kind != "video" || of.Width != tt.width || of.Height != tt.height {
				t.Fatalf("%+v", of)
			}
			grid := media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 25}
			if tt.frames == 900 {
				grid = media.Grid{Rate: media.Fraction{Num: 10, Den: 1}, Segment: 40}
			}
			rung := media.Ladder(of.Width, of.Height, 25, 1)[0]
			out := film(t, path, media.Chunk{Stream: tt.stream, Grid: grid, Offset: s.Offset, Rungs: []media.Rung{rung}, Preset: "ultrafast", Threads: 1}, 2*grid.Segment)
			b, err := exec.Command("ffprobe", "-v", "error", "-count_frames", "-show_entries", "stream=width,height,pix_fmt,sample_aspect_ratio,nb_read_frames:stream_side_data=rotation", "-of", "json", out).CombinedOutput()
			var found struct {
				Streams []struct {
					Width, Height int
					Pixels        string           `json:"pix_fmt"`
					Ratio         string           `json:"sample_aspect_ratio"`
					Frames        string           `json:"nb_read_frames"`
					Side          []map[string]any `json:"side_data_list"`
				} `json:"streams"`
			}
			if err != nil || json.Unmarshal(b, &found) != nil || len(found.Streams) != 1 {
				t.Fatalf("%v\n%s", err, b)
			}
			f := found.Streams[0]
			var n int
			_, _ = fmt.Sscan(f.Frames, &n)
			if f.Width != rung.Width || f.Height != rung.Height || f.Pixels != "yuv420p" || f.Ratio != "1:1" || len(f.Side) != 0 || math.Abs(float64(n-tt.frames)) > 2 {
				t.Errorf("%+v, want %d frames of %d × %d", f, tt.frames, rung.Width, rung.Height)
			}
		})
	}
}

// TestOddLying: pictures for a player to turn or to mirror are turned and mirrored, in all eight
// ways; no picture is lost.
func TestOddLying(t *testing.T) {
	checkLeaks(t)
	var want []int
	for n := range 20 {
		want = append(want, n)
	}
	for _, mirrored := range []bool{false, true} {
		for _, degrees := range []int{0, 90, 180, 270} {
			path := lying(t, degrees, mirrored)
			s, err := transcode.Probe(path, 0)
			if err != nil {
				t.Fatal(err)
			}
			if of := s.Streams[0]; of.Rotation != degrees || of.Mirrored != mirrored || of.Width != codedWidth || of.Height != codedHeight {
				t.Errorf("%d degrees, mirrored %v: %+v", degrees, mirrored, of)
			}
			out := film(t, path, media.Chunk{
				Grid:  media.Grid{Rate: media.Fraction{Num: 10, Den: 1}, Segment: 10},
				Rungs: []media.Rung{{Width: codedWidth, Height: codedHeight, BitRate: 1_000_000}}, Preset: "ultrafast", Threads: 1,
			}, 10)
			if got := numbers(t, out); !slices.Equal(got, want) {
				t.Errorf("%d degrees, mirrored %v: %v", degrees, mirrored, got)
			}
		}
	}
}

// TestPicture: of several video streams, the transcoder takes the ffmpeg program's choice, or the
// next stream if the first cannot be decoded.
func TestPicture(t *testing.T) {
	checkLeaks(t)
	two := strings.Fields("-f lavfi -i testsrc2=size=96x64:rate=10:duration=1 -f lavfi -i testsrc2=size=64x64:rate=10:duration=1 -map 0 -map 1 -c:v libx264 -preset ultrafast")
	for _, tt := range []struct {
		name, args string
		want       int
	}{
		{"alike", "", 0},
		{"the second is the default", "-disposition:0 0 -disposition:1 default", 1},
		{"the first is the default", "-disposition:0 default -disposition:1 0", 0},
		{"the default is for those who see badly", "-disposition:0 default+visual_impaired -disposition:1 default", 1},
		{"the first has no packets", "-bsf:v:0 noise=drop=1", 1},
		{"the first is broken", "-bsf:v:0 noise=amount=1", 1},
		{"the first has pictures late", "-bsf:v:0 noise=drop='lt(n\\,9)'", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := transcode.Probe(clip(t, "two.mkv", append(two, strings.Fields(tt.args)...)...), 0)
			if err != nil || s.Picture != tt.want {
				t.Errorf("stream %d, want %d; %v\n%+v", s.Picture, tt.want, err, s)
			}
		})
	}
}

// TestLanguages: tracks keep the source's order, with their languages as tags of BCP 47.
func TestLanguages(t *testing.T) {
	checkLeaks(t)
	said := []string{"ger", "deu", "en-GB", "pt_br", "und", "no language", "chi", "fra"}
	want := []string{"de", "de", "en-GB", "pt-BR", "", "", "zh", "fr"}
	args := strings.Fields("-f lavfi -i sine=duration=0.2")
	for i, l := range said {
		args = append(args, "-map", "0", fmt.Sprintf("-metadata:s:%d", i), "language="+l)
	}
	s, err := transcode.Probe(clip(t, "many.mka", append(args, "-c:a", "flac")...), 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, stream := range s.Streams {
		got = append(got, stream.Language)
	}
	if !slices.Equal(got, want) || s.Picture != -1 {
		t.Errorf("of %q %q, want %q; pictures are stream %d", said, got, want, s.Picture)
	}
}

// TestInterlaced: an interlaced picture (a field of odd and a field of even lines, in either order)
// becomes two whole pictures.
func TestInterlaced(t *testing.T) {
	checkLeaks(t)
	const frames, fields = 8, 5 // each picture lasts so many fields, so that every second change is within a picture
	for _, tt := range []struct {
		name, args string
		combed     bool
	}{
		{"top.ts", "-vf fps=50,tinterlace=interleave_top,fieldorder=tff -flags +ildct+ilme -c:v mpeg2video -q:v 3", true},
		{"bottom.mkv", "-vf fps=50,tinterlace=interleave_bottom,fieldorder=bff -c:v libx264 -preset ultrafast -flags +ildct+ilme -x264opts bff=1", true},
		{"dv.avi", "-vf fps=50,scale=720:576:flags=neighbor,tinterlace=interleave_bottom,fieldorder=bff,format=yuv420p -flags +ildct+ilme -c:v dvvideo", true},
		{"whole.mp4", "-vf fps=50 -c:v libx264 -preset ultrafast", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := coded(t, tt.name, "10", frames, tt.args)
			s, err := transcode.Probe(path, 0)
			if err != nil || s.Streams[0].Interlaced != tt.combed {
				t.Fatalf("%+v, %v", s, err)
			}
			got := numbers(t, film(t, path, media.Chunk{
				Grid: media.Grid{Rate: media.Fraction{Num: 50, Den: 1}, Segment: 10}, Offset: s.Offset,
				Rungs: []media.Rung{{Width: 320, Height: 192, BitRate: 8_000_000}}, Preset: "ultrafast", Threads: 1,
			}, 10))
			var want []int
			for n := range frames * fields {
				want = append(want, n/fields)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v", got)
			}
		})
	}
}

// TestShapes: if the size or the shape of pixels changes within a film, pictures keep their shape,
// with black beside them; chunks with another beginning show the same.
func TestShapes(t *testing.T) {
	checkLeaks(t)
	part := func(name, args string) []byte {
		b, err := os.ReadFile(clip(t, name, strings.Fields("-f lavfi -i color=white:"+args+" -g 10")...))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tt := range []struct{ name, first, second string }{
		{"size.ts", "size=160x90:rate=10:duration=1 -c:v libx264 -preset ultrafast", "size=120x90:rate=10:duration=1 -c:v libx264 -preset ultrafast -output_ts_offset 1"},
		{"ratio.ts", "size=128x96:rate=10:duration=1 -vf setsar=4/3 -c:v mpeg2video -q:v 3", "size=128x96:rate=10:duration=1 -c:v mpeg2video -q:v 3 -output_ts_offset 1.1"},
	} {
		path := write(t, tt.name, string(part("1.ts", tt.first))+string(part("2.ts", tt.second)))
		s, err := transcode.Probe(path, 0)
		if err != nil {
			t.Fatal(err)
		}
		out := film(t, path, media.Chunk{
			Grid: media.Grid{Rate: media.Fraction{Num: 10, Den: 1}, Segment: 5}, Offset: s.Offset, Rungs: []media.Rung{{Width: 160, Height: 90, BitRate: 1_000_000}}, Preset: "ultrafast", Threads: 1,
		}, 5)
		gray, err := exec.Command("ffmpeg", "-v", "error", "-nostdin", "-i", out, "-vsync", "passthrough", "-f", "rawvideo", "-pix_fmt", "gray", "-").Output()
		if err != nil || len(gray) != 20*160*90 {
			t.Fatalf("%s: %v, %d pictures", tt.name, err, len(gray)/160/90)
		}
		for n := range 20 {
			line := gray[n*160*90+45*160:][:160]
			wide := 0
			for _, v := range line {
				if v > 128 {
					wide++
				}
			}
			if want := map[bool]int{true: 160, false: 120}[n < 10]; wide < want-4 || wide > want+4 || line[80] < 200 {
				t.Errorf("%s: of picture %d %d columns are white, want %d", tt.name, n, wide, want)
			}
		}
	}
}
