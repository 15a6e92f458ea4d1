package transcode_test

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"math"
	"testing"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// pictures cuts sheets into pictures, and checks the sheets' descriptions.
func pictures(t *testing.T, ask media.Thumbs, head *media.Sheets, sheets [][]byte) []image.Image {
	t.Helper()
	each := ask.Columns * ask.Rows
	if want := (head.Count + each - 1) / each; len(sheets) != want || len(head.Sheets) != want {
		t.Fatalf("%d sheets of %+v, want %d", len(sheets), head, want)
	}
	var all []image.Image
	for i, b := range sheets {
		if len(b) != head.Sheets[i] {
			t.Errorf("sheet %d has %d bytes, not %d", i, len(b), head.Sheets[i])
		}
		sheet, err := jpeg.Decode(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := sheet.Bounds(), image.Rect(0, 0, ask.Columns*head.Width, ask.Rows*head.Height); got != want {
			t.Errorf("sheet %d is %v, want %v", i, got, want)
		}
		for n := range each {
			p := image.NewRGBA(image.Rect(0, 0, head.Width, head.Height))
			draw.Draw(p, p.Rect, sheet, image.Pt(n%ask.Columns*head.Width, n/ask.Columns*head.Height), draw.Src)
			all = append(all, p)
		}
	}
	for n, p := range all[head.Count:] {
		if v := color.GrayModel.Convert(p.At(head.Width/2, head.Height/2)).(color.Gray).Y; v > 20 {
			t.Errorf("behind the last there is no black but %d, %d", n, v)
		}
	}
	return all[:head.Count]
}

// TestThumbs: each picture shows the frame of its time, or a key frame close to that frame.
func TestThumbs(t *testing.T) {
	checkLeaks(t)
	const x264 = "-c:v libx264 -preset ultrafast -bf 2 "
	for _, tt := range []struct {
		name, rate string
		frames     int
		args       string
		ask        media.Thumbs
		want       []int // numbers of frames
		near       int   // allowed distance in frames
		height     int
	}{
		{"keys.mp4", "10", 105, x264 + "-g 10 -keyint_min 10", media.Thumbs{Interval: 2, Width: 160, Columns: 4, Rows: 1}, []int{0, 20, 40, 60, 80, 100}, 0, 96},
		{"nearest.mkv", "10", 80, x264 + "-g 16 -keyint_min 16", media.Thumbs{Interval: 2, Width: 80, Columns: 2, Rows: 2}, []int{0, 16, 48, 64}, 0, 48},
		{"all.mp4", "10", 80, x264 + "-g 1000", media.Thumbs{Interval: 2, Width: 120, Columns: 10, Rows: 10}, []int{0, 20, 40, 60}, 2, 72},
		{"transport.ts", "25", 100, x264 + "-g 25 -muxdelay 0", media.Thumbs{Interval: 1, Width: 160, Columns: 1, Rows: 3}, []int{0, 25, 50, 75}, 0, 96},
		{"vp8.webm", "25", 60, "-c:v libvpx -g 10 -deadline realtime -cpu-used 8 -b:v 1M", media.Thumbs{Interval: .4, Width: 160, Columns: 3, Rows: 3}, []int{0, 10, 20, 30, 40, 50}, 0, 96},
		{"intra.avi", "10", 40, "-c:v mjpeg -q:v 3", media.Thumbs{Interval: .7, Width: 160, Columns: 3, Rows: 3}, []int{0, 7, 14, 21, 28, 35}, 0, 96},
		{"wide.mkv", "10", 10, x264 + "-vf setsar=2/1", media.Thumbs{Interval: 5, Width: 160, Columns: 3, Rows: 3}, []int{0}, 0, 48},
		{"odd.mkv", "10", 10, "-vf scale=161:97 -c:v ffv1", media.Thumbs{Interval: 5, Width: 100, Columns: 1, Rows: 1}, []int{0}, 0, 60},
		{"deep.mkv", "10", 15, "-pix_fmt yuv444p10le -c:v ffv1 -g 5", media.Thumbs{Interval: .5, Width: 160, Columns: 1, Rows: 1}, []int{0, 5, 10}, 0, 96},
		{"late.mkv", "10", 20, x264 + "-g 5 -vf setpts=PTS+1/TB", media.Thumbs{Interval: 1, Width: 160, Columns: 2, Rows: 2}, []int{0, 0, 10}, 0, 96},
		{"gap.mkv", "10", 20, x264 + "-g 1000 -vf setpts=if(gte(N\\,10)\\,PTS+3/TB\\,PTS) -vsync vfr", media.Thumbs{Interval: 1, Width: 160, Columns: 3, Rows: 2}, []int{0, 9, 9, 9, 10}, 2, 96},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := coded(t, tt.name, tt.rate, tt.frames, tt.args)
			if tt.name == "transport.ts" {
				s, err := transcode.Probe(path, 0)
				if err != nil || s.Offset <= 0 {
					t.Fatalf("%+v, %v", s, err)
				}
				tt.ask.Offset = s.Offset
			}
			head, sheets, err := transcode.Thumbs(path, tt.ask)
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			for _, p := range pictures(t, tt.ask, head, sheets) {
				got = append(got, number(p))
			}
			ok := len(got) == len(tt.want)
			for i := 0; ok && i < len(got); i++ {
				ok = got[i] >= 0 && math.Abs(float64(got[i]-tt.want[i])) <= float64(tt.near)
			}
			if !ok || head.Width != tt.ask.Width || head.Height != tt.height || head.Interval != tt.ask.Interval {
				t.Errorf("frames %v on %+v, want %v", got, head, tt.want)
			}
		})
	}
}

// TestThumbsUpright: pictures of a rotated film are turned upright.
func TestThumbsUpright(t *testing.T) {
	checkLeaks(t)
	for _, degrees := range []int{90, 180, 270} {
		t.Run(fmt.Sprint(degrees), func(t *testing.T) {
			path := lying(t, degrees, false)
			s, err := transcode.Probe(path, 0)
			if err != nil || s.Streams[0].Rotation != degrees || s.Streams[0].Width != codedWidth || s.Streams[0].Height != codedHeight {
				t.Fatalf("%+v, %v", s, err)
			}
			ask := media.Thumbs{Interval: 1.3, Width: 160, Columns: 1, Rows: 2}
			head, sheets, err := transcode.Thumbs(path, ask)
			if err != nil {
				t.Fatal(err)
			}
			all := pictures(t, ask, head, sheets)
			if len(all) != 2 || head.Height != codedHeight || number(all[1]) != 13 {
				t.Errorf("%d pictures on %+v, frame %d", len(all), head, number(all[1]))
			}
		})
	}
}

// TestThumbsMany: a film with too many pictures uses a multiple of the interval.
func TestThumbsMany(t *testing.T) {
	checkLeaks(t)
	path := coded(t, "long.mkv", "1", 4095, "-c:v libx264 -preset ultrafast -g 1")
	ask := media.Thumbs{Interval: .5, Width: 64, Columns: 50, Rows: 25}
	head, sheets, err := transcode.Thumbs(path, ask)
	if err != nil {
		t.Fatal(err)
	}
	if head.Interval != 2.5 || head.Count != 4095*2/5 || head.Count > media.MostThumbs {
		t.Errorf("%+v", head)
	}
	for n, p := range pictures(t, ask, head, sheets) {
		if got := number(p); math.Abs(float64(got)-2.5*float64(n)) > .5 {
			t.Fatalf("picture %d is of frame %d", n, got)
		}
	}
}

// TestThumbsAsked: impossible requests are refused.
func TestThumbsAsked(t *testing.T) {
	checkLeaks(t)
	path := clip(t, "in.mkv", "-f", "lavfi", "-i", "testsrc=duration=1", "-f", "lavfi", "-i", "sine=duration=1")
	for name, ask := range map[string]media.Thumbs{
		"no interval":  {Width: 160, Columns: 1, Rows: 1},
		"not a number": {Interval: math.NaN(), Width: 160, Columns: 1, Rows: 1},
		"odd":          {Interval: 1, Width: 161, Columns: 1, Rows: 1},
		"too wide":     {Interval: 1, Width: 1600, Columns: 41, Rows: 1},
		"too high":     {Interval: 1, Width: 160, Columns: 1, Rows: math.MaxInt / 100},
		"sound":        {Stream: 1, Interval: 1, Width: 160, Columns: 1, Rows: 1},
		"no stream":    {Stream: 2, Interval: 1, Width: 160, Columns: 1, Rows: 1},
	} {
		if head, _, err := transcode.Thumbs(path, ask); err == nil {
			t.Errorf("%s: %+v", name, head)
		}
	}
}
