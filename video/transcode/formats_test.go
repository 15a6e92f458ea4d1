package transcode_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// TestFormats: every container of pictures or sound that ffmpeg writes can be made into renditions.
func TestFormats(t *testing.T) {
	checkLeaks(t)
	const pictures, sound = "-f lavfi -i testsrc2=size=176x144:rate=25:duration=1 ", "-f lavfi -i sine=duration=1:sample_rate=44100 "
	for _, tt := range []struct{ name, args string }{
		{"a.mp4", pictures + sound + "-c:v libx264 -c:a aac"},
		{"a.mov", pictures + sound + "-c:v prores_ks -c:a pcm_s16be"},
		{"a.m4v", pictures + "-c:v mpeg4 -f m4v"},
		{"a.3gp", pictures + sound + "-c:v h263 -c:a aac"},
		{"a.mkv", pictures + sound + "-c:v ffv1 -c:a flac"},
		{"a.webm", pictures + sound + "-c:v libvpx -c:a libvorbis"},
		{"vp9.webm", pictures + sound + "-c:v libvpx-vp9 -deadline realtime -c:a libopus"},
		{"a.avi", pictures + sound + "-c:v mpeg4 -c:a mp3"},
		{"mjpeg.avi", pictures + "-c:v mjpeg -pix_fmt yuvj422p"},
		{"a.ts", pictures + sound + "-c:v mpeg2video -c:a mp2"},
		{"a.mpg", pictures + sound + "-c:v mpeg1video -c:a mp2"},
		{"a.vob", pictures + sound + "-c:v mpeg2video -c:a ac3"},
		{"a.flv", pictures + sound + "-c:v flv1 -c:a mp3"},
		{"a.ogv", pictures + sound + "-c:v libtheora -c:a libvorbis"},
		{"a.wmv", pictures + sound + "-c:v wmv2 -c:a wmav2"},
		{"a.mxf", pictures + "-c:v mpeg2video"},
		{"a.gxf", pictures + "-c:v mpeg2video -s 720x576 -b:v 2M"},
		{"a.nut", pictures + sound + "-c:v mpeg4 -c:a mp3"},
		{"a.rm", pictures + "-c:v rv20"},
		{"a.dv", pictures + "-s 720x576 -pix_fmt yuv420p -c:v dvvideo"},
		{"a.gif", pictures + ""},
		{"a.swf", pictures + "-c:v flv1"},
		{"a.y4m", pictures + "-pix_fmt yuv420p"},
		{"a.ivf", pictures + "-c:v libvpx"},
		{"a.h264", pictures + "-c:v libx264"},
		{"a.hevc", pictures + "-c:v libx265 -x265-params log-level=error"},
		{"a.obu", pictures + "-c:v libsvtav1 -preset 12 -f obu"},
		{"a.m2v", pictures + "-c:v mpeg2video"},
		{"a.mp3", sound},
		{"a.aac", sound},
		{"a.m4a", sound + "-c:a alac"},
		{"a.caf", sound + "-c:a pcm_s16le"},
		{"a.wav", sound + "-c:a pcm_u8"},
		{"adpcm.wav", sound + "-c:a adpcm_ms"},
		{"a.w64", sound},
		{"a.flac", sound},
		{"a.ogg", sound + "-c:a flac"},
		{"a.opus", sound + "-c:a libopus"},
		{"a.spx", sound + "-c:a libspeex -ar 16000"},
		{"a.aiff", sound},
		{"a.au", sound},
		{"a.voc", sound + "-c:a pcm_u8"},
		{"a.ac3", sound},
		{"a.eac3", sound},
		{"a.mp2", sound},
		{"a.tta", sound},
		{"a.wv", sound},
		{"a.wma", sound},
		{"a.ra", sound + "-c:a ac3 -f rm"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := clip(t, tt.name, strings.Fields(tt.args)...)
			s, err := transcode.Probe(path, 100)
			if err != nil {
				t.Fatal(err)
			}
			if (s.Picture >= 0) != strings.Contains(tt.args, "testsrc2") || s.Unseen != "" {
				t.Fatalf("%+v", s)
			}
			if s.Picture >= 0 {
				head, _, err := transcode.Chunk(path, media.Chunk{
					Stream: s.Picture, Offset: s.Offset, Grid: media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 50}, To: 50, Preset: "ultrafast", Threads: 1,
					Rungs: []media.Rung{{Name: "144p", Width: 176, Height: 144, BitRate: 200_000}},
				})
				if err != nil || head.Frames < 20 || head.Frames > 30 {
					t.Errorf("%+v, %v", head, err)
				}
			}
			sounds := 0
			for _, of := range s.Streams {
				if of.Kind != "audio" {
					continue
				}
				sounds++
				made, parts, err := transcode.Sound(path, media.Sound{Stream: of.Index, Offset: s.Offset, Segment: 4})
				if err != nil || len(made.Segments) == 0 || len(parts) < 2 {
					t.Errorf("%+v, %v", made, err)
				}
			}
			if want := strings.Count(tt.args, "sine"); sounds != want {
				t.Errorf("%d tracks of sound, want %d", sounds, want)
			}
		})
	}
}

// TestUnseen: a file with undecodable pictures keeps its sound, and the report gives the reason.
// Without sound, the decoder's error is the answer.
func TestUnseen(t *testing.T) {
	checkLeaks(t)
	for _, sound := range []bool{false, true} {
		args := "-f lavfi -i testsrc2=size=176x144:rate=25:duration=1 "
		if sound {
			args += "-f lavfi -i sine=duration=1 "
		}
		path := clip(t, fmt.Sprintf("%v.mkv", sound), strings.Fields(args+"-c:v vp8 -c:a aac -bsf:v noise=amount=1")...)
		s, err := transcode.Probe(path, 100)
		if err != nil || (s.Picture < 0) != sound || (s.Unseen != "") != sound {
			t.Errorf("sound %v: %+v, %v", sound, s, err)
		}
	}
}
