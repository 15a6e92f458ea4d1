package transcode_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// frame is ffprobe's description of a frame.
type frame struct {
	Key  int    `json:"key_frame"`
	Time string `json:"pts_time"`
}

func frames(t *testing.T, path string) []frame {
	t.Helper()
	out, err := exec.Command("ffprobe", "-v", "error", "-show_entries", "frame=key_frame,pts_time", "-of", "json", path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var all struct{ Frames []frame }
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return all.Frames
}

// TestChunks: the chunks of every rung, joined, are a film with a key frame at the beginning of
// each segment and with all frames of the source at their times.
func TestChunks(t *testing.T) {
	checkLeaks(t)
	for _, tt := range []struct {
		name   string
		args   []string
		grid   media.Grid
		chunk  int // frames
		frames int
		codec  string
		preset string
	}{
		{"b-frames.mp4", strings.Fields("-f lavfi -i testsrc2=size=320x180:rate=25:duration=5 -c:v libx264 -bf 3 -g 60"), media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 25}, 50, 125, "", "ultrafast"},
		{"ntsc.mkv", strings.Fields("-f lavfi -i testsrc2=size=320x180:rate=30000/1001:duration=4 -c:v libx264"), media.Grid{Rate: media.Fraction{Num: 30000, Den: 1001}, Segment: 30}, 60, 120, "", "ultrafast"},
		{"reordered.mp4", strings.Fields("-f lavfi -i testsrc2=size=320x180:rate=30000/1001:duration=4 -c:v libx264"), media.Grid{Rate: media.Fraction{Num: 30000, Den: 1001}, Segment: 30}, 60, 120, "", "medium"},
		{"reordered-hevc.mp4", strings.Fields("-f lavfi -i testsrc2=size=320x180:rate=25:duration=2 -c:v libx264"), media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 25}, 50, 50, media.HEVC, "medium"},
		{"av1.mp4", strings.Fields("-f lavfi -i testsrc2=size=320x180:rate=25:duration=2 -c:v libx264"), media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 25}, 50, 50, media.AV1, "ultrafast"},
		{"three.mp4", strings.Fields("-f lavfi -i testsrc2=size=320x180:rate=25:duration=0.12 -c:v libx264"), media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 25}, 50, 3, "", "medium"},
		{"one.mp4", strings.Fields("-f lavfi -i testsrc2=size=320x180:rate=25 -frames:v 1 -c:v libx264"), media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 25}, 50, 1, "", "medium"},
		{"variable.mp4", strings.Fields("-f lavfi -i testsrc2=size=320x180:rate=24:duration=4 -vf select='not(between(n\\,30\\,50))' -vsync vfr -c:v libx264"), media.Grid{Rate: media.Fraction{Num: 24, Den: 1}, Segment: 24}, 48, 96, "", "ultrafast"},
		{"odd.avi", strings.Fields("-f lavfi -i testsrc2=size=322x182:rate=10:duration=3 -c:v mpeg4"), media.Grid{Rate: media.Fraction{Num: 10, Den: 1}, Segment: 10}, 20, 30, "", "ultrafast"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := clip(t, tt.name, tt.args...)
			rungs := []media.Rung{{Name: "180p", Width: 320, Height: 180, BitRate: 1_000_000}, {Name: "90p", Width: 160, Height: 90, BitRate: 200_000}}
			if tt.codec != "" {
				rungs = media.In(tt.codec, rungs)
			}
			files := make([][]byte, len(rungs))
			total := 0
			for from := 0; ; from += tt.chunk {
				head, bodies, err := transcode.Chunk(path, media.Chunk{Grid: tt.grid, From: from, To: from + tt.chunk, Rungs: rungs, Preset: tt.preset, Threads: 1})
				if err != nil {
					t.Fatal(err)
				}
				if head.Frames == 0 {
					break
				}
				total += head.Frames
				for i, made := range head.Rungs {
					body := bodies[i]
					if from > 0 {
						if string(body[:made.Init]) != string(files[i][:made.Init]) {
							t.Errorf("rung %d begins otherwise in chunk %d", i, from/tt.chunk)
						}
						body = body[made.Init:]
					}
					if want := (head.Frames + tt.grid.Segment - 1) / tt.grid.Segment; len(made.Segments) != want {
						t.Errorf("%d segments of %d frames", len(made.Segments), head.Frames)
					}
					files[i] = append(files[i], body...)
				}
				if head.Frames < tt.chunk {
					break
				}
			}
			if total != tt.frames {
				t.Errorf("%d frames, want %d", total, tt.frames)
			}
			for i := range files {
				out := filepath.Join(t.TempDir(), fmt.Sprintf("%d.mp4", i))
				if err := os.WriteFile(out, files[i], 0o600); err != nil {
					t.Fatal(err)
				}
				got := frames(t, out)
				if len(got) != tt.frames {
					t.Errorf("rung %d has %d frames", i, len(got))
				}
				for n, f := range got {
					want := float64(n) * float64(tt.grid.Rate.Den) / float64(tt.grid.Rate.Num)
					var at float64
					_, _ = fmt.Sscan(f.Time, &at)
					if d := at - want; d > 0.0001 || d < -0.0001 || (n%tt.grid.Segment == 0) != (f.Key == 1) {
						t.Errorf("rung %d: frame %d is %+v, want time %.4f", i, n, f, want)
						break
					}
				}
				if i == 0 {
					cmd := exec.Command("ffmpeg", "-v", "info", "-nostdin", "-i", out, "-i", path, "-lavfi", fmt.Sprintf("[1:v]scale=320:180,fps=%d/%d[s];[0:v][s]psnr", tt.grid.Rate.Num, tt.grid.Rate.Den), "-f", "null", "-")
					text, err := cmd.CombinedOutput()
					_, after, ok := strings.Cut(string(text), "average:")
					var db float64
					_, _ = fmt.Sscan(strings.Fields(after + " 0")[0], &db)
					if err != nil || !ok || db < 28 {
						t.Errorf("PSNR %.1f dB, %v\n%s", db, err, text)
					} else {
						t.Logf("PSNR %.1f dB", db)
					}
				}
			}
		})
	}
}

// TestSound: a sound track made from any codec has the source's length, and each segment ends with
// the video's segment, within one packet.
func TestSound(t *testing.T) {
	checkLeaks(t)
	for _, tt := range []struct {
		name    string
		args    string
		seconds float64
	}{
		{"mono.wav", "-f lavfi -i sine=duration=5:sample_rate=8000", 5},
		{"six.mp4", "-f lavfi -i sine=duration=5:sample_rate=44100 -ac 6 -c:a aac", 5},
		{"late.mkv", "-f lavfi -i sine=duration=5 -af asetpts=PTS+1/TB -c:a libmp3lame", 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := clip(t, tt.name, strings.Fields(tt.args)...)
			made, parts, err := transcode.Sound(path, media.Sound{Segment: 2})
			if err != nil {
				t.Fatal(err)
			}
			if n := len(made.Segments); n < 3 || n > 4 { // the last segment may hold only the priming's samples
				t.Errorf("%d segments: %d bytes", n, made.Segments)
			}
			out := filepath.Join(t.TempDir(), "out.mp4")
			if err := os.WriteFile(out, bytes.Join(parts, nil), 0o600); err != nil {
				t.Fatal(err)
			}
			text, err := exec.Command("ffmpeg", "-v", "info", "-nostdin", "-i", out, "-af", "astats=measure_perchannel=none", "-f", "null", "-").CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			_, after, _ := strings.Cut(string(text), "Number of samples: ")
			var samples float64
			_, _ = fmt.Sscan(after, &samples)
			if got := samples / 48000; got < tt.seconds-0.05 || got > tt.seconds+0.08 {
				t.Errorf("%.3f seconds, want %.3f\n%s", got, tt.seconds, text)
			}
			if !strings.Contains(string(text), "48000 Hz, stereo") {
				t.Errorf("%s", text)
			}
		})
	}
}
