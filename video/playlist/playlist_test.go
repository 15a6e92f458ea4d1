package playlist_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/playlist"
	"github.com/fre-engine/fre/video/videotest"
	"github.com/fre-engine/fre/video/videotest/stream"
)

// TestPlay: FFmpeg plays the whole asset from the playlists, by HLS and by DASH, and independent
// readers find the playlists valid.
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
	stream.Check(t, server.URL)
}

// TestHostileTracks: for any names of a source's tracks, playlists and manifests are well formed
// and point only to the asset.
func TestHostileTracks(t *testing.T) {
	names := []string{
		"", "und", "deu", "deu", "en-GB", "not a language", `x",URI="http://example.org/`, "a\nhttp://example.org/", "\"", "<&>", "\xff\xfe", strings.Repeat("l", 300), "\u2028", "Track 1", "Track 2",
	}
	segments := []asset.Segment{{Offset: 700, Size: 1000, Duration: 96000}, {Offset: 1700, Size: 900, Duration: 90000}}
	a := &asset.Asset{Duration: 3.875}
	for i, name := range names {
		for j, title := range []string{"", name, "same"} {
			a.Renditions = append(a.Renditions,
				&asset.Rendition{Name: fmt.Sprintf("a%d-%d", i, j), Kind: "audio", Codec: "mp4a.40.2", SampleRate: 48000, Channels: 2, Language: name, Title: title, Default: true, TimeScale: 48000, Init: 700, Segments: segments},
				&asset.Rendition{Name: fmt.Sprintf("t%d-%d", i, j), Kind: "text", Language: name, Title: title, Default: true, TimeScale: 1000, Segments: []asset.Segment{{Size: 10, Duration: 3875}}})
		}
	}
	for _, picture := range []bool{false, true} {
		if picture {
			a.Renditions = append(a.Renditions, &asset.Rendition{
				Name: "v180p", Kind: "video", Codec: "avc1.64001e", Width: 320, Height: 180, FrameRate: media.Fraction{Num: 30000, Den: 1001}, TimeScale: 90000, Init: 700,
				Segments: []asset.Segment{{Offset: 700, Size: 1000, Duration: 180180, Key: 600}, {Offset: 1700, Size: 900, Duration: 168168, Key: 600}},
			})
		}
		master := playlist.Master(a, playlist.MP4)
		stream.CheckMaster(t, master)
		for line := range strings.Lines(string(master)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#EXT") && a.Rendition(strings.TrimSuffix(line, ".m3u8")) == nil {
				t.Errorf("the master playlist leads to %q", line)
			}
		}
		manifest, err := playlist.DASH(a)
		if err != nil {
			t.Fatal(err)
		}
		stream.CheckManifest(t, manifest)
	}
}

// TestMainSound: the default track is the source's default track, at any position among the tracks.
func TestMainSound(t *testing.T) {
	for want, defaults := range [][]bool{{false, false}, {false, true, true}, {false, false, true}} {
		a := &asset.Asset{Duration: 2}
		for i, d := range defaults {
			a.Renditions = append(a.Renditions, &asset.Rendition{
				Name: fmt.Sprintf("a%d", i), Kind: "audio", Codec: "mp4a.40.2", SampleRate: 48000, Channels: 2, Language: []string{"de", "en", "fr"}[i], Default: d,
				TimeScale: 48000, Init: 700, Segments: []asset.Segment{{Offset: 700, Size: 1000, Duration: 96000}},
			})
		}
		manifest, err := playlist.DASH(a)
		if err != nil {
			t.Fatal(err)
		}
		for i, set := range strings.Split(string(manifest), "<AdaptationSet")[1:] {
			if strings.Contains(set, `value="main"`) != (i == want) {
				t.Errorf("defaults %v: track %d is\n%s", defaults, i, set)
			}
		}
		for line := range strings.Lines(string(playlist.Master(a, playlist.MP4))) {
			if strings.HasPrefix(line, "#EXT-X-MEDIA") && strings.Contains(line, "DEFAULT=YES") != strings.Contains(line, fmt.Sprintf(`URI="a%d.m3u8"`, want)) {
				t.Errorf("defaults %v: %s", defaults, line)
			}
		}
	}
}

// TestTargetDuration: all playlists of pictures and sound have the same target duration (RFC 8216,
// 6.2.4), the length of the longest segment of all: for a clip whose sound ends later, and for
// pictures ten seconds apart.
func TestTargetDuration(t *testing.T) {
	for _, tt := range []struct {
		picture, sound, text float64 // seconds of the longest segment
		want                 int
	}{{3, 3.6, 10, 4}, {10, 4.01, 0, 10}, {4.004, 3.989, 4, 4}, {0.04, 0.3, 0, 1}, {0, 2.6, 7, 3}} {
		a := &asset.Asset{Duration: 20}
		add := func(name, kind string, seconds float64) {
			if seconds > 0 {
				a.Renditions = append(a.Renditions, &asset.Rendition{
					Name: name, Kind: kind, Codec: "avc1.64001e", Width: 320, Height: 180, FrameRate: media.Fraction{Num: 25, Den: 1}, TimeScale: 90000, Init: 700,
					Segments: []asset.Segment{{Offset: 700, Size: 1000, Duration: int64(90000 * seconds), Key: 600}, {Offset: 1700, Size: 1000, Duration: 90, Key: 600}},
				})
			}
		}
		add("v180p", "video", tt.picture)
		add("a0", "audio", tt.sound)
		add("t0", "text", tt.text)
		for _, r := range a.Renditions {
			for _, form := range []playlist.Form{playlist.MP4, playlist.TS} {
				b, err := playlist.Media(a, r, form)
				if want := fmt.Sprintf("#EXT-X-TARGETDURATION:%d\n", tt.want); err != nil || r.Kind != "text" && !strings.Contains(string(b), want) {
					t.Errorf("%+v: %v, %s", tt, err, b)
				}
			}
		}
	}
}

// TestRanges: renditions with HDR stand beside renditions for every screen, and the playlists mark
// each; without HDR the playlists mark none.
func TestRanges(t *testing.T) {
	sdr := media.Colour{Primaries: media.BT709, Transfer: media.BT709, Matrix: media.BT709}
	for _, tt := range []struct {
		colours []media.Colour
		want    []string
	}{
		{[]media.Colour{sdr, sdr}, nil},
		{[]media.Colour{sdr, {Primaries: media.BT2020, Transfer: media.PQ, Matrix: media.BT2020}}, []string{"SDR", "PQ", "SDR", "PQ"}},
		{[]media.Colour{sdr, {Primaries: media.BT2020, Transfer: media.HLG, Matrix: media.BT2020}}, []string{"SDR", "HLG", "SDR", "HLG"}},
	} {
		a := &asset.Asset{Duration: 2}
		for i, c := range tt.colours {
			a.Renditions = append(a.Renditions, &asset.Rendition{
				Name: fmt.Sprintf("v%d", i), Kind: "video", Codec: "hvc1.2.4.L93.90", Width: 320, Height: 180, FrameRate: media.Fraction{Num: 25, Den: 1}, Colour: c, TimeScale: 90000, Init: 700,
				Segments: []asset.Segment{{Offset: 700, Size: 1000, Duration: 180000, Key: 600}},
			})
		}
		master := playlist.Master(a, playlist.MP4)
		stream.CheckMaster(t, master)
		var got []string
		for _, rest := range strings.Split(string(master), "VIDEO-RANGE=")[1:] {
			got = append(got, strings.FieldsFunc(rest, func(r rune) bool { return r == ',' || r == '\n' })[0])
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%v: %s", got, master)
		}
		manifest, err := playlist.DASH(a)
		if err != nil {
			t.Fatal(err)
		}
		stream.CheckManifest(t, manifest)
		sets := strings.Split(string(manifest), "<AdaptationSet")[1:]
		if want := max(1, len(tt.want)/2); len(sets) != want || want == 2 && (strings.Contains(sets[0], "cicp:TransferCharacteristics") || !strings.Contains(sets[1], fmt.Sprintf(`cicp:TransferCharacteristics" value="%d"`, tt.colours[1].Transfer))) {
			t.Errorf("%s", manifest)
		}
	}
}

// TestShort: an asset of any length, even of a single picture, has valid durations (xs:duration,
// XML Schema part 2, 3.2.6) and a target duration.
func TestShort(t *testing.T) {
	duration := regexp.MustCompile(`="PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d{1,2}(?:\.\d+)?)S)?"`)
	for _, seconds := range []float64{1. / 240, 1. / 60, 0.04, 0.1, 0.2, 0.999999, 1, 1.5, 59.96, 60, 3600.25} {
		r := &asset.Rendition{
			Name: "v180p", Kind: "video", Codec: "avc1.64001e", Width: 320, Height: 180, FrameRate: media.Fraction{Num: 25, Den: 1}, TimeScale: 90000, Init: 700,
			Segments: []asset.Segment{{Offset: 700, Size: 1000000, Duration: int64(90000 * seconds), Key: 600}},
		}
		a := &asset.Asset{Duration: seconds, Renditions: []*asset.Rendition{r}}
		manifest, err := playlist.DASH(a)
		if err != nil {
			t.Fatal(err)
		}
		stream.CheckManifest(t, manifest)
		_, rest, _ := strings.Cut(string(manifest), "mediaPresentationDuration")
		m := duration.FindStringSubmatch(rest)
		got := 0.0
		for i, unit := range []float64{3600, 60, 1} {
			if m != nil && m[i+1] != "" {
				n, err := strconv.ParseFloat(m[i+1], 64)
				if err != nil {
					t.Fatal(err)
				}
				got += n * unit
			}
		}
		if math.Abs(got-seconds) > 1e-5 {
			t.Errorf("%v seconds are %v in\n%s", seconds, got, manifest)
		}
		for name, b := range map[string]func() ([]byte, error){
			"segments": func() ([]byte, error) { return playlist.Media(a, r, playlist.MP4) },
			"keys":     func() ([]byte, error) { return playlist.Keys(r) },
		} {
			text, err := b()
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("#EXT-X-TARGETDURATION:%d\n", max(1, int(math.Round(seconds)))); !strings.Contains(string(text), want) || strings.Contains(string(text), "#EXTINF:0,") || strings.Contains(string(text), "#EXTINF:0.000,") {
				t.Errorf("%s of %v seconds:\n%s", name, seconds, text)
			}
		}
	}
}
