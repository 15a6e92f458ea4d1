package playlist_test

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/playlist"
	"github.com/fre-engine/fre/video/videotest"
)

// TestPlay: what the playlists lead to is played whole by FFmpeg, by HLS and by DASH.
func TestPlay(t *testing.T) {
	a, files := videotest.Asset(t)
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
