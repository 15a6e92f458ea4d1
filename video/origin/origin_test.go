package origin_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/origin"
)

// world is a serving origin with its library.
type world struct {
	library *asset.Library
	origin  *origin.Origin
	base    string       // URL
	now     atomic.Int64 // seconds
	client  *http.Client
	end     func() // stops the server and waits for its handlers; the second call does nothing
}

func newWorld(t testing.TB, key []byte, more ...func(*origin.Config)) *world {
	t.Helper()
	fretest.CheckLeaks(t)
	w := &world{client: &http.Client{Transport: &http.Transport{DisableCompression: true}}}
	w.now.Store(1_800_000_000)
	var err error
	if w.library, _, err = asset.Open(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	cfg := origin.Config{Library: w.library, Log: log, Prefix: "/assets", Key: key, Now: func() time.Time { return time.Unix(w.now.Load(), 0) }}
	for _, change := range more {
		change(&cfg)
	}
	w.origin = origin.New(cfg)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := httpserver.New(httpserver.Config{Handler: w.origin})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	w.base = "http://" + l.Addr().String()
	w.end = sync.OnceFunc(func() {
		w.client.CloseIdleConnections()
		if err := errors.Join(s.Close(), w.origin.Close(), w.library.Close()); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(w.end)
	return w
}

// content returns the content of an asset's file.
func content(name string) []byte { return bytes.Repeat([]byte(name+"\n"), 30_000/len(name)) }

// add adds a ready asset: pictures in two rungs, sound, text, thumbnails.
func (w *world) add(t testing.TB) *asset.Asset {
	t.Helper()
	a := &asset.Asset{ID: asset.NewID(), State: asset.Ready, Made: asset.NewID(), Duration: 6}
	for _, name := range []string{"v720p", "v360p", "a0"} {
		r := &asset.Rendition{Name: name, Kind: "video", Codec: "avc1.64001f", Width: 16, Height: 9, FrameRate: media.Fraction{Num: 25, Den: 1}, TimeScale: 90000, Init: 700}
		if name == "a0" {
			r.Kind, r.Codec = "audio", "mp4a.40.2"
		}
		for i, size := range []int64{10_000, 12_000, 3000} {
			at := int64(700)
			if i > 0 {
				at = r.Segments[i-1].Offset + r.Segments[i-1].Size
			}
			r.Segments = append(r.Segments, asset.Segment{Offset: at, Size: size, Duration: 180_000, Key: size / 3})
		}
		a.Renditions = append(a.Renditions, r)
	}
	a.Renditions = append(a.Renditions, &asset.Rendition{Name: "t0", Kind: "text", Language: "deu", TimeScale: 1000, Segments: []asset.Segment{{Size: 10, Duration: 6000}}})
	a.Thumbnails = &asset.Thumbnails{Width: 160, Height: 90, Columns: 2, Rows: 2, Count: 5, Interval: 1.5}
	if err := w.library.Create(a); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"v720p.mp4", "v360p.mp4", "a0.mp4", "t0.vtt", "sheet0.jpg", "sheet1.jpg"} {
		if err := os.WriteFile(w.library.Path(a.ID, name), content(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func (w *world) ask(t testing.TB, method, path string, fields ...string) (*reply, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Add(name, value)
	}
	a, err := w.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
	}
	return &reply{a.StatusCode, a.Status, a.Header, a.ContentLength}, b
}

// reply is an answer without its body.
type reply struct {
	StatusCode    int
	Status        string
	Header        http.Header
	ContentLength int64
}

// TestSegments: GET, HEAD, ranges and conditions on a segment return its bytes of the rendition's
// file.
func TestSegments(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(t)
	at := "/assets/" + a.ID + "/"
	tags := map[string]string{}
	for _, r := range a.Of("video") {
		file := content(r.Name + ".mp4")
		check := func(path string, want []byte, keep string) {
			t.Helper()
			got, body := w.ask(t, "GET", at+path)
			tag := got.Header.Get("Etag")
			if got.StatusCode != 200 || !bytes.Equal(body, want) || got.Header.Get("Content-Type") != "video/mp4" || got.Header.Get("Cache-Control") != keep ||
				got.Header.Get("Access-Control-Allow-Origin") != "*" || got.Header.Get("Accept-Ranges") != "bytes" || !strings.HasPrefix(tag, `"`) {
				t.Errorf("%s: %d, %d bytes of %d, %v", path, got.StatusCode, len(body), len(want), got.Header)
			}
			if before := tags[tag]; before != "" {
				t.Errorf("%s has the tag of %s", path, before)
			}
			tags[tag] = path
			if head, body := w.ask(t, "HEAD", at+path); head.StatusCode != 200 || len(body) > 0 || head.ContentLength != int64(len(want)) {
				t.Errorf("HEAD %s: %d, %d", path, head.StatusCode, head.ContentLength)
			}
			if got, body := w.ask(t, "GET", at+path, "Range: bytes=10-19"); got.StatusCode != 206 || !bytes.Equal(body, want[10:20]) || got.Header.Get("Content-Range") != fmt.Sprintf("bytes 10-19/%d", len(want)) {
				t.Errorf("range of %s: %d %q %v", path, got.StatusCode, body, got.Header)
			}
			if got, body := w.ask(t, "GET", at+path, "If-None-Match: "+tag); got.StatusCode != 304 || len(body) > 0 || got.Header.Get("Etag") != tag {
				t.Errorf("%s once more: %d %v", path, got.StatusCode, got.Header)
			}
			if got, _ := w.ask(t, "GET", at+path, "If-Match: \"other\""); got.StatusCode != 412 {
				t.Errorf("%s of another tag: %d", path, got.StatusCode)
			}
			if got, _ := w.ask(t, "GET", at+path, "Range: bytes=1000000-"); got.StatusCode != 416 || got.Header.Get("Content-Range") != fmt.Sprintf("bytes */%d", len(want)) {
				t.Errorf("%s behind its end: %d %v", path, got.StatusCode, got.Header)
			}
		}
		const forever = "public, max-age=31536000, immutable"
		check("cmaf/"+r.Name+"/init.mp4", file[:700], forever)
		for i, s := range r.Segments {
			check(fmt.Sprintf("cmaf/%s/%d.m4s", r.Name, i+1), file[s.Offset:s.Offset+s.Size], forever)
		}
		check("cmaf/"+r.Name+".mp4", file, forever)
	}
	if got, b := w.ask(t, "GET", at+"ts/t0.vtt"); got.StatusCode != 200 || !strings.HasPrefix(string(b), "t0.vtt\nX-TIMESTAMP-MAP=MPEGTS:900000,LOCAL:00:00:00.000\nt0.vtt\n") {
		t.Errorf("text beside MPEG-TS: %s %.80q", got.Status, b)
	}
	for path, want := range map[string]string{"text/t0.vtt": "t0.vtt", "thumbs/0.jpg": "sheet0.jpg", "thumbs/1.jpg": "sheet1.jpg"} {
		if got, body := w.ask(t, "GET", at+path); got.StatusCode != 200 || !bytes.Equal(body, content(want)) {
			t.Errorf("%s: %d", path, got.StatusCode)
		}
	}
}

// TestNothing: every unknown path is 404 with an error in the usual JSON form.
func TestNothing(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(t)
	unready := &asset.Asset{ID: asset.NewID(), State: asset.Working}
	if err := w.library.Create(unready); err != nil {
		t.Fatal(err)
	}
	at := "/assets/" + a.ID + "/"
	for _, path := range []string{
		at, "/assets/" + a.ID, "/assets/", "/assets/" + unready.ID + "/hls/master.m3u8", "/assets/" + strings.Repeat("a", 16) + "/hls/master.m3u8",
		at + "cmaf/v720p/0.m4s", at + "cmaf/v720p/4.m4s", at + "cmaf/v720p/01.m4s", at + "cmaf/v720p/-1.m4s", at + "cmaf/v720p/99999999999999999999.m4s", at + "cmaf/v720p/1.mp4",
		at + "cmaf/v1080p/1.m4s", at + "cmaf/t0/1.m4s", at + "cmaf/t0.mp4", at + "cmaf/v720p/", at + "cmaf/../source", at + "cmaf/..%2fsource", at + "cmaf/source.mp4",
		at + "text/a0.vtt", at + "thumbs/2.jpg", at + "thumbs/00.jpg", at + "asset.json", at + "source", at + "hls/", at + "@1-x/hls/master.m3u8",
	} {
		got, body := w.ask(t, "GET", path)
		if got.StatusCode != 404 || !bytes.HasPrefix(body, []byte(`{"error":{"code":"not_found"`)) || got.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s", path, got.StatusCode, body)
		}
	}
	if got, _ := w.ask(t, "POST", at+"hls/master.m3u8"); got.StatusCode != 405 || got.Header.Get("Allow") != "GET, HEAD, OPTIONS" {
		t.Errorf("POST: %d %v", got.StatusCode, got.Header)
	}
	if got, _ := w.ask(t, "OPTIONS", at+"hls/master.m3u8", "Origin: http://example.org", "Access-Control-Request-Method: GET"); got.StatusCode != 204 || got.Header.Get("Access-Control-Allow-Headers") != asset.PlayerFields || !strings.Contains(asset.PlayerFields, "Range") {
		t.Errorf("OPTIONS: %d %v", got.StatusCode, got.Header)
	}
	if err := os.Remove(w.library.Path(a.ID, "a0.mp4")); err != nil {
		t.Fatal(err)
	}
	if got, body := w.ask(t, "GET", at+"cmaf/a0/1.m4s"); got.StatusCode != 500 || bytes.Contains(body, []byte(filepath.Dir(w.library.Path(a.ID)))) {
		t.Errorf("a file that has gone: %d %s", got.StatusCode, body)
	}
}

// TestPlaylists: playlists are compressed for clients that accept it, each form with its own ETag,
// and every address in them works.
func TestPlaylists(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(t)
	at := "/assets/" + a.ID + "/"
	for _, path := range []string{"hls/master.m3u8", "hls/v720p.m3u8", "hls/v720p-keys.m3u8", "hls/a0.m3u8", "hls/t0.m3u8", "dash/manifest.mpd", "thumbnails.vtt"} {
		plain, body := w.ask(t, "GET", at+path)
		if plain.StatusCode != 200 || len(body) == 0 {
			t.Fatalf("%s: %d", path, plain.StatusCode)
		}
		packed, small := w.ask(t, "GET", at+path, "Accept-Encoding: gzip")
		if packed.Header.Get("Content-Encoding") == "gzip" {
			if plain.Header.Get("Etag") == packed.Header.Get("Etag") || len(small) >= len(body) || packed.Header.Get("Vary") != "Accept-Encoding" || plain.Header.Get("Vary") != "Accept-Encoding" {
				t.Errorf("%s: %v, packed %v", path, plain.Header, packed.Header)
			}
			if again, _ := w.ask(t, "GET", at+path, "Accept-Encoding: gzip", "If-None-Match: "+packed.Header.Get("Etag")); again.StatusCode != 304 {
				t.Errorf("%s packed once more: %d", path, again.StatusCode)
			}
		} else if len(body) > 500 {
			t.Errorf("%s of %d bytes is not packed", path, len(body))
		}
		for line := range strings.Lines(string(body)) {
			line = strings.TrimSpace(line)
			_, quoted, found := strings.Cut(line, `URI="`)
			switch {
			case found:
				line, _, _ = strings.Cut(quoted, `"`)
			case !strings.HasSuffix(path, ".m3u8") && !strings.Contains(line, ".jpg"), strings.HasPrefix(line, "#"), line == "":
				continue
			}
			line, _, _ = strings.Cut(line, "#")
			if got, _ := w.ask(t, "GET", at+filepath.Join(filepath.Dir(path), line)); got.StatusCode != 200 {
				t.Errorf("%s leads to %s: %d", path, line, got.StatusCode)
			}
		}
	}
}

// TestSigned: with a key, an address works for its asset until it expires.
func TestSigned(t *testing.T) {
	w := newWorld(t, bytes.Repeat([]byte("k"), 32))
	a, other := w.add(t), w.add(t)
	good := w.origin.Path(a.ID, time.Hour)
	status := func(path string) int {
		got, _ := w.ask(t, "GET", path)
		return got.StatusCode
	}
	if got := status(good + "/cmaf/v720p/1.m4s"); got != 200 {
		t.Errorf("signed: %d", got)
	}
	bad := good[:len(good)-1] + string('A'+(good[len(good)-1]-'A'+1)%26)
	for name, path := range map[string]string{
		"unsigned": "/assets/" + a.ID, "of another": strings.Replace(good, a.ID, other.ID, 1), "changed": bad,
		"longer": strings.Replace(good, "@18", "@19", 1), "empty": "/assets/" + a.ID + "/@-", "no number": "/assets/" + a.ID + "/@x-y",
	} {
		if got := status(path + "/cmaf/v720p/1.m4s"); got != 403 {
			t.Errorf("%s: %d", name, got)
		}
	}
	w.now.Add(3600)
	if got := status(good + "/cmaf/v720p/1.m4s"); got != 403 {
		t.Errorf("expired: %d", got)
	}
}

// TestRemoved: a removed asset is not served, and takes no room on the disk even if its files were
// open.
func TestRemoved(t *testing.T) {
	w := newWorld(t, nil)
	a := w.add(t)
	path := "/assets/" + a.ID + "/cmaf/v720p/1.m4s"
	if got, _ := w.ask(t, "GET", path); got.StatusCode != 200 {
		t.Fatal(got.Status)
	}
	open := func() int {
		links, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, l := range links {
			if to, err := os.Readlink(l); err == nil && strings.Contains(to, "v720p.mp4") {
				n++
			}
		}
		return n
	}
	if open() != 1 {
		t.Errorf("%d files are open", open())
	}
	if err := w.library.Remove(a.ID); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); open() > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the file is still open")
		}
		w.ask(t, "GET", path)
	}
	if got, _ := w.ask(t, "GET", path); got.StatusCode != 404 {
		t.Error(got.Status)
	}
}
