package ffmpeg_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/video/ffmpeg"
)

func TestMain(m *testing.M) {
	if codec := os.Getenv(policiesOf); codec != "" {
		if err := printPolicies(codec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	ffmpeg.Check = true
	os.Exit(m.Run())
}

// checkLeaks fails the test for objects of FFmpeg that the test does not release.
func checkLeaks(t *testing.T) {
	t.Helper()
	before := ffmpeg.Live()
	t.Cleanup(func() {
		if after := ffmpeg.Live(); after != before {
			t.Errorf("live before %+v, after %+v", before, after)
		}
	})
}

// clip makes a file with the ffmpeg program.
func clip(t *testing.T, name string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("ffmpeg", append(append([]string{"-v", "error", "-nostdin"}, args...), path)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return path
}

// each decodes a stream and calls f with each frame.
func each(t *testing.T, in *ffmpeg.Input, stream int, f func(*ffmpeg.Frame)) {
	t.Helper()
	d, err := ffmpeg.NewDecoder(in, stream, ffmpeg.DecoderOptions{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p, frame := ffmpeg.NewPacket(), ffmpeg.NewFrame()
	defer p.Close()
	defer frame.Close()
	for end := false; !end; {
		next := p
		switch err := in.Read(p); {
		case errors.Is(err, io.EOF):
			next, end = nil, true
		case err != nil:
			t.Fatal(err)
		case p.Stream() != stream:
			continue
		}
		if err := d.Send(next); err != nil {
			t.Fatal(err)
		}
		for {
			err := d.Receive(frame)
			if errors.Is(err, ffmpeg.ErrAgain) || errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			f(frame)
		}
	}
}

// TestTranscode: a clip is decoded, scaled twice and encoded; the ffmpeg program decodes the
// result.
func TestTranscode(t *testing.T) {
	checkLeaks(t)
	path := clip(t, "in.mp4", "-f", "lavfi", "-i", "testsrc=size=320x240:rate=25:duration=2", "-f", "lavfi", "-i", "sine=duration=2", "-c:v", "libx264", "-c:a", "aac")
	in, err := ffmpeg.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	s := in.Streams()
	if len(s) != 2 || s[0].Kind != ffmpeg.Video || s[0].Codec != "h264" || s[0].Width != 320 || s[0].Height != 240 || s[0].FrameRate.Float() != 25 ||
		s[1].Kind != ffmpeg.Audio || s[1].SampleRate != 44100 || s[1].Channels != 1 {
		t.Errorf("%+v", s)
	}
	if d := in.Duration(); d < 1.9 || d > 2.2 {
		t.Errorf("it takes %v seconds", d)
	}
	g, err := ffmpeg.NewGraph(fmt.Sprintf("buffer=video_size=320x240:pix_fmt=yuv420p:time_base=%s,split=2[a][b];[a]scale=160:120,buffersink;[b]scale=64:48,buffersink", s[0].TimeBase), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	var files [2]bytes.Buffer
	var encoders [2]*ffmpeg.Encoder
	for i, size := range [][2]int{{160, 120}, {64, 48}} {
		encoders[i], err = ffmpeg.NewEncoder(ffmpeg.EncoderOptions{
			Codec: "libx264", TimeBase: s[0].TimeBase, Threads: 1, Width: size[0], Height: size[1], PixelFormat: "yuv420p", FrameRate: s[0].FrameRate,
			Options: map[string]string{"preset": "ultrafast", "x264-params": "annexb=1"},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer encoders[i].Close()
		files[i].Write(encoders[i].Header())
	}
	scaled, p := ffmpeg.NewFrame(), ffmpeg.NewPacket()
	defer scaled.Close()
	defer p.Close()
	packets := [2]int{}
	encode := func(i int, f *ffmpeg.Frame) {
		if err := encoders[i].Send(f); err != nil {
			t.Fatal(err)
		}
		for encoders[i].Receive(p) == nil {
			packets[i]++
			files[i].Write(p.Data())
		}
	}
	frames := 0
	pull := func() {
		for i := range encoders {
			for g.Receive(i, scaled) == nil {
				scaled.ForceKey(false)
				encode(i, scaled)
			}
		}
	}
	each(t, in, 0, func(f *ffmpeg.Frame) {
		frames++
		if len(f.Plane(0)) < 320*240 || f.Stride(0) < 320 || f.Width() != 320 {
			t.Errorf("a frame of %d bytes", len(f.Plane(0)))
		}
		if err := g.Send(f); err != nil {
			t.Fatal(err)
		}
		pull()
	})
	if err := g.End(int64(s[0].TimeBase.Den) * 2); err != nil {
		t.Fatal(err)
	}
	pull()
	for i := range encoders {
		encode(i, nil)
	}
	if frames != 50 || packets != [2]int{50, 50} {
		t.Errorf("%d frames, %d packets; want 50", frames, packets)
	}
	for i, want := range []string{"160x120", "64x48"} {
		cmd := exec.Command("ffprobe", "-v", "error", "-count_frames", "-show_entries", "stream=width,height,nb_read_frames", "-of", "csv=p=0:s=x", "-f", "h264", "-")
		cmd.Stdin = &files[i]
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want+"x50" {
			t.Errorf("ffprobe says %q, %v", got, err)
		}
	}
}

// TestViews: Unref makes the views of a packet's data unusable.
func TestViews(t *testing.T) {
	checkLeaks(t)
	in, err := ffmpeg.Open(clip(t, "in.wav", "-f", "lavfi", "-i", "sine=duration=1"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	p := ffmpeg.NewPacket()
	defer p.Close()
	if err := in.Read(p); err != nil {
		t.Fatal(err)
	}
	view := p.Data()
	before := bytes.Clone(view)
	p.Unref()
	p.Unref()
	if bytes.Equal(view, before) {
		t.Error("who reads too late does not notice")
	}
	defer func() {
		if recover() == nil {
			t.Error("Data after Unref does not panic")
		}
	}()
	_ = p.Data()
}

// TestBroken: a file without media is refused with the libraries' error, and leaves no objects.
func TestBroken(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	whole, err := os.ReadFile(clip(t, "in.mp4", "-f", "lavfi", "-i", "testsrc=duration=1"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"empty.mp4": nil, "text.mp4": []byte("no film"), "truncated.mp4": whole[:len(whole)/3],
		"list.m3u8":  []byte("#EXTM3U\n#EXTINF:1,\n/etc/passwd\n"),
		"concat.txt": []byte("ffconcat version 1.0\nfile /etc/passwd\n"),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		in, err := ffmpeg.Open(path)
		var e *ffmpeg.Error
		if !errors.As(err, &e) || err.Error() == "" {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			in.Close()
		}
	}
	if _, err := ffmpeg.Open(filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := ffmpeg.Open("http://127.0.0.1:1/x.mp4"); err == nil {
		t.Error("a film from the network is opened")
	}
	if _, err := ffmpeg.NewEncoder(ffmpeg.EncoderOptions{Codec: "none"}); err == nil {
		t.Error("an encoder that there is not")
	}
	if _, err := ffmpeg.NewEncoder(ffmpeg.EncoderOptions{
		Codec: "libx264", TimeBase: ffmpeg.Rational{1, 25}, Width: 64, Height: 64, PixelFormat: "yuv420p", Options: map[string]string{"presett": "fast"},
	}); err == nil || !strings.Contains(err.Error(), "presett") {
		t.Errorf("an option that there is not: %v", err)
	}
	if _, err := ffmpeg.NewGraph("nonsense", 1); err == nil {
		t.Error("a filter that there is not")
	}
}

// TestEncoderKeepsScheduling: an AV1 encoder, opened by root, leaves no real-time thread, which would
// starve the machine and pass the policy on to programs. A child opens the encoder, because SVT-AV1
// waits for ever if it is closed before its first frame.
func TestEncoderKeepsScheduling(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), policiesOf+"=libsvtav1")
	out, err := cmd.Output()
	if policies := strings.Fields(string(out)); err != nil || len(policies) < 2 || len(slices.Compact(policies)) != 1 || policies[0] != strconv.Itoa(unix.SCHED_NORMAL) {
		t.Errorf("the policies of the threads are %s, %v", out, err)
	}
}

// policiesOf, in the environment, has the test program print the scheduling policy of each of its
// threads while the named encoder is open.
const policiesOf = "FRE_TEST_POLICIES_OF"

func printPolicies(codec string) error {
	_, err := ffmpeg.NewEncoder(ffmpeg.EncoderOptions{
		Codec: codec, TimeBase: ffmpeg.Rational{Num: 1, Den: 25}, Width: 64, Height: 64, FrameRate: ffmpeg.Rational{Num: 25, Den: 1},
		PixelFormat: "yuv420p", Colour: ffmpeg.Colour{Primaries: 1, Transfer: 1, Matrix: 1}, Options: map[string]string{"preset": "12"},
	})
	if err != nil {
		return err
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			return err
		}
		attr, err := unix.SchedGetAttr(tid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return err
		}
		fmt.Println(attr.Policy)
	}
	return nil
}
