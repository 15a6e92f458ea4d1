// Command events measures asynchronous events:
//
//   - events per second from a client's POST to the end of a warm no-op Python handler, and the
//     time until an event is on disk and acknowledged;
//   - the time from a signed webhook to the first line of a handler in a fresh sandbox, compared
//     with a synchronous request to the same function.
//
// The client runs on the same machine. For comparison the command measures the disk: an fsync of
// the bytes of one event.
//
//	go run ./bench/events        # as root, from the project's root directory
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/load"
	"github.com/fre-engine/fre/bench/internal/report"
	"github.com/fre-engine/fre/bench/internal/stats"
)

type options struct {
	engine.Options
	slice   time.Duration
	rounds  int
	rate    float64
	n       int
	results string
	summary string
	quick   bool
}

func main() {
	var o options
	o.Register(flag.CommandLine)
	flag.DurationVar(&o.slice, "slice", 4*time.Second, "how long events are published in each turn")
	flag.IntVar(&o.rounds, "rounds", 5, "turns of each kind")
	flag.Float64Var(&o.rate, "rate", 3000, "events per second of the turns at open loop")
	flag.IntVar(&o.n, "n", 60, "webhooks")
	flag.StringVar(&o.results, "results", "bench/results", "directory for the raw result")
	flag.StringVar(&o.summary, "summary", "", "also write the tables to this page")
	flag.BoolVar(&o.quick, "quick", false, "one short turn each, to see that it works")
	flag.Parse()
	if o.quick {
		o.slice, o.rounds, o.rate, o.n = 100*time.Millisecond, 1, 200, 3
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/events:", err)
		os.Exit(1)
	}
}

// turn holds one measurement.
type turn struct {
	Events    float64 `json:"events"`            // events that the function has finished
	PerSecond float64 `json:"events_per_second"` // from the first POST to the end of the last event
	Accepted  float64 `json:"accepted_per_second"`
	P50       float64 `json:"publish_p50_ms"`
	P99       float64 `json:"publish_p99_ms"`
	CPU       float64 `json:"engine_cpu_us_per_event"`
	Fsync     float64 `json:"fsync_p50_us"` // of a separate file, right before the turn
}

// series holds the turns of one kind.
type series struct {
	Name        string  `json:"name"`
	Connections int     `json:"connections"`
	Rate        float64 `json:"rate"` // 0: closed loop
	Turns       []turn  `json:"turns"`
}

type result struct {
	Host   host.Info `json:"host"`
	Series []*series `json:"series"`
	Hooks  hooks     `json:"webhooks"`
}

func run(ctx context.Context, o options) (err error) {
	e, err := engine.Open(ctx, o.Options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	const function = "bench-python-noop"
	if _, err := e.DeployWith(ctx, "bench/functions/python-noop", function, map[string]any{"events": map[string]any{"max_queue": 1000000}}); err != nil {
		return err
	}
	r := &result{Series: []*series{
		{Name: "closed loop", Connections: 16},
		{Name: "closed loop", Connections: 64},
		{Name: fmt.Sprintf("open loop, %.0f/s", o.rate), Connections: 256, Rate: o.rate},
	}}
	if r.Host, err = host.Describe(ctx, map[string][]string{"fre": e.Version()}); err != nil {
		return err
	}
	warm := &series{Connections: 2}
	if _, err := warm.measure(ctx, e, o.slice/4); err != nil {
		return err
	}
	for range o.rounds {
		for _, s := range r.Series {
			t, err := s.measure(ctx, e, o.slice)
			if err != nil {
				return fmt.Errorf("%s on %d connections: %w", s.Name, s.Connections, err)
			}
			s.Turns = append(s.Turns, t)
		}
	}
	if r.Hooks, err = webhooks(ctx, e, o.n); err != nil {
		return fmt.Errorf("webhooks: %w", err)
	}
	return report.Publish(o.results, o.summary, "Asynchronous events", "events", r.Host.Time, r, r.markdown())
}

// measure publishes events for a while and waits until all events have run.
func (s *series) measure(ctx context.Context, e *engine.Engine, slice time.Duration) (t turn, err error) {
	if t.Fsync, err = fsync(e.Dir()); err != nil {
		return t, err
	}
	before, err := done(ctx, e.Addr())
	if err != nil {
		return t, err
	}
	cpu, err := cpuTime(e.PID())
	if err != nil {
		return t, err
	}
	began := time.Now()
	rep, err := load.Run(ctx, load.Config{
		URL: "http://" + e.Addr() + "/async-function/bench-python-noop", Body: bytes.Repeat([]byte("x"), 300), Header: http.Header{"Content-Type": {"text/plain"}},
		Rate: s.Rate, Connections: s.Connections, Duration: slice,
	})
	if err != nil {
		return t, err
	}
	accepted := float64(rep.ByStatus["202"].Count)
	if accepted == 0 || len(rep.ByStatus) > 1 {
		return t, fmt.Errorf("not all were accepted: %v %v", rep.ByStatus, rep.ErrorCounts)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for t.Events < accepted {
		<-tick.C
		if time.Since(began) > slice+2*time.Minute {
			return t, fmt.Errorf("%.0f of %.0f events have ended", t.Events, accepted)
		}
		now, err := done(ctx, e.Addr())
		if err != nil {
			return t, err
		}
		t.Events = now - before
	}
	took := time.Since(began).Seconds()
	after, err := cpuTime(e.PID())
	if err != nil {
		return t, err
	}
	t.PerSecond, t.Accepted, t.CPU = t.Events/took, accepted/slice.Seconds(), (after-cpu)*1e6/t.Events
	t.P50, t.P99 = rep.Metrics.Latencies.P50.Seconds()*1e3, rep.Metrics.Latencies.P99.Seconds()*1e3
	return t, nil
}

var ended = regexp.MustCompile(`(?m)^fre_events_attempts_total\{outcome="done"\} ([0-9.e+]+)$`)

// done returns the number of events that have ended well.
func done(ctx context.Context, addr string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	m := ended.FindSubmatch(text)
	if m == nil {
		return 0, nil
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// cpuTime returns the CPU time of the engine's process, in seconds.
func cpuTime(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks float64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return ticks / 100, nil
}

// fsync returns the median time to write 400 bytes and sync them to the disk, in microseconds.
func fsync(dir string) (float64, error) {
	f, err := os.Create(filepath.Join(dir, "fsync"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var took []float64
	for range 101 {
		began := time.Now()
		if _, err := f.Write(make([]byte, 400)); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(began).Microseconds()))
	}
	return stats.Median(took), os.Remove(f.Name())
}

func (r *result) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Host.Markdown())
	b.WriteString("A client on the same machine POSTs 300 bytes to `/async-function`; 202 comes once the event is on disk. *Events/s* counts from the first POST until the function, a warm no-op in Python, has ended the last. CPU is the engine's own, without sandboxes. Medians of the turns; in brackets the least and the most.\n\n")
	b.WriteString("| | connections | events/s | accepted/s | publish p50 | publish p99 | CPU for each event | fsync beside it |\n|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, s := range r.Series {
		of := func(get func(turn) float64) []float64 {
			var v []float64
			for _, t := range s.Turns {
				v = append(v, get(t))
			}
			return v
		}
		rate := of(func(t turn) float64 { return t.PerSecond })
		p99 := of(func(t turn) float64 { return t.P99 })
		fmt.Fprintf(&b, "| %s | %d | %.0f (%.0f–%.0f) | %.0f | %.1f ms | %.1f ms (%.1f–%.1f) | %.0f µs | %.0f µs |\n", s.Name, s.Connections,
			stats.Median(rate), slices.Min(rate), slices.Max(rate), stats.Median(of(func(t turn) float64 { return t.Accepted })), stats.Median(of(func(t turn) float64 { return t.P50 })),
			stats.Median(p99), slices.Min(p99), slices.Max(p99), stats.Median(of(func(t turn) float64 { return t.CPU })), stats.Median(of(func(t turn) float64 { return t.Fsync })))
	}
	b.WriteString(r.Hooks.markdown())
	return b.String()
}
