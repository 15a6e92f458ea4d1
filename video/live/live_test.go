package live_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Eyevinn/mp4ff/mp4"
	"github.com/bluenviron/gortmplib"
	"github.com/bluenviron/gortmplib/pkg/amf0"
	"github.com/bluenviron/gortmplib/pkg/message"

	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/live"
	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
	"github.com/fre-engine/fre/video/videotest/stream"
	"github.com/fre-engine/fre/video/web"
)

// world is a server of live streams, with an origin and addresses for publishers.
type world struct {
	*live.Server
	dir     string
	library *asset.Library
	url     string // http://HOST:PORT
	rtmp    string // HOST:PORT
	srt     string
	end     func()
}

// start starts a server in a directory.
func start(t *testing.T, dir string) *world {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	library, damaged, err := asset.Open(dir)
	if err != nil || len(damaged) > 0 {
		t.Fatal(err, damaged)
	}
	s, err := live.Open(live.Config{Dir: filepath.Join(dir, "live"), Library: library, Log: log, Prefix: "/live"})
	if err != nil {
		t.Fatal(err)
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	front, publishers := listen(), listen()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /player", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, player) })
	mux.Handle("/", web.Handler())
	others := httpserver.NetHTTP(mux)
	server := httpserver.New(httpserver.Config{Log: log, Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
		if s.Handles(x.Path) {
			s.Serve(x)
			return
		}
		others.Serve(x)
	})})
	done := make(chan error, 2)
	go func() { done <- server.Serve(front) }()
	go func() { done <- s.ServeRTMP(publishers) }()
	w := &world{Server: s, dir: dir, library: library, url: "http://" + front.Addr().String(), rtmp: publishers.Addr().String()}
	srt, err := s.ListenSRT("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.srt = srt.String()
	var once sync.Once
	end := func() {
		http.DefaultClient.CloseIdleConnections()
		if err := errors.Join(s.Close(), server.Close(), library.Close()); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		}
	}
	w.end = func() { once.Do(end) }
	t.Cleanup(w.end)
	return w
}

// get requests a path and fails the test unless the status is 200.
func (w *world) get(t *testing.T, path string) string {
	t.Helper()
	status, body := w.ask(t, path)
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", path, status, body)
	}
	return body
}

func (w *world) ask(t *testing.T, path string) (int, string) {
	t.Helper()
	a, err := http.Get(w.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return a.StatusCode, string(b)
}

// patience bounds the waiting of a test; no measurement depends on it.
const patience = 5 * time.Minute

// until waits until a condition holds.
func until(t *testing.T, what string, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // cleanups wait, too
	defer cancel()
	if err := testdaemon.Until(ctx, condition); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// segments waits until a track's playlist has n segments.
func (w *world) segments(t *testing.T, name, track string, n int) {
	t.Helper()
	until(t, fmt.Sprintf("%d segments of %s", n, track), func() error {
		status, body := w.ask(t, "/live/"+name+"/hls/"+track+".m3u8")
		if got := strings.Count(body, "#EXTINF"); status != http.StatusOK || got < n {
			return fmt.Errorf("status %d, %d segments", status, got)
		}
		return nil
	})
}

// publish publishes a test picture and a tone with the ffmpeg program until stop is called.
func publish(t *testing.T, to, args string) (stop func()) {
	t.Helper()
	cmd := exec.Command("ffmpeg", append(strings.Fields("-v error -nostdin -re -f lavfi -i testsrc2=size=320x180:rate=25 -re -f lavfi -i sine=sample_rate=48000 -c:v libx264 -preset ultrafast -tune zerolatency -g 25 -pix_fmt yuv420p -c:a aac "+args), to)...)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			_ = cmd.Process.Kill() // the process has ended by itself, or ends now
			_ = cmd.Wait()
		})
	}
	t.Cleanup(stop)
	return stop
}

// play plays some seconds with the ffmpeg program, which must decode them without an error.
func play(t *testing.T, url string, seconds int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ffmpeg", "-v", "warning", "-nostdin", "-xerror", "-i", url, "-t", fmt.Sprint(seconds), "-f", "null", "-")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("ffmpeg -i %s: %v\n%s", url, err, out)
	}
	if len(out) > 0 {
		t.Logf("ffmpeg -i %s:\n%s", url, out)
	}
}

// TestRTMP: ffmpeg publishes by RTMP, and several ffmpeg programs play at once, by HLS and by DASH.
func TestRTMP(t *testing.T) {
	fretest.CheckLeaks(t)
	w := start(t, t.TempDir())
	view, err := w.Create(asset.LiveSpec{Name: "studio"})
	if err != nil {
		t.Fatal(err)
	}
	stop := publish(t, w.publishAt(view), "-f flv")
	w.segments(t, "studio", "v0", 3)
	if got, err := w.Get("studio"); err != nil || got.State != asset.OnAir || len(got.Tracks) != 2 || got.Tracks[0].Width != 320 || got.Tracks[0].FrameRate != 25 || got.Tracks[1].SampleRate != 48000 || got.Publisher == "" || got.Error != "" {
		t.Errorf("%+v %v", got, err)
	}
	for _, track := range []string{"v0", "a0"} {
		at := regexp.MustCompile(`#EXT-X-MAP:URI="\.\.(/media/[^"]+)"`).FindStringSubmatch(w.get(t, "/live/studio/hls/"+track+".m3u8"))
		if at == nil {
			t.Fatalf("%s has no initialisation segment", track)
		}
		stream.CheckInit(t, track, []byte(w.get(t, "/live/studio"+at[1])))
	}
	var players sync.WaitGroup
	for _, path := range []string{"/live/studio/hls/master.m3u8", "/live/studio/hls/master.m3u8", "/live/studio/dash/manifest.mpd"} {
		players.Go(func() { play(t, w.url+path, 5) })
	}
	players.Wait()
	stop()
	until(t, "the publisher has gone", func() error {
		if got, err := w.Get("studio"); err != nil || got.State != asset.Waiting || got.Error == "" {
			return fmt.Errorf("%+v %w", got, err)
		}
		return nil
	})
	if err := w.Remove("studio"); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(w.dir, "live")); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
	if status, _ := w.ask(t, "/live/studio/hls/master.m3u8"); status != http.StatusNotFound {
		t.Errorf("a stream that has ended: %d", status)
	}
}

// TestSRT: ffmpeg publishes by SRT, and ffmpeg plays. A wrong key is refused, and so is another
// codec.
func TestSRT(t *testing.T) {
	fretest.CheckLeaks(t)
	w := start(t, t.TempDir())
	view, err := w.Create(asset.LiveSpec{Name: "studio"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix("srt://"+w.srt, strings.Split(view.SRT, "?")[0]) {
		t.Errorf("%s, want %s", view.SRT, w.srt)
	}
	for _, refused := range []struct{ to, codec string }{
		{"?streamid=studio:wrong", "libx264"}, {"", "libx264"}, {strings.TrimPrefix(view.SRT, ":"+strings.Split(w.srt, ":")[1]), "mpeg2video"},
	} {
		cmd := exec.Command("ffmpeg", append(strings.Fields("-v error -nostdin -re -f lavfi -i testsrc2=size=64x64:rate=25:duration=3 -f mpegts -c:v "+refused.codec), "srt://"+w.srt+refused.to)...)
		_ = cmd.Run() // ffmpeg may have sent everything before the refusal
		if got, err := w.Get("studio"); err != nil || got.State != asset.Waiting || len(got.Tracks) > 0 {
			t.Errorf("%+v: %+v %v", refused, got, err)
		}
	}
	publish(t, "srt://127.0.0.1"+view.SRT, "-bf 2 -tune film -f mpegts")
	w.segments(t, "studio", "v0", 3)
	if got, err := w.Get("studio"); err != nil || got.State != asset.OnAir || len(got.Tracks) != 2 || got.Error != "" {
		t.Errorf("%+v %v", got, err)
	}
	play(t, w.url+"/live/studio/hls/master.m3u8", 4)
	play(t, w.url+"/live/studio/dash/manifest.mpd", 4)
}

// TestPreflight: a browser may send the same header fields to live streams as to assets.
func TestPreflight(t *testing.T) {
	fretest.CheckLeaks(t)
	w := start(t, t.TempDir())
	r, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, w.url+"/live/studio/hls/master.m3u8", nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if allowed := got.Header.Get("Access-Control-Allow-Headers"); got.StatusCode != http.StatusNoContent || allowed != asset.PlayerFields || !strings.Contains(allowed, "CMCD-Session") {
		t.Errorf("%s, %q", got.Status, allowed)
	}
}

// publishAt returns the address for publishing a stream.
func (w *world) publishAt(s asset.Live) string {
	return "rtmp://127.0.0.1" + s.RTMP
}

// TestLatency: a client that sends the requests of RFC 8216bis learns of each part as soon as the
// part is made, and has the part within two part targets after its pictures.
func TestLatency(t *testing.T) {
	w := start(t, t.TempDir())
	view, err := w.Create(asset.LiveSpec{Name: "studio"})
	if err != nil {
		t.Fatal(err)
	}
	publish(t, w.publishAt(view), "-f flv")
	w.segments(t, "studio", "v0", 1)
	hint := regexp.MustCompile(`#EXT-X-PRELOAD-HINT:TYPE=PART,URI="../media/([a-z0-9]+/v0/([0-9]+)\.([0-9]+)\.m4s)"`)
	list := w.get(t, "/live/studio/hls/v0.m3u8")
	hinted := 0
	for range 12 {
		next := hint.FindStringSubmatch(list)
		if next == nil {
			t.Fatalf("no hint in\n%s", list)
		}
		part := make(chan int, 1)
		go func() {
			status, body := w.ask(t, "/live/studio/media/"+next[1])
			if status == http.StatusOK && strings.Contains(body, "mdat") {
				status = len(body)
			}
			part <- status
		}()
		list = w.get(t, "/live/studio/hls/v0.m3u8?_HLS_msn="+next[2]+"&_HLS_part="+next[3])
		if !strings.Contains(list, next[1]) {
			t.Errorf("part %s is not in\n%s", next[1], list)
		}
		if n := <-part; n > 1000 {
			hinted++
		} else {
			t.Errorf("part %s: %d", next[1], n)
		}
	}
	t.Logf("%d parts were hinted and came", hinted)
}

// TestReturns: a publisher that returns after a crash continues after a discontinuity. A publisher
// that comes while another publishes takes over. A player of HLS plays through.
func TestReturns(t *testing.T) {
	fretest.CheckLeaks(t)
	w := start(t, t.TempDir())
	view, err := w.Create(asset.LiveSpec{Name: "studio"})
	if err != nil {
		t.Fatal(err)
	}
	stop := publish(t, w.publishAt(view), "-f flv")
	w.segments(t, "studio", "v0", 2)
	stop() // kill -9
	w.segments(t, "studio", "v0", 3)
	publish(t, w.publishAt(view), "-s 640x360 -f flv") // other parameter sets, too
	w.segments(t, "studio", "v0", 4)
	publish(t, w.publishAt(view), "-f flv") // while the other publishes
	discontinuities := func(n int) {
		t.Helper()
		until(t, fmt.Sprintf("%d discontinuities", n), func() error {
			_, body := w.ask(t, "/live/studio/hls/v0.m3u8")
			if got := strings.Count(body, "#EXT-X-DISCONTINUITY\n"); got < n {
				return fmt.Errorf("%d", got)
			}
			return nil
		})
	}
	discontinuities(2)
	list := w.get(t, "/live/studio/hls/v0.m3u8")
	for _, init := range []string{"init-0.mp4", "init-1.mp4", "init-2.mp4"} {
		if strings.Count(list, init) != 1 {
			t.Errorf("%s in\n%s", init, list)
		}
	}
	until(t, "three periods", func() error {
		if n := strings.Count(w.get(t, "/live/studio/dash/manifest.mpd"), "<Period "); n != 3 {
			return fmt.Errorf("%d periods", n)
		}
		return nil
	})

	// The service starts again on the same state.
	before := strings.Count(list, "#EXTINF")
	dir := w.dir
	w.end()
	w = start(t, dir)
	list = w.get(t, "/live/studio/hls/v0.m3u8")
	if n := strings.Count(list, "#EXTINF"); n < before {
		t.Errorf("%d segments, before %d", n, before)
	}
	if view, err = w.Get("studio"); err != nil || view.State != asset.Waiting {
		t.Errorf("%+v %v", view, err)
	}
	publish(t, w.publishAt(view), "-f flv")
	discontinuities(3)
	until(t, "segments", func() error { // ffmpeg begins three before the end, and knows one initialisation segment
		list := w.get(t, "/live/studio/hls/v0.m3u8")
		if n := strings.Count(list[strings.LastIndex(list, "#EXT-X-DISCONTINUITY\n"):], "#EXTINF"); n < 4 {
			return fmt.Errorf("%d segments", n)
		}
		return nil
	})
	play(t, w.url+"/live/studio/hls/master.m3u8", 4)
}

// TestRefused: a publisher without the key, or with another protocol, is refused; the other
// publishers continue.
func TestRefused(t *testing.T) {
	fretest.CheckLeaks(t)
	w := start(t, t.TempDir())
	view, err := w.Create(asset.LiveSpec{Name: "studio"})
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{
		"no key":       "/live/studio",
		"wrong key":    "/live/studio?key=" + strings.Repeat("a", len(view.Key)),
		"other stream": "/live/other?key=" + view.Key,
		"other place":  "/vod/studio?key=" + view.Key,
	} {
		cmd := exec.Command("ffmpeg", append(strings.Fields("-v error -nostdin -f lavfi -i testsrc2=size=64x64:rate=25:duration=10 -c:v libx264 -preset ultrafast -f flv"), "rtmp://"+w.rtmp+to)...)
		_ = cmd.Run() // ffmpeg may have sent everything before the refusal
		if got, err := w.Get("studio"); err != nil || got.State != asset.Waiting || len(got.Tracks) > 0 || got.Error != "" {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
	cmd := exec.Command("ffmpeg", append(strings.Fields("-v error -nostdin -f lavfi -i testsrc2=size=64x64:rate=25:duration=10 -c:v flv1 -f flv"), w.publishAt(view))...)
	_ = cmd.Run()
	until(t, "another codec is refused", func() error {
		if got, err := w.Get("studio"); err != nil || got.State != asset.Waiting || len(got.Tracks) > 0 || got.Error == "" {
			return fmt.Errorf("%+v %w", got, err)
		}
		return nil
	})
	random := fretest.Rand(t)
	for n := range 50 {
		conn, err := net.Dial("tcp", w.rtmp)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, random.IntN(8192))
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		if n%2 == 0 && len(b) > 0 {
			b[0] = 3 // RTMP's version
		}
		_, _ = conn.Write(b) // the connection may be closed already
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	publish(t, w.publishAt(view), "-f flv")
	w.segments(t, "studio", "v0", 1)
	for _, spec := range []asset.LiveSpec{{Name: "studio"}, {Name: ""}, {Name: "../x"}, {Name: "x", Window: 1}, {Name: "x", Window: math.NaN()}, {Name: "x", Loop: "nothing"}} {
		if _, err := w.Create(spec); !errors.Is(err, live.ErrSpec) && !errors.Is(err, live.ErrTaken) {
			t.Errorf("%+v: %v", spec, err)
		}
	}
}

// TestTold: a refused publisher receives the reason by RTMP.
func TestTold(t *testing.T) {
	fretest.CheckLeaks(t)
	w := start(t, t.TempDir())
	view, err := w.Create(asset.LiveSpec{Name: "studio"})
	if err != nil {
		t.Fatal(err)
	}
	// as publishes and sends messages. told returns the server's answer.
	as := func(to string, messages ...message.Message) (told func() (code, words string)) {
		t.Helper()
		at, err := url.Parse(to)
		if err != nil {
			t.Fatal(err)
		}
		c := &gortmplib.Client{URL: at, Publish: true}
		if err := c.Initialize(t.Context()); err != nil {
			t.Fatalf("%s: %v", to, err)
		}
		t.Cleanup(c.Close)
		for _, m := range messages {
			if err := c.Write(m); err != nil {
				t.Fatalf("%s: %v", to, err)
			}
		}
		return func() (code, words string) {
			for {
				m, err := c.Read()
				if err != nil {
					return "", err.Error()
				}
				if m, ok := m.(*message.CommandAMF0); ok && m.Name == "onStatus" && len(m.Arguments) == 2 {
					status, _ := m.Arguments[1].(amf0.Object)
					said := map[string]string{}
					for _, e := range status {
						said[e.Key], _ = e.Value.(string)
					}
					if said["level"] == "error" {
						return said["code"], said["description"]
					}
				}
			}
		}
	}
	if code, words := as("rtmp://" + w.rtmp + "/live/studio?key=wrong")(); code != "NetStream.Publish.BadName" || !strings.Contains(words, "key is wrong") {
		t.Errorf("a wrong key: %q, %q", code, words)
	}
	if code, words := as(w.publishAt(view), &message.Audio{ChunkStreamID: 4, MessageStreamID: 1, Codec: message.CodecLPCM, IsStereo: true, AU: []byte{1, 2, 3, 4}})(); code != "NetStream.Publish.Rejected" || !strings.Contains(words, "only H.264 and AAC") {
		t.Errorf("another codec: %q, %q", code, words)
	}
	first := as(w.publishAt(view))
	until(t, "the first publishes", func() error {
		if got, err := w.Get("studio"); err != nil || got.Publisher == "" {
			return fmt.Errorf("%+v %w", got, err)
		}
		return nil
	})
	second := as(w.publishAt(view))
	if code, words := first(); code != "NetStream.Publish.Rejected" || !strings.Contains(words, "another publisher") {
		t.Errorf("one that is replaced: %q, %q", code, words)
	}
	if err := w.Remove("studio"); err != nil {
		t.Fatal(err)
	}
	if code, words := second(); code != "NetStream.Publish.Rejected" || !strings.Contains(words, "ended") {
		t.Errorf("one whose stream ends: %q, %q", code, words)
	}
}

// TestPassphrase: a publisher that encrypts SRT receives the reason of the refusal, and `live
// inspect` shows it.
func TestPassphrase(t *testing.T) {
	fretest.CheckLeaks(t)
	w := start(t, t.TempDir())
	view, err := w.Create(asset.LiveSpec{Name: "studio"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ id, want string }{{"studio:wrong", ""}, {"studio:" + view.Key, "passphrase"}} {
		cmd := exec.Command("ffmpeg", append(strings.Fields("-v error -nostdin -f lavfi -i testsrc2=size=64x64:rate=25:duration=3 -c:v libx264 -f mpegts"),
			"srt://"+w.srt+"?passphrase=longer_than_ten&pbkeylen=16&streamid="+tt.id)...)
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%s publishes: %s", tt.id, out)
		}
		if got, err := w.Get("studio"); err != nil || !strings.Contains(got.Error, tt.want) || (tt.want == "") != (got.Error == "") {
			t.Errorf("%s: %+v, %v", tt.id, got, err)
		}
	}
}

// TestStrangers: with the maximum number of silent connections open, a publisher with a key is
// accepted.
func TestStrangers(t *testing.T) {
	fretest.CheckLeaks(t)
	w := start(t, t.TempDir())
	view, err := w.Create(asset.LiveSpec{Name: "studio"})
	if err != nil {
		t.Fatal(err)
	}
	for range live.MostPublishers {
		conn, err := net.Dial("tcp", w.rtmp)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	publish(t, w.publishAt(view), "-f flv") // accepted behind them
	w.segments(t, "studio", "v0", 1)
}

// made adds an asset to a library: four seconds in two rungs, with sound.
func made(t *testing.T, library *asset.Library) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.mp4")
	cmd := exec.Command("ffmpeg", strings.Fields("-v error -nostdin -f lavfi -i testsrc2=size=640x360:rate=25:duration=4 -f lavfi -i sine=duration=4 -c:v libx264 -preset ultrafast -c:a aac "+path)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	a := &asset.Asset{ID: asset.NewID(), Name: "in.mp4", State: asset.Ready, Made: "1", Duration: 4}
	if err := library.Create(a); err != nil {
		t.Fatal(err)
	}
	add := func(r *asset.Rendition, body []byte, made media.Made) {
		r.Init = int64(made.Init)
		at := r.Init
		init, err := mp4.DecodeFile(bytes.NewReader(body[:at]))
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range made.Segments {
			f, err := mp4.DecodeFile(bytes.NewReader(body[at : at+int64(size)]))
			if err != nil {
				t.Fatal(err)
			}
			d := f.Segments[0].Fragments[0].Moof.Traf.Trun.Duration(0)
			r.Segments = append(r.Segments, asset.Segment{Offset: at, Size: int64(size), Duration: int64(d)})
			at += int64(size)
		}
		r.TimeScale = int(init.Init.Moov.Trak.Mdia.Mdhd.Timescale)
		a.Renditions = append(a.Renditions, r)
		if err := os.WriteFile(library.Path(a.ID, r.Name+".mp4"), body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rungs := []media.Rung{{Name: "360p", Width: 640, Height: 360, BitRate: 800_000}, {Name: "180p", Width: 320, Height: 180, BitRate: 300_000}}
	head, bodies, err := transcode.Chunk(path, media.Chunk{Grid: media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 50}, To: -1, Rungs: rungs, Preset: "ultrafast"})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rungs {
		add(&asset.Rendition{Name: "v" + r.Name, Kind: "video", Codec: "avc1.64001e", Width: r.Width, Height: r.Height, FrameRate: media.Fraction{Num: 25, Den: 1}}, bodies[i], head.Rungs[i])
	}
	sound, parts, err := transcode.Sound(path, media.Sound{Stream: 1, Segment: 2})
	if err != nil {
		t.Fatal(err)
	}
	add(&asset.Rendition{Name: "a0", Kind: "audio", Codec: "mp4a.40.2", SampleRate: 48000, Channels: 2}, bytes.Join(parts, nil), *sound)
	if _, err := library.Update(a.ID, func(to *asset.Asset) error { *to = *a; return nil }); err != nil {
		t.Fatal(err)
	}
	return a.ID
}

// TestLoop: an asset plays again and again in all of its rungs, whose segments have equal times,
// and continues after a restart of the service.
func TestLoop(t *testing.T) {
	fretest.CheckLeaks(t)
	dir := t.TempDir()
	w := start(t, dir)
	id := made(t, w.library)
	if _, err := w.Create(asset.LiveSpec{Name: "round", Loop: id}); err != nil {
		t.Fatal(err)
	}
	for _, track := range []string{"v360p", "v180p"} {
		w.segments(t, "round", track, 4) // into the third round
	}
	dates := func(track string) []string {
		var all []string
		for line := range strings.Lines(w.get(t, "/live/round/hls/"+track+".m3u8")) {
			if date, ok := strings.CutPrefix(line, "#EXT-X-PROGRAM-DATE-TIME:"); ok {
				all = append(all, strings.TrimSpace(date))
			}
		}
		return all[:4]
	}
	if a, b := dates("v360p"), dates("v180p"); !slices.Equal(a, b) {
		t.Errorf("the rungs' segments begin at %v and %v", a, b)
	}
	for _, path := range []string{"/live/round/hls/master.m3u8", "/live/round/dash/manifest.mpd"} {
		out, err := exec.Command("ffprobe", "-v", "error", "-show_entries", "stream=codec_name,width", "-of", "csv=p=0", w.url+path).CombinedOutput()
		for _, want := range []string{"h264,640", "h264,320", "aac"} {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%s: %v\n%s", path, err, out)
			}
		}
		play(t, w.url+path, 6)
	}
	w.end()
	w = start(t, dir)
	until(t, "the loop goes on", func() error {
		list := w.get(t, "/live/round/hls/v360p.m3u8")
		if _, after, ok := strings.Cut(list, "#EXT-X-DISCONTINUITY\n"); !ok || !strings.Contains(after, "#EXTINF") {
			return errors.New("no segment behind the discontinuity")
		}
		return nil
	})
	if err := w.library.Remove(id); err != nil {
		t.Fatal(err)
	}
	until(t, "the loop ends", func() error {
		if got, err := w.Get("round"); err != nil || !strings.Contains(got.Error, "removed") {
			return fmt.Errorf("%+v, %w", got, err)
		}
		return nil
	})
}
