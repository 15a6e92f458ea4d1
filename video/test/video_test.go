// Package video_test runs fre-video with an engine, as users do: the command line uploads videos,
// sandboxes transcode them, FFmpeg plays them over HTTP.
package video_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/videotest/stream"
)

// patience bounds the waiting of a test; no measurement depends on it.
const patience = 10 * time.Minute

// world is an engine and a video service.
type world struct {
	dir    string
	engine *testdaemon.Daemon
	cmd    *exec.Cmd     // fre-video serve
	ended  chan struct{} // closed with it
	addr   string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	w := &world{dir: daemontest.Dir(t)}
	var err error
	if w.addr, err = testdaemon.FreeAddress(); err != nil {
		t.Fatal(err)
	}
	w.startEngine(t)
	w.startService(t)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		w.end(t, unix.SIGTERM)
		daemontest.Stop(t, w.engine)
	})
	return w
}

func (w *world) startEngine(t *testing.T) {
	t.Helper()
	w.engine = daemontest.Start(t, testdaemon.Config{State: filepath.Join(w.dir, "engine"), Socket: filepath.Join(w.dir, "sock"), Log: t.Output()})
}

// program returns the path of bin/fre-video, beside bin/fre.
func program(t *testing.T) string {
	t.Helper()
	return filepath.Join(filepath.Dir(daemontest.Bin(t)), "fre-video")
}

func (w *world) startService(t *testing.T, args ...string) {
	t.Helper()
	w.cmd = exec.Command(program(t), append([]string{"serve", "--state", filepath.Join(w.dir, "video"), "--engine", filepath.Join(w.dir, "sock"), "--listen", w.addr, "--preset", "ultrafast", "--import", w.dir}, args...)...)
	w.cmd.Stderr = t.Output()
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.ended = make(chan struct{})
	go func() {
		_ = w.cmd.Wait() // ProcessState has the status
		close(w.ended)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := testdaemon.Until(ctx, func() error {
		select {
		case <-w.ended:
			t.Fatal("fre-video serve has ended")
		default:
		}
		a, err := http.Get(w.url("/healthz"))
		if err == nil {
			err = a.Body.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// end ends the service with a signal, and waits.
func (w *world) end(t *testing.T, sig unix.Signal) {
	t.Helper()
	if err := w.cmd.Process.Signal(sig); err != nil {
		t.Error(err)
	}
	select {
	case <-w.ended:
	case <-time.After(patience):
		t.Error("fre-video serve does not end")
		_ = w.cmd.Process.Kill()
		<-w.ended
	}
	if state := w.cmd.ProcessState; sig == unix.SIGTERM && !state.Success() {
		t.Errorf("fre-video serve: %v", state)
	}
}

func (w *world) url(path string) string { return "http://" + w.addr + path }

// cli runs a command of fre-video and returns its output and its exit status.
func (w *world) cli(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t), args...)
	cmd.Env = append(os.Environ(), "FRE_VIDEO_URL="+w.url(""))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// upload uploads a file with flags of the command, and waits for the asset's last state.
func (w *world) upload(t *testing.T, path string, flags ...string) (asset.View, int) {
	t.Helper()
	out, errs, status := w.cli(t, append([]string{"upload", "--wait", path}, flags...)...)
	var a asset.View
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		t.Fatalf("upload %s: status %d, %v\n%s%s", path, status, err, out, errs)
	}
	return a, status
}

// clip makes a video with the ffmpeg program.
func clip(t *testing.T, path, args string) string {
	t.Helper()
	cmd := exec.Command("ffmpeg", append(strings.Fields("-v error -nostdin "+args), path)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// frames returns ffprobe's number of pictures or packets of each stream at an address, as "video
// 640: 120".
func frames(t *testing.T, url string) []string {
	t.Helper()
	return framesAt(t, "error", url)
}

// framesAt is frames with a level of messages; a message of ffprobe at that level fails the test.
func framesAt(t *testing.T, level, url string) []string {
	t.Helper()
	cmd := exec.Command("ffprobe", "-v", level, "-count_frames", "-show_entries", "stream=codec_type,width,nb_read_frames", "-of", "json", url)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil || errs.Len() > 0 {
		t.Errorf("ffprobe %s: %v\n%s", url, err, &errs)
	}
	var found struct {
		Streams []struct {
			Type   string `json:"codec_type"`
			Width  int    `json:"width"`
			Frames string `json:"nb_read_frames"`
		} `json:"streams"`
	}
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, s := range found.Streams {
		if s.Type == "video" {
			all = append(all, fmt.Sprintf("%s %d: %s", s.Type, s.Width, s.Frames))
		} else {
			all = append(all, s.Type)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestVideo runs all its parts on one engine, since the base environment takes the longest.
func TestVideo(t *testing.T) {
	w := newWorld(t)
	t.Run("uploads", w.uploads)
	t.Run("page", w.page)
	t.Run("colours", w.colours)
	t.Run("codecs", w.codecs)
	t.Run("players", w.players)
	t.Run("crash", w.crash)
	t.Run("flaky", w.flaky)
}

// uploads: uploaded videos are served to players. A file without a video fails with a reason, and
// can be inspected and removed.
func (w *world) uploads(t *testing.T) {
	in := t.TempDir()
	const picture, sound = "-f lavfi -i testsrc2=size=640x360:rate=25:duration=10", "-f lavfi -i sine=duration=10"
	whole := clip(t, filepath.Join(in, "whole.mp4"), picture+" "+sound+" -c:v libx264 -preset ultrafast -bf 2 -c:a aac")
	for _, tt := range []struct {
		name, path string
		want       []string
	}{
		{"picture and sound", whole, []string{"audio", "video 426: 250", "video 640: 250"}},
		{"no sound", clip(t, filepath.Join(in, "silent.mkv"), picture+" -c:v libx264 -preset ultrafast"), []string{"video 426: 250", "video 640: 250"}},
		{"no picture", clip(t, filepath.Join(in, "sound.ogg"), sound+" -c:a libvorbis"), []string{"audio"}},
		{"another container and codec, odd in size", clip(t, filepath.Join(in, "odd.webm"), "-f lavfi -i testsrc2=size=640x480:rate=10:duration=5 -vf format=yuv444p,crop=321:243 -c:v libvpx-vp9 -deadline realtime -cpu-used 8"), []string{"video 320: 50"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, status := w.upload(t, tt.path)
			if status != 0 || a.State != asset.Ready || a.Name != filepath.Base(tt.path) || len(a.Error) > 0 {
				t.Fatalf("status %d, %+v", status, a.Asset)
			}
			for _, at := range []string{a.HLS, a.HLSTS, a.DASH} {
				got := frames(t, w.url(at))
				if at == a.DASH { // FFmpeg's demuxer drops pictures shown after the last packet's decoding time
					for i := range got {
						got[i] = strings.Replace(got[i], ": 249", ": 250", 1)
					}
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("%s: %q, want %q", at, got, tt.want)
				}
			}
			stream.Check(t, w.url(strings.TrimSuffix(a.HLS, "/hls/master.m3u8")))
			if _, errs, status := w.cli(t, "rm", a.ID); status != 0 {
				t.Errorf("rm: %d %s", status, errs)
			}
			if _, _, status := w.cli(t, "inspect", a.ID); status != 4 {
				t.Errorf("inspect what is gone: %d", status)
			}
		})
	}

	t.Run("subtitles, tracks of sound, thumbnails", func(t *testing.T) {
		words := filepath.Join(in, "words.srt")
		if err := os.WriteFile(words, []byte("1\n00:00:01,000 --> 00:00:03,500\nGood <i>morning</i> & welcome\n\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		a, _ := w.upload(t, clip(t, filepath.Join(in, "all.mkv"), picture+" "+sound+" "+sound+" -i "+words+" -map 0 -map 1 -map 2 -map 3 -c:v libx264 -preset ultrafast -c:a aac -c:s srt -metadata:s:a:1 language=deu -metadata:s:s:0 language=eng"))
		if len(a.Warnings) > 0 || len(a.Of("audio")) != 2 || a.Of("audio")[1].Language != "de" || len(a.Of("text")) != 1 || a.Thumbnails == nil || a.Thumbnails.Count != 10 || a.Duration != 10 {
			t.Fatalf("%+v, %+v", a.Asset, a.Thumbnails)
		}
		get := func(path string) string {
			t.Helper()
			got, err := http.Get(w.url(path))
			if err != nil {
				t.Fatal(err)
			}
			defer got.Body.Close()
			b, err := io.ReadAll(got.Body)
			if err != nil || got.StatusCode != http.StatusOK {
				t.Errorf("%s: %s, %v", path, got.Status, err)
			}
			return string(b)
		}
		base := strings.TrimSuffix(a.HLS, "/hls/master.m3u8")
		if master := get(a.HLS); !strings.Contains(master, `TYPE=SUBTITLES`) || !strings.Contains(master, `LANGUAGE="de"`) {
			t.Error(master)
		}
		if text := get(base + "/text/t0.vtt"); !strings.Contains(text, "00:00:01.000 --> 00:00:03.500\nGood <i>morning</i> &amp; welcome\n") {
			t.Errorf("%q", text)
		}
		if cues := get(a.ThumbnailsVTT); strings.Count(cues, "thumbs/0.jpg#xywh=") != 10 {
			t.Error(cues)
		}
		if sheet := get(base + "/thumbs/0.jpg"); !strings.HasPrefix(sheet, "\xff\xd8\xff") {
			t.Errorf("a sheet begins with %q", sheet[:min(8, len(sheet))])
		}
		stream.Check(t, w.url(base))
		// FFmpeg's demuxer drops subtitles.
		if got, want := frames(t, w.url(a.HLS)), []string{"audio", "video 426: 250", "video 640: 250"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if _, errs, status := w.cli(t, "rm", a.ID); status != 0 {
			t.Errorf("rm: %d %s", status, errs)
		}
	})

	for _, protection := range []string{"aes-128", "cbcs"} {
		t.Run(protection, func(t *testing.T) {
			a, status := w.upload(t, whole, "--protect", protection)
			if status != 0 || string(a.Protection) != protection || a.Secret != nil || (a.DASH == "") != (protection == "aes-128") {
				t.Fatalf("status %d, %+v", status, a)
			}
			// TestVideo/players plays DASH with Clear Key.
			for _, at := range []string{a.HLS, a.HLSTS} {
				level := "error"
				if protection == "cbcs" && at == a.HLSTS { // it complains of sound that it has not decrypted yet
					level = "fatal"
				}
				if got, want := framesAt(t, level, w.url(at)), []string{"audio", "video 426: 250", "video 640: 250"}; !slices.Equal(got, want) {
					t.Errorf("%s: %q, want %q", at, got, want)
				}
			}
			if got, err := http.Get(w.url(strings.TrimSuffix(a.HLS, "/hls/master.m3u8") + "/cmaf/" + a.Renditions[0].Name + ".mp4")); err != nil || got.StatusCode != 404 {
				t.Errorf("the file as it is stored: %v, %v", got, err)
			} else if err := got.Body.Close(); err != nil {
				t.Error(err)
			}
			if _, errs, status := w.cli(t, "rm", a.ID); status != 0 {
				t.Errorf("rm: %d %s", status, errs)
			}
		})
	}

	write := func(name string, b []byte) string {
		t.Helper()
		path := filepath.Join(in, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bytesOf, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	if _, errs, status := w.cli(t, "upload", write("nothing.mp4", nil)); status != 1 || !strings.Contains(errs, "the source is empty") {
		t.Errorf("an empty file: status %d, %s", status, errs)
	}
	for _, tt := range []struct{ name, path, words string }{
		{"text", write("text.mp4", bytes.Repeat([]byte("no video\n"), 1000)), "Invalid data"},
		{"without its index", write("torn.mp4", bytesOf[:len(bytesOf)/2]), "Invalid data"},
		{"a playlist of others' files", write("list.m3u8", []byte("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/passwd\n#EXT-X-ENDLIST\n")), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, status := w.upload(t, tt.path)
			if status != 5 || a.State != asset.Failed || a.Error == "" || !strings.Contains(a.Error, tt.words) {
				t.Errorf("status %d, %+v", status, a.Asset)
			}
			if out, _, status := w.cli(t, "inspect", a.ID); status != 0 || !strings.Contains(out, `"failed"`) {
				t.Errorf("inspect: %d %s", status, out)
			}
			if got, err := http.Get(w.url("/assets/" + a.ID + "/hls/master.m3u8")); err != nil || got.StatusCode != 404 {
				t.Errorf("served: %v, %v", got, err)
			} else if err := got.Body.Close(); err != nil {
				t.Error(err)
			}
			if _, errs, status := w.cli(t, "rm", a.ID); status != 0 {
				t.Errorf("rm: %d %s", status, errs)
			}
		})
	}
	if left, err := filepath.Glob(filepath.Join(w.dir, "video", "assets", "*")); err != nil || len(left) > 0 {
		t.Errorf("left on disk: %v, %v", left, err)
	}

	t.Run("by path", func(t *testing.T) {
		if err := os.Link(whole, filepath.Join(w.dir, "import.mp4")); err != nil {
			b, rerr := os.ReadFile(whole)
			if rerr = errors.Join(rerr, os.WriteFile(filepath.Join(w.dir, "import.mp4"), b, 0o600)); rerr != nil {
				t.Fatal(err, rerr)
			}
		}
		for path, want := range map[string]int{"import.mp4": 201, "../etc/passwd": 422, "/etc/passwd": 422, "none": 422, "video": 422} {
			a, err := http.Post(w.url("/v1/assets"), "application/json", strings.NewReader(fmt.Sprintf(`{"path": %q}`, path)))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(a.Body)
			if err = errors.Join(err, a.Body.Close()); err != nil || a.StatusCode != want {
				t.Errorf("%s: %d %s %v", path, a.StatusCode, b, err)
			}
			if a.StatusCode == 201 {
				if _, errs, status := w.cli(t, "rm", filepath.Base(a.Header.Get("Location"))); status != 0 { // while it is worked on
					t.Errorf("rm: %d %s", status, errs)
				}
			}
		}
	})
}

// codecs: an upload may choose its codec. ffmpeg plays every rung whole and without a message, and
// the playlists name the codec.
func (w *world) codecs(t *testing.T) {
	path := clip(t, filepath.Join(t.TempDir(), "in.mp4"), "-f lavfi -i testsrc2=size=640x360:rate=25:duration=30 -f lavfi -i sine=duration=30 -c:v libx264 -preset ultrafast -c:a aac")
	for codec, want := range map[string]string{"hevc": "hvc1.1.6.L63.90,mp4a.40.2", "av1": "av01.0.01M.08,mp4a.40.2"} {
		a, status := w.upload(t, path, "--codec", codec)
		if status != 0 || a.Codec != codec || a.Plan == nil || a.Plan.Rungs[0].Codec != codec {
			t.Fatalf("%s: status %d, %+v", codec, status, a.Asset)
		}
		for _, at := range []string{a.HLS, a.DASH} {
			got := frames(t, w.url(at))
			for i := range got { // see uploads
				if at == a.DASH {
					got[i] = regexp.MustCompile(": 74[5-9]$").ReplaceAllString(got[i], ": 750")
				}
			}
			if !slices.Equal(got, []string{"audio", "video 426: 750", "video 640: 750"}) {
				t.Errorf("%s: %q", at, got)
			}
			b, err := http.Get(w.url(at))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(b.Body)
			if err = errors.Join(err, b.Body.Close()); err != nil || !strings.Contains(string(text), want[:9]) || at == a.HLS && !strings.Contains(string(text), want) {
				t.Errorf("%v, %s", err, text)
			}
		}
		if out, err := exec.Command("ffmpeg", "-v", "warning", "-nostdin", "-i", w.url(a.HLS), "-map", "0:v", "-map", "0:a", "-f", "null", "-").CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", codec, err, out)
		}
		if _, errs, status := w.cli(t, "rm", a.ID); status != 0 {
			t.Errorf("rm: %d %s", status, errs)
		}
	}
	if _, errs, status := w.cli(t, "upload", path, "--codec", "vp6"); status != 2 || !strings.Contains(errs, "h264, hevc, av1") {
		t.Errorf("%d %s", status, errs)
	}
}

// crash: after kill -9 of the service and of the engine, work continues: no finished chunk is made
// again, and the served asset is complete.
func (w *world) crash(t *testing.T) {
	path := clip(t, filepath.Join(t.TempDir(), "long.mp4"), "-f lavfi -i testsrc2=size=320x180:rate=25:duration=120 -f lavfi -i sine=duration=120 -c:v libx264 -preset ultrafast -c:a aac")
	out, errs, status := w.cli(t, "upload", path)
	var a asset.View
	if err := json.Unmarshal([]byte(out), &a); err != nil || status != 0 {
		t.Fatalf("upload: status %d, %v, %s", status, err, errs)
	}
	dir := filepath.Join(w.dir, "video", "assets", a.ID)
	finished := func() map[string]time.Time {
		files, err := filepath.Glob(filepath.Join(dir, "jobs", "chunk-?"))
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]time.Time{}
		for _, f := range files {
			if info, err := os.Stat(f); err == nil {
				found[f] = info.ModTime()
			}
		}
		return found
	}
	until := func(n int) map[string]time.Time {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := testdaemon.Until(ctx, func() error {
			if f := finished(); len(f) < n {
				return fmt.Errorf("%d chunks", len(f))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return finished()
	}
	same := func(before map[string]time.Time) {
		t.Helper()
		now := finished()
		for f, made := range before {
			if at, ok := now[f]; ok && !at.Equal(made) {
				t.Errorf("%s was made again", f)
			}
		}
	}
	before := until(1)
	w.end(t, unix.SIGKILL)
	w.startService(t)
	same(before)
	before = until(2)
	w.engine.Kill()
	w.startEngine(t)
	same(before)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := testdaemon.Until(ctx, func() error {
		same(before)
		out, _, _ := w.cli(t, "inspect", a.ID)
		if err := json.Unmarshal([]byte(out), &a); err != nil {
			return err
		}
		if a.State == asset.Working {
			return errors.New("it is still being worked on")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if a.State != asset.Ready {
		t.Fatalf("%+v", a.Asset)
	}
	stream.Check(t, w.url(strings.TrimSuffix(a.HLS, "/hls/master.m3u8")))
	if got := frames(t, w.url(a.HLS)); !slices.Equal(got, []string{"audio", "video 320: 3000"}) {
		t.Errorf("%q", got)
	}
}
