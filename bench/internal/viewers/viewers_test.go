package viewers

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/origin"
)

func play(t *testing.T, c Config) *Report {
	t.Helper()
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Error(err)
	}
	t.Log(text.String())
	return r
}

// With a fast server every viewer reaches the last rung and none stalls. Each viewer loads the
// player's files in order, over a single connection.
func TestFast(t *testing.T) {
	fretest.CheckLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStudio(t)
		r := s.run(t, Config{Viewers: 4, Duration: 40 * time.Second, Ramp: 2 * time.Second})
		if len(r.Errors) > 0 || r.Rebuffering.Count > 0 || r.GivenUp > 0 || r.Sessions != 4 || r.StartUp.Count != 4 || r.SwitchesUp < 4 {
			t.Errorf("%+v", r)
		}
		if n := len(r.Rungs); n < 2 || r.Rungs[0].Bandwidth != 564_000 || r.Rungs[n-1].Bandwidth != 4_064_000 || r.Rungs[n-1].Share < 0.5 || r.Rungs[n-1].Name != "2x9" {
			t.Errorf("rungs %+v", r.Rungs)
		}
		if r.MeanBitRate < 2e6 || r.MeanBitRate > 4.3e6 {
			t.Errorf("a mean bit rate of %v", r.MeanBitRate)
		}
		// A viewer that came within 2 s and waited little has played about 38 s.
		if most := 4 * r.Duration; r.Played > most || r.Played < most/2 {
			t.Errorf("%v were played, of %v", r.Played, most)
		}
		sessions := map[string][]string{}
		for _, a := range s.paths() {
			sessions[a.session] = append(sessions[a.session], a.path)
		}
		if len(sessions) != 5 { // 4 viewers, and the check of the playlists before
			t.Errorf("%d sessions", len(sessions))
		}
		for id, paths := range sessions {
			if id == "" {
				continue
			}
			if paths[0] != "/master.m3u8" || paths[1] != "/0/list.m3u8" || paths[2] != "/0/init.mp4" || paths[3] != "/0/0.m4s" || paths[4] != "/sound/list.m3u8" {
				t.Errorf("%s begins with %v", id, paths[:5])
			}
			next := map[bool]int{}
			for _, p := range paths {
				track, name, _ := strings.Cut(p[1:], "/")
				if name, ok := strings.CutSuffix(name, ".m4s"); ok {
					if n, _ := strconv.Atoi(name); n != next[track == "sound"] {
						t.Errorf("%s: %s, where segment %d is next", id, p, next[track == "sound"])
					}
					next[track == "sound"]++
				}
			}
		}
		served := uint64(len(s.paths()))
		if n := r.Requests.Metrics.Requests + r.Requests.Unfinished; n+5 != served { // 5 requests of the check before
			t.Errorf("%d requests reported, %d served", n, served)
		}
	})
}

// A viewer that has seen the whole video begins again.
func TestAgain(t *testing.T) {
	fretest.CheckLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStudio(t)
		s.segments = 3
		r := s.run(t, Config{Duration: 40 * time.Second})
		// A session plays six seconds and takes seven at most, except on a busy machine.
		if r.Sessions < 3 || len(r.Errors) > 0 || r.StartUp.Count < int64(r.Sessions)-1 {
			t.Errorf("%+v", r)
		}
		if most := time.Duration(r.Sessions) * 6 * time.Second; r.Played > most || r.Played < most-12*time.Second {
			t.Errorf("%v were played in %d sessions of 6 s", r.Played, r.Sessions)
		}
	})
}

// A server that becomes slow sends viewers down to the first rung, and stalls them if that rung is
// still too fast.
func TestSlow(t *testing.T) {
	fretest.CheckLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStudio(t)
		s.direct = func(w http.ResponseWriter, r *http.Request) (func([]byte), bool) {
			name := strings.TrimSuffix(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:], ".m4s")
			if n, err := strconv.Atoi(name); err == nil && n >= 10 {
				return slowly(w, r, 300_000), false
			}
			return nil, false
		}
		r := s.run(t, Config{Duration: 70 * time.Second, BufferMin: 6 * time.Second, BufferMax: 6 * time.Second})
		if r.SwitchesUp == 0 || r.SwitchesDown == 0 || r.Rebuffering.Viewers != 1 || r.Rebuffering.Share != 1 || len(r.Errors) > 0 {
			t.Errorf("%+v", r)
		}
		last := ""
		for _, a := range s.paths() {
			if strings.HasSuffix(a.path, ".m4s") && !strings.HasPrefix(a.path, "/sound") {
				last = a.path
			}
		}
		if !strings.HasPrefix(last, "/0/") {
			t.Errorf("the last segment is %s", last)
		}
		// The time of a run is start-up, playing and stalls.
		if sum := r.Played + r.Rebuffering.Time + r.StartUp.Max; sum > r.Duration+time.Second || sum < r.Duration-5*time.Second {
			t.Errorf("%v of playing, %v of stalls, %v of start-up are not %v", r.Played, r.Rebuffering.Time, r.StartUp.Max, r.Duration)
		}
		inSteps := 0.0
		for _, step := range r.TimeLine {
			inSteps += step.Rebuffering // seconds of a step of one second
		}
		if inSteps < r.Rebuffering.Time.Seconds()-1 || inSteps > r.Rebuffering.Time.Seconds()+1 {
			t.Errorf("%v s of stalls over time, %v in all", inSteps, r.Rebuffering.Time)
		}
	})
}

// With an answer held longer than the buffer lasts, the stall is the time after the buffer's end.
func TestHeld(t *testing.T) {
	fretest.CheckLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStudio(t)
		const ahead = 8 * time.Second
		var held time.Duration //
		s.direct = func(_ http.ResponseWriter, r *http.Request) (func([]byte), bool) {
			if strings.HasSuffix(r.URL.Path, "/12.m4s") && !strings.HasPrefix(r.URL.Path, "/sound") {
				began := time.Now()
				select {
				case <-time.After(40 * time.Second):
				case <-r.Context().Done():
				}
				held = time.Since(began)
			}
			return nil, false
		}
		r := s.run(t, Config{Duration: 90 * time.Second, BufferMin: ahead, BufferMax: ahead})
		if got, least := r.Rebuffering.Time, held-ahead-2*time.Second; r.Rebuffering.Count != 1 || got < least || got > held || held != 40*time.Second {
			t.Errorf("%d stalls, %v in all; a segment was held back for %v", r.Rebuffering.Count, got, held)
		}
		if r.Rebuffering.Ratio <= 0.2 || r.Rebuffering.Ratio > 0.8 {
			t.Errorf("%v of the time", r.Rebuffering.Ratio)
		}
	})
}

// A failed request is repeated with growing pauses, not before Retry-After, and given up in the
// end.
func TestErrors(t *testing.T) {
	fretest.CheckLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStudio(t)
		var mu sync.Mutex
		times := map[string][]time.Time{} // times of requests by path
		s.direct = func(w http.ResponseWriter, r *http.Request) (func([]byte), bool) {
			mu.Lock()
			defer mu.Unlock()
			times[r.URL.Path] = append(times[r.URL.Path], time.Now())
			n := len(times[r.URL.Path])
			switch r.URL.Path {
			case "/sound/0.m4s":
				if n == 1 {
					w.Header().Set("Retry-After", "5")
					w.WriteHeader(503)
					return nil, true
				}
			case "/sound/1.m4s":
				if n <= 3 {
					w.WriteHeader(500)
					return nil, true
				}
			case "/sound/2.m4s":
				if n == 1 { // the connection breaks off
					w.Header().Set("Content-Length", "100000")
					_, _ = w.Write(make([]byte, 100))
					w.(http.Flusher).Flush()
					panic(http.ErrAbortHandler)
				}
			case "/sound/3.m4s":
				w.WriteHeader(404)
				return nil, true
			}
			return nil, false
		}
		r := s.run(t, Config{Duration: 70 * time.Second, Retries: 3})
		for text, least := range map[string]uint64{"status 500": 3, "status 503": 1, "status 404": 1, "the connection ended within the answer": 1} {
			if r.Errors[text] < least {
				t.Errorf("%d × %q, want %d", r.Errors[text], text, least)
			}
		}
		if r.GivenUp == 0 || r.RetryAfters != 1 || int(r.Errors["status 404"]) != r.GivenUp {
			t.Errorf("%+v", r)
		}
		mu.Lock()
		defer mu.Unlock()
		pauses := func(path string) (p []time.Duration) {
			for i := 1; i < len(times[path]); i++ {
				p = append(p, times[path][i].Sub(times[path][i-1]))
			}
			return p
		}
		if p := pauses("/sound/0.m4s"); p[0] < 5*time.Second {
			t.Errorf("asked again after %v, against Retry-After", p[0])
		}
		if p := pauses("/sound/1.m4s"); p[0] < backOff/2 || p[1] < backOff || p[2] < 2*backOff {
			t.Errorf("asked again after %v", p)
		}
		for _, p := range pauses("/sound/3.m4s") { // by another session, after a pause
			if p < backOffTo/2 {
				t.Errorf("asked again after %v", p)
			}
		}
	})
}

// A viewer gives up after the configured number of retries.
func TestGivenUp(t *testing.T) {
	fretest.CheckLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStudio(t)
		s.direct = func(w http.ResponseWriter, r *http.Request) (func([]byte), bool) {
			if strings.HasSuffix(r.URL.Path, "/2.m4s") {
				w.WriteHeader(502)
				return nil, true
			}
			return nil, false
		}
		r := s.run(t, Config{Duration: 40 * time.Second, Retries: 2})
		tries := map[string]int{}
		for _, a := range s.paths() {
			if strings.HasSuffix(a.path, "/2.m4s") {
				tries[a.session]++
			}
		}
		whole := 0
		for id, n := range tries {
			if n > 3 {
				t.Errorf("session %s tries %d times", id, n)
			}
			if n == 3 {
				whole++
			}
		}
		if r.GivenUp == 0 || r.GivenUp > whole || r.Sessions < r.GivenUp {
			t.Errorf("%d of %d sessions were given up, %d had tried three times", r.GivenUp, r.Sessions, whole)
		}
	})
}

// A viewer on a weak network gets the network's rate and stays on a rung below that rate.
func TestWeakViewers(t *testing.T) {
	fretest.CheckLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStudio(t)
		r := s.run(t, Config{Viewers: 4, WeakShare: 0.5, WeakMin: 1.4e6, WeakMax: 1.4e6, Duration: 40 * time.Second})
		if r.Weak != 2 || len(r.Errors) > 0 {
			t.Errorf("%+v", r)
		}
		best := map[string]int{}
		for _, a := range s.paths() {
			if n := int(a.path[1] - '0'); a.session != "" && strings.HasSuffix(a.path, ".m4s") && n >= 0 && n < 3 {
				best[a.session] = max(best[a.session], n)
			}
		}
		weak := 0
		for _, n := range best {
			if n < 2 {
				weak++
			}
		}
		if weak != 2 || len(best) != 4 {
			t.Errorf("the best rungs of the sessions are %v, want two below the last", best)
		}
		if slowest, least := r.SegmentTimes.Max, time.Duration(float64(rates[0]*2)/1.4e6*float64(time.Second)); slowest < least*9/10 {
			t.Errorf("the slowest segment took %v, the smallest takes %v", slowest, least)
		}
	})
}

// Viewers at a constant bit rate load at that rate on any rung.
func TestConstant(t *testing.T) {
	fretest.CheckLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStudio(t)
		const rate = 2e6
		r := s.run(t, Config{Viewers: 3, Rate: rate, Duration: 30 * time.Second, BufferMin: 4 * time.Second, BufferMax: 4 * time.Second})
		if len(r.Errors) > 0 || r.SwitchesUp+r.SwitchesDown > 0 || len(r.Rungs) != 1 || r.Rungs[0].Bandwidth != 1_064_000 {
			t.Errorf("%+v", r)
		}
		if r.MeanBitRate < rate*0.99 || r.MeanBitRate > rate*1.01 {
			t.Errorf("a mean bit rate of %v", r.MeanBitRate)
		}
		// Each viewer has loaded at least the played part, and at most a buffer and a segment more.
		loaded := float64(8*r.Requests.Metrics.BytesIn.Total) / rate
		if ahead := loaded - r.Played.Seconds(); ahead < 0 || ahead > 3*(4+2)+1 {
			t.Errorf("%v s were loaded, %v played", loaded, r.Played)
		}
		for _, a := range s.paths() {
			if strings.HasPrefix(a.path, "/sound/") {
				t.Errorf("%s was loaded", a.path)
			}
		}
	})
}

// Viewers seek to other positions and continue there.
func TestSeeks(t *testing.T) {
	fretest.CheckLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStudio(t)
		r := s.run(t, Config{Viewers: 4, Seeks: 20, Seed: 7, Duration: 40 * time.Second})
		if r.Seeks.Count < 10 || len(r.Errors) > 0 {
			t.Errorf("%+v", r)
		}
		jumps := 0
		last := map[string]int{}
		for _, a := range s.paths() {
			track, name, _ := strings.Cut(a.path[1:], "/")
			if name, ok := strings.CutSuffix(name, ".m4s"); ok && track != "sound" {
				n, _ := strconv.Atoi(name)
				if before, ok := last[a.session]; ok && n != before+1 {
					jumps++
				}
				last[a.session] = n
			}
		}
		if int64(jumps) < r.Seeks.Count/2 { // some seeks lead to the next segment
			t.Errorf("%d jumps, %d seeks", jumps, r.Seeks.Count)
		}
	})
}

// The report of a cancelled run covers the time until the cancellation.
func TestCanceled(t *testing.T) {
	fretest.CheckLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStudio(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.direct = func(_ http.ResponseWriter, r *http.Request) (func([]byte), bool) {
			if strings.HasSuffix(r.URL.Path, "/5.m4s") {
				cancel()
				<-r.Context().Done() // never answered
			}
			return nil, false
		}
		r, err := Run(ctx, Config{URLs: []string{"http://studio/master.m3u8"}, Dial: s.dial, Viewers: 3, Duration: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Interrupted || r.Requests.Metrics.Requests < 10 || r.Requests.Unfinished == 0 || len(r.Errors) > 0 || r.Duration >= time.Hour {
			t.Errorf("%+v", r)
		}
	})
}

// The report is written as text, JSON and SVG.
func TestReport(t *testing.T) {
	fretest.CheckLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStudio(t)
		r := s.run(t, Config{Viewers: 2, WeakShare: 0.5, Duration: 20 * time.Second, Seeks: 5})
		var text, raw, svg bytes.Buffer
		if err := errors.Join(r.WriteText(&text), r.WriteJSON(&raw), r.WriteSVG(&svg)); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"2 viewers of http://", "1 of them on weak networks of 1 Mbit/s to 20 Mbit/s", "sessions", "rebuffering", "0.564 Mbit/s 0x9", "start-up", "first byte", "p99", "own CPU"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%q is not in\n%s", want, text.String())
			}
		}
		var back Report
		if err := json.Unmarshal(raw.Bytes(), &back); err != nil || back.Viewers != 2 || back.StartUp != r.StartUp || len(back.TimeLine) != 20 || back.Requests.Metrics.Requests != r.Requests.Metrics.Requests {
			t.Errorf("%v, %s", err, raw.Bytes())
		}
		d := xml.NewDecoder(&svg)
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A video that cannot be played is reported at once.
func TestRefused(t *testing.T) {
	fretest.CheckLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		s := newStudio(t)
		refusing := fretest.Refusing(t)
		for name, c := range map[string]struct {
			config Config
			is     error
			says   string
		}{
			"nothing listens": {Config{URLs: []string{"http://" + refusing + "/master.m3u8"}}, unix.ECONNREFUSED, "connection refused"},
			"not there":       {Config{URLs: []string{"http://studio/none.m3u8"}}, nil, "/none.m3u8: status 404"},
			"no playlist":     {Config{URLs: []string{"http://studio/0/init.mp4"}}, errPlaylist, "not with #EXTM3U"},
			"no master":       {Config{URLs: []string{"http://studio/0/list.m3u8"}}, errPlaylist, "/0/list.m3u8: not a playlist that can be played: a media playlist, where"},
			"no URL":          {Config{}, ErrConfig, "no URL"},
			"half a URL":      {Config{URLs: []string{"localhost:8090/x"}}, ErrConfig, "give a whole one"},
			"no address":      {Config{URLs: []string{"http://%zz"}}, ErrConfig, "%zz"},
			"viewers":         {Config{URLs: []string{"http://studio"}, Viewers: -1}, ErrConfig, "-1 viewers"},
			"duration":        {Config{URLs: []string{"http://studio"}, Duration: -1}, ErrConfig, "negative"},
			"ramp":            {Config{URLs: []string{"http://studio"}, Duration: time.Second, Ramp: time.Minute}, ErrConfig, "come within 1m0s"},
			"share":           {Config{URLs: []string{"http://studio"}, WeakShare: 1.5}, ErrConfig, "1.5"},
			"weak":            {Config{URLs: []string{"http://studio"}, WeakMin: 2e6, WeakMax: 1e6}, ErrConfig, "weak network"},
			"rate":            {Config{URLs: []string{"http://studio"}, Rate: -4}, ErrConfig, "-4 bits"},
			"seeks":           {Config{URLs: []string{"http://studio"}, Seeks: 1e9}, ErrConfig, "seeks"},
			"buffer":          {Config{URLs: []string{"http://studio"}, BufferMin: time.Second, BufferMax: time.Second}, ErrConfig, "loaded ahead"},
		} {
			if len(c.config.URLs) > 0 && strings.HasPrefix(c.config.URLs[0], "http://studio") {
				c.config.Dial = s.dial
			}
			_, err := Run(t.Context(), c.config)
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Viewers play an asset of the video service's own origin.
func TestOrigin(t *testing.T) {
	fretest.CheckLeaks(t)
	library, _, err := asset.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := &asset.Asset{ID: asset.NewID(), State: asset.Ready, Made: asset.NewID(), Duration: 20}
	sizes := map[string]int64{"v720p": 500_000, "v360p": 100_000, "a0": 20_000}
	for name, size := range sizes {
		r := &asset.Rendition{Name: name, Kind: "video", Codec: "avc1.64001f", Width: 16, Height: 9, TimeScale: 1000, Init: 700}
		if name == "a0" {
			r.Kind, r.Codec = "audio", "mp4a.40.2"
		}
		for i := range int64(10) {
			r.Segments = append(r.Segments, asset.Segment{Offset: r.Init + i*size, Size: size, Duration: 2000, Key: size / 3})
		}
		a.Renditions = append(a.Renditions, r)
	}
	if err := library.Create(a); err != nil {
		t.Fatal(err)
	}
	for name, size := range sizes {
		path := library.Path(a.ID, name+".mp4")
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 700+10*size)); err != nil {
			t.Fatal(err)
		}
	}
	o := origin.New(origin.Config{Library: library, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Prefix: "/assets"})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := httpserver.New(httpserver.Config{Handler: o})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	r := play(t, Config{
		URLs: []string{"http://" + l.Addr().String() + o.Path(a.ID, time.Hour) + "/hls/master.m3u8"}, Viewers: 3, WeakShare: 0.4, Seeks: 60,
		Duration: 4 * time.Second, BufferMin: 4 * time.Second, BufferMax: 4 * time.Second,
	})
	if len(r.Errors) > 0 || r.StartUp.Count == 0 || r.Requests.Metrics.BytesIn.Total < 200_000 {
		t.Errorf("%+v", r)
	}
	if err := errors.Join(server.Close(), o.Close(), library.Close()); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
