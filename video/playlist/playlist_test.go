package playlist_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/playlist"
	"github.com/fre-engine/fre/video/transcode"
)

// made is an asset of eight seconds in two rungs with two tracks of sound, and its files.
func made(t *testing.T) (*asset.Asset, map[string][]byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.mp4")
	cmd := exec.Command("ffmpeg", strings.Fields("-v error -nostdin -f lavfi -i testsrc2=size=640x360:rate=25:duration=8 -f lavfi -i sine=duration=8 -f lavfi -i sine=f=880:duration=8 -map 0 -map 1 -map 2 -c:v libx264 -c:a aac -metadata:s:a:1 language=deu "+path)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files := map[string][]byte{}
	a := &asset.Asset{Duration: 8}
	grid := media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 50}
	segments := func(made *media.Made, duration func(n int) int64) []asset.Segment {
		var all []asset.Segment
		at := int64(made.Init)
		for n, size := range made.Segments {
			all = append(all, asset.Segment{Offset: at, Size: int64(size), Duration: duration(n), Key: int64(size) / 4})
			at += int64(size)
		}
		return all
	}
	rungs := []media.Rung{{Name: "360p", Width: 640, Height: 360, BitRate: 800_000}, {Name: "180p", Width: 320, Height: 180, BitRate: 300_000}}
	head, bodies, err := transcode.Chunk(path, media.Chunk{Grid: grid, To: -1, Rungs: rungs, Preset: "ultrafast"})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rungs {
		name := "v" + r.Name
		files[name] = bodies[i]
		a.Renditions = append(a.Renditions, &asset.Rendition{
			Name: name, Kind: "video", Codec: "avc1.64001e", Width: r.Width, Height: r.Height, FrameRate: grid.Rate,
			TimeScale: 90000, Init: int64(head.Rungs[i].Init), Segments: segments(&head.Rungs[i], func(int) int64 { return 180000 }),
		})
	}
	for i, language := range []string{"und", "deu"} {
		made, body, err := transcode.Sound(path, media.Sound{Stream: i + 1, Segment: 2})
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("a", i)
		files[name] = body
		a.Renditions = append(a.Renditions, &asset.Rendition{
			Name: name, Kind: "audio", Codec: "mp4a.40.2", SampleRate: 48000, Channels: 2, Language: language,
			TimeScale: 48000, Init: int64(made.Init), Segments: segments(made, func(n int) int64 { return 96256 }),
		})
	}
	return a, files
}

// TestPlay: what the playlists lead to is played whole by FFmpeg, by HLS and by DASH.
func TestPlay(t *testing.T) {
	a, files := made(t)
	mux := http.NewServeMux()
	text := func(path string, b []byte, err error) {
		if err != nil {
			t.Fatal(err)
		}
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b) })
	}
	text("/hls/master.m3u8", playlist.Master(a, playlist.MP4), nil)
	manifest, err := playlist.DASH(a)
	text("/dash/manifest.mpd", manifest, err)
	for _, r := range a.Renditions {
		b, err := playlist.Media(a, r, playlist.MP4)
		text("/hls/"+r.Name+".m3u8", b, err)
		if r.Kind == "video" {
			b, err = playlist.Keys(r)
			text("/hls/"+r.Name+"-keys.m3u8", b, err)
		}
	}
	mux.HandleFunc("/cmaf/{name}/{segment}", func(w http.ResponseWriter, q *http.Request) {
		r, file := a.Rendition(q.PathValue("name")), files[q.PathValue("name")]
		if q.PathValue("segment") == "init.mp4" {
			_, _ = w.Write(file[:r.Init])
			return
		}
		n, err := strconv.Atoi(strings.TrimSuffix(q.PathValue("segment"), ".m4s"))
		if err != nil || n < 1 || n > len(r.Segments) {
			http.NotFound(w, q)
			return
		}
		s := r.Segments[n-1]
		_, _ = w.Write(file[s.Offset : s.Offset+s.Size])
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, path := range []string{"/hls/master.m3u8", "/dash/manifest.mpd"} {
		out, err := exec.Command("ffprobe", "-v", "error", "-count_frames", "-show_entries", "stream=codec_name,width,nb_read_frames", "-of", "csv=p=0", server.URL+path).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", path, err, out)
		}
		got := map[string]int{}
		for line := range strings.FieldsSeq(string(out)) {
			got[line]++
		}
		if got["h264,640,200"] == 0 || got["h264,320,200"] == 0 {
			t.Errorf("%s: %s", path, out)
		}
		t.Logf("%s:\n%s", path, out)
	}
	t.Logf("%s\n%s", playlist.Master(a, playlist.MP4), manifest)
}
