package origin_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/httpserver/accesslog"
	"github.com/fre-engine/fre/video/origin"
)

// TestAccessLog: the access log has a line per answer with the bytes and the asset, and without the
// tokens that give access.
func TestAccessLog(t *testing.T) {
	var log bytes.Buffer
	lines := accesslog.New[origin.Access](&log, slog.New(slog.DiscardHandler), nil)
	w := newWorld(t, bytes.Repeat([]byte("k"), 32), func(c *origin.Config) { c.AccessLog = lines })
	a := w.add(t)
	good := w.origin.Path(a.ID, time.Hour)
	w.ask(t, "GET", good+"/cmaf/v720p/1.m4s", `CMCD-Session: sid="6e2fb550",sf=v`)
	w.ask(t, "HEAD", good+"/cmaf/v720p/1.m4s")
	w.ask(t, "GET", good+"/cmaf/v720p/1.m4s?CMCD=bl%3D1%2Csid%3D%22q%22", "Range: bytes=5-9")
	w.ask(t, "GET", good+"/none")
	w.ask(t, "GET", strings.Replace(good, "@", "@9", 1)+"/cmaf/v720p/1.m4s")
	w.ask(t, "GET", "/assets/nobody/x")
	w.ask(t, "OPTIONS", good+"/x")
	w.end() // a line is written after the answer
	if err := lines.Close(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log.String(), "@") {
		t.Errorf("the log has a signature:\n%s", &log)
	}
	var got []origin.Access
	for line := range bytes.Lines(log.Bytes()) {
		var one origin.Access
		if err := json.Unmarshal(line, &one); err != nil || one.Time.IsZero() || one.Micros < 0 {
			t.Errorf("%s: %v", line, err)
		}
		one.Time, one.Micros = time.Time{}, 0
		if one.Status >= 400 {
			one.Bytes = min(one.Bytes, 1)
		}
		got = append(got, one)
	}
	const segment = "cmaf/v720p/1.m4s"
	want := []origin.Access{
		{Asset: a.ID, Client: "127.0.0.1", Method: "GET", Path: segment, Status: 200, Bytes: 10_000, Session: "6e2fb550"},
		{Asset: a.ID, Client: "127.0.0.1", Method: "HEAD", Path: segment, Status: 200},
		{Asset: a.ID, Client: "127.0.0.1", Method: "GET", Path: segment, Range: "bytes=5-9", Status: 206, Bytes: 5, Session: "q"},
		{Asset: a.ID, Client: "127.0.0.1", Method: "GET", Path: "none", Status: 404, Bytes: 1},
		{Asset: a.ID, Client: "127.0.0.1", Method: "GET", Status: 403, Bytes: 1},
		{Asset: "nobody", Client: "127.0.0.1", Method: "GET", Status: 404, Bytes: 1},
		{Client: "127.0.0.1", Method: "OPTIONS", Status: 204},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestAssetMetrics: the sent bytes of an asset are counted only while its playlists are open.
func TestAssetMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := newWorld(t, nil, func(c *origin.Config) { c.Metrics = reg })
	a, other := w.add(t), w.add(t)
	w.ask(t, "GET", "/assets/"+a.ID+"/cmaf/v720p/1.m4s")
	w.ask(t, "HEAD", "/assets/"+a.ID+"/cmaf/v720p/1.m4s")
	w.ask(t, "GET", "/assets/"+a.ID+"/cmaf/v720p/1.m4s", "Range: bytes=0-9")
	counted := func() map[string]float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if l := m.GetLabel(); len(l) == 1 && l[0].GetName() == "asset" {
					found[f.GetName()+" "+l[0].GetValue()] = m.GetCounter().GetValue()
				}
				if f.GetName() == "fre_video_sent_bytes_total" {
					found[f.GetName()] = m.GetCounter().GetValue()
				}
			}
		}
		return found
	}
	await := func(want map[string]float64) {
		t.Helper()
		var diff string
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); { // counted behind the answer
			if diff = cmp.Diff(want, counted()); diff == "" {
				return
			}
			w.ask(t, "HEAD", "/none")
		}
		t.Error(diff)
	}
	await(map[string]float64{"fre_video_asset_answers_total " + a.ID: 3, "fre_video_asset_sent_bytes_total " + a.ID: 10_010, "fre_video_sent_bytes_total": 10_010})
	if err := w.library.Remove(a.ID); err != nil {
		t.Fatal(err)
	}
	await(map[string]float64{"fre_video_sent_bytes_total": 10_010})
	w.ask(t, "HEAD", "/assets/"+other.ID+"/hls/master.m3u8")
	await(map[string]float64{"fre_video_asset_answers_total " + other.ID: 1, "fre_video_asset_sent_bytes_total " + other.ID: 0, "fre_video_sent_bytes_total": 10_010})
}

// BenchmarkServe requests a segment of 10 kB and a playlist over one connection, with and without
// the access log.
func BenchmarkServe(b *testing.B) {
	for _, logged := range []string{"without a log", "with one"} {
		b.Run(logged, func(b *testing.B) {
			w := newWorld(b, nil, func(c *origin.Config) {
				if logged == "with one" {
					file, err := os.Create(filepath.Join(b.TempDir(), "log"))
					if err != nil {
						b.Fatal(err)
					}
					c.AccessLog = accesslog.New[origin.Access](file, slog.New(slog.DiscardHandler), nil)
					b.Cleanup(func() {
						if err := c.AccessLog.Close(); err != nil {
							b.Error(err)
						}
						if err := file.Close(); err != nil {
							b.Error(err)
						}
					})
				}
			})
			a := w.add(b)
			for _, path := range []string{"cmaf/v720p/1.m4s", "hls/v720p.m3u8"} {
				b.Run(filepath.Base(path), func(b *testing.B) {
					r, err := http.NewRequestWithContext(b.Context(), "GET", w.base+"/assets/"+a.ID+"/"+path, nil)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportAllocs()
					for b.Loop() {
						answer, err := w.client.Do(r)
						if err != nil {
							b.Fatal(err)
						}
						_, err = io.Copy(io.Discard, answer.Body)
						if err := answer.Body.Close(); err != nil {
							b.Fatal(err)
						}
						if err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}
