package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/fretest"
)

// serve runs an HTTP server until t ends.
func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	fretest.CheckLeaks(t)
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s
}

func run(t *testing.T, c Config) *Report {
	t.Helper()
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestClosedLoop(t *testing.T) {
	var served, received atomic.Int64
	var connections sync.Map
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		connections.Store(r.RemoteAddr, nil)
		n, _ := io.Copy(io.Discard, r.Body)
		received.Add(n)
		if r.Method != http.MethodPut || r.Header.Get("X-A") != "b" || r.Host != "example.org" {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = w.Write(make([]byte, 300<<10))
	})
	r := run(t, Config{
		URL: s.URL + "/path?query", Method: "PUT", Body: []byte("12345"), Connections: 4, Duration: 50 * time.Millisecond,
		Header: http.Header{"X-A": {"b"}, "Host": {"example.org"}},
	})
	m := r.Metrics
	if got, want := m.Requests, uint64(served.Load()); got != want || got < 4 {
		t.Errorf("%d requests reported, %d served", got, want)
	}
	if got, want := m.BytesIn.Total, m.Requests*(300<<10); got != want {
		t.Errorf("%d bytes in, want %d", got, want)
	}
	if got, want := int64(m.BytesOut.Total), received.Load(); got != want {
		t.Errorf("%d bytes out, %d received", got, want)
	}
	if diff := cmp.Diff(map[string]int{"200": int(m.Requests)}, m.StatusCodes); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	n := 0
	connections.Range(func(any, any) bool { n++; return true })
	if n != 4 {
		t.Errorf("%d connections, want 4", n)
	}
	if m.Success != 1 || m.Throughput <= 0 || r.Loop != "closed" || r.Interrupted || r.Unfinished != 0 {
		t.Errorf("report: %+v", r)
	}
}

func TestOpenLoop(t *testing.T) {
	var served atomic.Int64
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte("none"))
	})
	r := run(t, Config{URL: s.URL, Rate: 500, Duration: 100 * time.Millisecond, WarmUp: 20 * time.Millisecond})
	if got := served.Load(); got != 60 {
		t.Errorf("%d requests served, want 60", got)
	}
	if diff := cmp.Diff(map[string]int{"404": 50}, r.Metrics.StatusCodes); diff != "" {
		t.Errorf("statuses without the warm-up (-want +got):\n%s", diff)
	}
	if st := r.ByStatus["404"]; len(r.ByStatus) != 1 || st.Count != 50 || st.P50 <= 0 || st.P99 < st.P50 || st.Slowest < st.P99 {
		t.Errorf("by status: %+v", r.ByStatus)
	}
	if r.Metrics.Requests != 50 || r.Metrics.BytesIn.Total != 200 || r.Metrics.Success != 0 || r.Loop != "open" {
		t.Errorf("report: %+v", r)
	}
}

// The percentiles include the wait of requests that are due while the server stalls, whether the
// tool could send meanwhile or not.
func TestOmission(t *testing.T) {
	const stall = 200 * time.Millisecond
	for name, connections := range map[string]int{"one connection": 1, "many": 1000} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			n := 0
			s := serve(t, func(http.ResponseWriter, *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if n++; n == 10 {
					<-time.After(stall)
				}
			})
			r := run(t, Config{URL: s.URL, Rate: 500, Connections: connections, Duration: 400 * time.Millisecond})
			if r.Metrics.Requests != 200 {
				t.Errorf("%d requests, want 200", r.Metrics.Requests)
			}
			// Due every 2 ms: 50 of 200 requests within the first half of the stall.
			if p := r.Metrics.Latencies; p.P90 < stall/2 || p.P99 < stall*9/10 || p.Max < stall {
				t.Errorf("p90 %v, p99 %v, slowest %v with a stall of %v", p.P90, p.P99, p.Max, stall)
			}
			for _, p := range r.Percentiles {
				if p.Service > p.Latency {
					t.Errorf("p%v: %v from sending, %v from when it was due", p.Percent, p.Service, p.Latency)
				}
			}
		})
	}
}

func TestInterrupt(t *testing.T) {
	for name, rate := range map[string]float64{"closed": 0, "open": 1000} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			release := make(chan struct{})
			var served atomic.Int64
			s := serve(t, func(http.ResponseWriter, *http.Request) {
				if n := served.Add(1); n > 5 {
					if n == 8 {
						cancel()
					}
					<-release
				}
			})
			defer close(release)
			r, err := Run(ctx, Config{URL: s.URL, Rate: rate, Connections: 3, Duration: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			// In an open loop a further request may be due and sent by then.
			if !r.Interrupted || r.Metrics.Requests != 5 || r.Unfinished != 3 && (rate == 0 || r.Unfinished != 4) || len(r.ErrorCounts) != 0 {
				t.Errorf("interrupted %v, %d requests, %d unfinished, errors %v; want true, 5, 3, none", r.Interrupted, r.Metrics.Requests, r.Unfinished, r.ErrorCounts)
			}
			var text strings.Builder
			if err := r.Text(&text); err != nil || !strings.Contains(text.String(), "Interrupted after") {
				t.Errorf("%v: %s", err, text.String())
			}
		})
	}
}

func TestErrors(t *testing.T) {
	script := func(answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			c, b, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = b.WriteString(answer)
			_ = b.Flush()
			_ = c.Close()
		}
	}
	for _, c := range []struct {
		name, answer, want string
	}{
		{"ends before", "", errEnded.Error()},
		{"ends in the head", "HTTP/1.1 200 OK\r\nA:", errBroken.Error()},
		{"ends in the body", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345", errBroken.Error()},
		{"ends in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123", errBroken.Error()},
		{"no HTTP", "220 ready\r\n\r\n", `not an HTTP/1.1 answer: "220 ready"`},
	} {
		for _, rate := range []float64{0, 200} {
			t.Run(c.name, func(t *testing.T) {
				s := serve(t, script(c.answer))
				r := run(t, Config{URL: s.URL, Rate: rate, Duration: 30 * time.Millisecond})
				if diff := cmp.Diff(map[string]uint64{c.want: r.Metrics.Requests}, r.ErrorCounts); diff != "" || r.Metrics.Requests == 0 {
					t.Errorf("errors of %d requests (-want +got):\n%s", r.Metrics.Requests, diff)
				}
				if diff := cmp.Diff(map[string]int{"0": int(r.Metrics.Requests)}, r.Metrics.StatusCodes); diff != "" {
					t.Errorf("statuses (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestTimeout(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	r := run(t, Config{URL: s.URL, Duration: time.Millisecond, Timeout: 20 * time.Millisecond})
	if diff := cmp.Diff(map[string]uint64{"i/o timeout": 1}, r.ErrorCounts); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	if r.Metrics.Latencies.Min < 19*time.Millisecond {
		t.Errorf("a time-out of 20 ms took %v", r.Metrics.Latencies.Min)
	}
}

// A server that answers while reading does not block the client: a client that sends the whole
// request first would wait for the server, and the server for the client.
func TestEcho(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, r.Body)
	})
	const size = 16 << 20
	r := run(t, Config{URL: s.URL, Body: make([]byte, size), Duration: time.Millisecond, Connections: 2})
	if r.Metrics.Requests < 2 || r.Metrics.BytesIn.Total != r.Metrics.Requests*size || r.Metrics.Success != 1 {
		t.Errorf("%+v", r)
	}
}

func TestConnectionEnds(t *testing.T) {
	var served atomic.Int64
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if served.Add(1)%2 == 0 {
			w.Header().Set("Connection", "close")
		}
	})
	r := run(t, Config{URL: s.URL, Duration: 30 * time.Millisecond})
	if r.Metrics.Success != 1 || r.Metrics.Requests != uint64(served.Load()) {
		t.Errorf("%d served: %+v", served.Load(), r)
	}
}

func TestTLS(t *testing.T) {
	fretest.CheckLeaks(t)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	r := run(t, Config{URL: s.URL, TLS: &tls.Config{RootCAs: roots}, Duration: time.Millisecond})
	if r.Metrics.Success != 1 || r.Metrics.BytesIn.Mean != float64(len("HTTP/1.1")) {
		t.Errorf("%+v", r.Metrics)
	}
}

func TestUnix(t *testing.T) {
	fretest.CheckLeaks(t)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) }))
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	r := run(t, Config{URL: "http://name/", Unix: socket, Duration: time.Millisecond})
	if r.Metrics.Success != 1 || r.Metrics.BytesIn.Mean != 4 {
		t.Errorf("%+v", r.Metrics)
	}
}

func TestRefused(t *testing.T) {
	fretest.CheckLeaks(t)
	addr := fretest.Refusing(t)
	_, err := Run(t.Context(), Config{URL: "http://" + addr})
	if want := "connect to " + addr + ": connect: connection refused"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if errors.Is(err, ErrConfig) {
		t.Errorf("%v is no mistake of the Config", err)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name, want string
		config     Config
	}{
		{"no URL", "give a whole one", Config{}},
		{"no scheme", "give a whole one", Config{URL: "localhost:80/"}},
		{"no host", "give a whole one", Config{URL: "http:///x"}},
		{"other scheme", "give a whole one", Config{URL: "ftp://localhost/"}},
		{"not a URL", "invalid port", Config{URL: "http://localhost:x/"}},
		{"method", `method "A B"`, Config{URL: "http://h/", Method: "A B"}},
		{"tunnel", "CONNECT", Config{URL: "http://h/", Method: "CONNECT"}},
		{"header", `"a\r\nb"`, Config{URL: "http://h/", Header: http.Header{"X": {"a\r\nb"}}}},
		{"framing", "the tool's own", Config{URL: "http://h/", Header: http.Header{"Content-Length": {"1"}}}},
		{"host", "header", Config{URL: "http://h/", Header: http.Header{"Host": {"a\nb"}}}},
		{"rate", "a rate of -1", Config{URL: "http://h/", Rate: -1}},
		{"no request", "is no request", Config{URL: "http://h/", Rate: 0.1, Duration: time.Second}},
		{"negative", "nothing may be negative", Config{URL: "http://h/", Connections: -1}},
		{"two servers", "all are to be of one server", Config{URL: "http://h/", More: []string{"http://i/"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Run(t.Context(), c.config)
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ErrConfig with %q", err, c.want)
			}
		})
	}
}

func TestRequest(t *testing.T) {
	p, err := Config{URL: "http://h:8080/a?b#c", Body: []byte("xy"), Header: http.Header{"B": {"2", "3"}, "A": {"1"}}}.plan()
	if err != nil {
		t.Fatal(err)
	}
	want := "POST /a?b HTTP/1.1\r\nHost: h:8080\r\nUser-Agent: fre-bench\r\nA: 1\r\nB: 2\r\nB: 3\r\nContent-Length: 2\r\n\r\nxy"
	if diff := cmp.Diff(want, string(p.request())); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

// Several URLs take turns and get equal numbers of requests.
func TestTurns(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]int{}
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked[r.URL.Path]++
	})
	r, err := Run(t.Context(), Config{URL: s.URL + "/a", More: []string{s.URL + "/b", s.URL + "/c"}, Connections: 3, Duration: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if n := int(r.Metrics.Requests) / 3; r.Metrics.Success != 1 || len(asked) != 3 || min(asked["/a"], asked["/b"], asked["/c"]) < n-3 {
		t.Errorf("%v, of %d requests", asked, r.Metrics.Requests)
	}
}

func TestReport(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	for _, rate := range []float64{0, 1000} {
		r := run(t, Config{URL: s.URL + "/<&>", Rate: rate, Duration: 20 * time.Millisecond})
		var raw, text bytes.Buffer
		if err := errors.Join(r.JSON(&raw), r.Text(&text)); err != nil {
			t.Fatal(err)
		}
		var back Report
		if err := json.Unmarshal(raw.Bytes(), &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r.Percentiles, back.Percentiles); diff != "" || len(back.Percentiles) != len(reported) {
			t.Fatalf("percentiles (-want +got):\n%s", diff)
		}
		for i := range back.Percentiles[1:] {
			if back.Percentiles[i].Latency > back.Percentiles[i+1].Latency {
				t.Errorf("percentiles fall: %+v", back.Percentiles)
			}
		}
		h, err := hdrhistogram.Decode([]byte(back.HDR))
		if err != nil || uint64(h.TotalCount()) != r.Metrics.Requests {
			t.Errorf("histogram of %d requests: %v, %v", r.Metrics.Requests, h, err)
		}
		for _, want := range []string{"requests", "p99.9", "slowest", "answered     100.00 %"} {
			if !strings.Contains(strings.ReplaceAll(text.String(), "   ", " "), strings.ReplaceAll(want, "   ", " ")) && !strings.Contains(text.String(), want) {
				t.Errorf("no %q in:\n%s", want, text.String())
			}
		}
		d := xml.NewDecoder(bytes.NewReader(r.SVG()))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in:\n%s", err, r.SVG())
			}
		}
	}
	empty := newRecorder(&plan{Config: Config{URL: "http://h/"}}).report(true)
	if err := errors.Join(empty.JSON(io.Discard), empty.Text(io.Discard)); err != nil || len(empty.SVG()) == 0 {
		t.Errorf("of nothing: %v", err)
	}
}
