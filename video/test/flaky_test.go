package video_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/video/asset"
)

// flaky: seconds of a video that crash or hang the transcoder become black; the rest is complete.
// The bad seconds hold large pictures, many of them in memory at a time, or very many pictures.
func (w *world) flaky(t *testing.T) {
	in := t.TempDir()
	const film = "-f lavfi -i testsrc2=size=320x180:rate=10 -c:v libx264 -preset ultrafast -g 20 -f mpegts "
	before := clip(t, filepath.Join(in, "before.ts"), film+"-t 30")
	after := clip(t, filepath.Join(in, "after.ts"), film+"-t 64 -output_ts_offset 38")
	bomb := clip(t, filepath.Join(in, "bomb.ts"), "-f lavfi -i color=size=8192x4320:rate=10:duration=3,format=yuv444p -c:v libx264 -preset ultrafast -refs 16 -bf 0 -g 100 -output_ts_offset 30")
	few, err := os.ReadFile(clip(t, filepath.Join(in, "few.h264"), "-f lavfi -i color=size=4096x2160:rate=10:duration=2 -c:v libx264 -preset ultrafast -g 100"))
	if err == nil {
		err = os.WriteFile(filepath.Join(in, "many.h264"), bytes.Repeat(few, 400), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	swamp := clip(t, filepath.Join(in, "swamp.ts"), "-r 1000 -i "+filepath.Join(in, "many.h264")+" -c copy -output_ts_offset 30")
	for _, tt := range []struct {
		name  string
		args  []string // of the service
		parts []string
		words string
	}{
		{"out of memory", []string{"--slots", "2"}, []string{before, bomb, after}, "memory"},
		{"out of time", []string{"--slots", "2", "--job-timeout", "10s"}, []string{before, swamp, after}, "within 10s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w.end(t, unix.SIGTERM)
			w.startService(t, tt.args...)
			var all []byte
			for _, p := range tt.parts {
				b, err := os.ReadFile(p)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, b...)
			}
			path := filepath.Join(in, "film.ts")
			if err := os.WriteFile(path, all, 0o600); err != nil {
				t.Fatal(err)
			}
			a, status := w.upload(t, path)
			black := slices.ContainsFunc(a.Warnings, func(s string) bool {
				return strings.HasPrefix(s, "seconds 20 to 40 could not be decoded: black instead: ") && strings.Contains(s, tt.words)
			})
			if status != 0 || a.State != asset.Ready || !black {
				t.Fatalf("status %d, %s, %q, warnings %q", status, a.State, a.Error, a.Warnings)
			}
			if got := frames(t, w.url(a.HLS)); !slices.Equal(got, []string{"video 320: 1020"}) {
				t.Errorf("%q", got)
			}
			out, err := exec.Command("ffmpeg", "-v", "info", "-nostdin", "-i", w.url(a.HLS), "-vf", "blackdetect=d=1", "-f", "null", "-").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "black_start:20 black_end:40 ") {
				t.Errorf("%v\n%s", err, out)
			}
			if _, errs, status := w.cli(t, "rm", a.ID); status != 0 {
				t.Errorf("rm: %d %s", status, errs)
			}
		})
	}
	if b, err := os.ReadFile(filepath.Join(w.dir, "video", "fret.lock")); err != nil || !strings.Contains(string(b), "libavcodec59") {
		t.Errorf("what the transcoder stands on is not kept: %v\n%s", err, b)
	}
}
