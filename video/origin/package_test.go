package origin_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/videotest"
)

// film is a playable asset with its files.
type film struct {
	asset.Asset
	files map[string][]byte
}

func newFilm(t *testing.T) film {
	t.Helper()
	a, files := videotest.Asset(t)
	return film{*a, files}
}

// addFilm adds another copy of a film.
func (w *world) addFilm(t *testing.T, of film, protection asset.Protection) *asset.Asset {
	t.Helper()
	a := &of.Asset
	a.ID, a.State, a.Made, a.Protection = asset.NewID(), asset.Ready, asset.NewID(), protection
	if protection != asset.Clear {
		a.Secret = asset.NewSecret()
	}
	if err := w.library.Create(a); err != nil {
		t.Fatal(err)
	}
	for name, b := range of.files {
		if err := os.WriteFile(w.library.Path(a.ID, name+".mp4"), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// decoded returns hashes of FFmpeg's decoding of an address: per picture of each rung and per
// packet of sound. A message of FFmpeg at that level fails the test.
func decoded(t *testing.T, level, url string) (streams [4][]string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ffmpeg", "-v", level, "-nostdin", "-i", url, "-map", "0:v", "-map", "0:a", "-f", "framehash", "-hash", "md5", "-")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil || errs.Len() > 0 {
		t.Errorf("%s: %v\n%s", url, err, &errs)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(line, ",")
		n, err := strconv.Atoi(strings.TrimSpace(f[0]))
		if err != nil { // a comment
			continue
		}
		streams[n] = append(streams[n], strings.TrimSpace(f[len(f)-1]))
	}
	return streams
}

// TestPackaged: every container with every protection gives the same pictures and the same sound.
func TestPackaged(t *testing.T) {
	w, of := newWorld(t, nil), newFilm(t)
	want := decoded(t, "warning", w.base+"/assets/"+w.addFilm(t, of, asset.Clear).ID+"/hls/master.m3u8")
	if len(want[0]) != 200 || len(want[1]) != 200 || len(want[2]) == 0 || len(want[3]) == 0 {
		t.Fatalf("%d and %d pictures", len(want[0]), len(want[1]))
	}
	for _, protection := range []asset.Protection{asset.Clear, asset.AES128, asset.CBCS} {
		a := w.addFilm(t, of, protection)
		for _, form := range []string{"hls", "ts"} {
			// When FFmpeg opens SAMPLE-AES, it reads some sound without decrypting it, and
			// complains; and it does not decrypt the last picture (libavformat/hls.c of 5.1).
			level, last := "warning", 0
			if protection == asset.CBCS && form == "ts" {
				level, last = "fatal", 1
			}
			got := decoded(t, level, w.base+"/assets/"+a.ID+"/"+form+"/master.m3u8")
			for i := range want {
				n := len(want[i])
				if i < 2 {
					n -= last
				}
				if len(got[i]) < n || !slices.Equal(got[i][:n], want[i][:n]) {
					t.Errorf("%s %q, stream %d: %d frames, or others than the %d that there are", form, protection, i, len(got[i]), len(want[i]))
				}
			}
		}
	}
}

// TestTextInTS: subtitles beside MPEG-TS carry the mapping of their times, and are made once.
func TestTextInTS(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(t)
	path, file := "/assets/"+a.ID+"/ts/t0.vtt", w.library.Path(a.ID, "t0.vtt")
	for _, c := range []struct{ name, text, want string }{
		{"cues", "WEBVTT - a film\n\n00:01.000 --> 00:02.000\nHello\n", "WEBVTT - a film\nX-TIMESTAMP-MAP=MPEGTS:900000,LOCAL:00:00:00.000\n\n00:01.000 --> 00:02.000\nHello\n"},
		{"made once", "WEBVTT\n\nothers", "WEBVTT - a film\nX-TIMESTAMP-MAP=MPEGTS:900000,LOCAL:00:00:00.000\n\n00:01.000 --> 00:02.000\nHello\n"},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, b := w.ask(t, http.MethodGet, path)
		if r.StatusCode != http.StatusOK || string(b) != c.want || r.ContentLength != int64(len(c.want)) || r.Header.Get("Content-Type") != "text/vtt; charset=utf-8" {
			t.Errorf("%s: %s %v\n%s\nwant:\n%s", c.name, r.Status, r.Header, b, c.want)
		}
	}
	if r, b := w.ask(t, http.MethodGet, path, "Range: bytes=0-5"); r.StatusCode != http.StatusPartialContent || string(b) != "WEBVTT" {
		t.Errorf("a range: %s, %q", r.Status, b)
	}
}

// TestPackagedRanges: a segment made on request has an ETag, ranges and a length like a stored
// segment, and is the same for every client.
func TestPackagedRanges(t *testing.T) {
	w, of := newWorld(t, nil), newFilm(t)
	for _, protection := range []asset.Protection{asset.Clear, asset.AES128, asset.CBCS} {
		a := w.addFilm(t, of, protection)
		base := "/assets/" + a.ID
		for _, path := range []string{base + "/ts/v360p/1.ts", base + "/ts/a0/4.ts", base + "/cmaf/v360p/2.m4s", base + "/cmaf/v360p/init.mp4"} {
			r, whole := w.ask(t, http.MethodGet, path)
			if r.StatusCode != http.StatusOK || r.Header.Get("Etag") == "" || r.ContentLength != int64(len(whole)) || !strings.Contains(r.Header.Get("Cache-Control"), "immutable") {
				t.Fatalf("%s: %s %v", path, r.Status, r.Header)
			}
			if r, b := w.ask(t, http.MethodHead, path); r.StatusCode != http.StatusOK || r.ContentLength != int64(len(whole)) || len(b) > 0 {
				t.Errorf("HEAD %s: %s, %d bytes", path, r.Status, r.ContentLength)
			}
			if r, b := w.ask(t, http.MethodGet, path, "Range: bytes=100-199"); r.StatusCode != http.StatusPartialContent || string(b) != string(whole[100:200]) {
				t.Errorf("a range of %s: %s, %d bytes", path, r.Status, len(b))
			}
			if r, _ := w.ask(t, http.MethodGet, path, "If-None-Match: "+r.Header.Get("Etag")); r.StatusCode != http.StatusNotModified {
				t.Errorf("%s unchanged: %s", path, r.Status)
			}
		}
		for _, path := range []string{"/ts/v360p/0.ts", "/ts/v360p/5.ts", "/ts/v360p/01.ts", "/ts/v360p/1.m4s", "/ts/none/1.ts", "/ts/v360p/", "/cmaf/v360p/1.ts"} {
			if r, _ := w.ask(t, http.MethodGet, base+path); r.StatusCode != http.StatusNotFound {
				t.Errorf("%s: %s", path, r.Status)
			}
		}
	}
}

// TestProtected: no media of a protected asset is served as stored, and only requests to the key's
// own address get the key.
func TestProtected(t *testing.T) {
	w, of := newWorld(t, nil), newFilm(t)
	open := w.addFilm(t, of, asset.Clear)
	if r, _ := w.ask(t, http.MethodGet, "/assets/"+open.ID+"/key"); r.StatusCode != http.StatusNotFound {
		t.Errorf("the key of what is not protected: %s", r.Status)
	}
	for _, protection := range []asset.Protection{asset.AES128, asset.CBCS} {
		a := w.addFilm(t, of, protection)
		base := "/assets/" + a.ID
		for _, path := range []string{"/cmaf/v360p.mp4", "/hls/v360p-keys.m3u8"} {
			if r, _ := w.ask(t, http.MethodGet, base+path); r.StatusCode != http.StatusNotFound {
				t.Errorf("%s: %s", path, r.Status)
			}
		}
		stored, err := os.ReadFile(w.library.Path(a.ID, "v360p.mp4"))
		if err != nil {
			t.Fatal(err)
		}
		s := a.Rendition("v360p").Segments[0]
		part := stored[s.Offset+s.Size/2 : s.Offset+s.Size/2+400] // a block in ten is encrypted
		for _, path := range []string{"/cmaf/v360p/1.m4s", "/ts/v360p/1.ts"} {
			if r, b := w.ask(t, http.MethodGet, base+path); r.StatusCode != http.StatusOK || strings.Contains(string(b), string(part)) {
				t.Errorf("%s: %s, as it is stored", path, r.Status)
			}
		}
		if r, b := w.ask(t, http.MethodGet, base+"/key"); r.StatusCode != http.StatusOK || string(b) != string(a.Secret.Key[:]) || r.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("key: %s %v", r.Status, r.Header)
		}
		if protection == asset.AES128 {
			if r, _ := w.ask(t, http.MethodGet, base+"/dash/manifest.mpd"); r.StatusCode != http.StatusNotFound {
				t.Errorf("DASH: %s", r.Status)
			}
			continue
		}
		id := base64.RawURLEncoding.EncodeToString(a.Secret.KeyID[:])
		for body, want := range map[string]string{
			fmt.Sprintf(`{"kids":["AAAA",%q],"type":"temporary"}`, id): base64.RawURLEncoding.EncodeToString(a.Secret.Key[:]),
			`{"kids":["AAAA"]}`: "", `{"kids":`: "refused", strings.Repeat(" ", 70_000) + `{}`: "refused",
		} {
			got, err := w.client.Post(w.base+base+"/license", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			var license struct {
				Keys []struct{ Kid, K string }
			}
			err = json.NewDecoder(got.Body).Decode(&license)
			if cerr := got.Body.Close(); err != nil || cerr != nil {
				t.Errorf("%.60s: %v, %v", body, err, cerr)
			}
			key := ""
			if len(license.Keys) == 1 && license.Keys[0].Kid == id {
				key = license.Keys[0].K
			}
			if got.StatusCode != http.StatusOK {
				key = "refused"
			}
			if key != want {
				t.Errorf("%.60s: %s, key %q, want %q", body, got.Status, key, want)
			}
		}
		if got, err := w.client.Post(w.base+base+"/key", "text/plain", nil); err != nil || got.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST elsewhere: %v, %v", got, err)
		} else if err := got.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}
