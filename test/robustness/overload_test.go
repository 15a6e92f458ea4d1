package robustness

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/template"
)

const (
	// goodput is the least part of its capacity that a function must reach under three times the
	// load. With a CPU for the client (make bench-data) the function reaches all of it; here client
	// and function share two CPUs with other programs.
	goodput = 0.5

	asking = 3 * time.Second
)

// Asked for three times its capacity, a function still does its part, and the engine refuses the
// rest with a reason. No client is left waiting; another function and the engine itself answer.
func TestOverload(t *testing.T) {
	w := newWorld(t, daemontest.Serve(t,
		testdaemon.Function{Name: "victim", Config: image.Config{Instances: template.Instances{Idle: time.Hour}}},
		testdaemon.Function{Name: "slow", Config: image.Config{Protocol: image.ProtocolStdio, Tenant: "other", Instances: template.Instances{Max: 2}}},
	))
	alone := func() (perSecond float64) {
		r, err := w.bench(t, "--connections", "2", "--duration", "1s")
		if err != nil || r.Metrics.Success != 1 {
			t.Fatalf("alone: %+v, %v", r, err)
		}
		return r.Metrics.Throughput
	}
	capacity := alone()
	w.measure(t) // warms up
	quiet := w.measure(t)

	much := 3 * capacity
	done := make(chan struct{})
	var busy report
	var err error
	go func() {
		defer close(done)
		busy, err = w.bench(t, "--connections", "2000", "--rate", strconv.FormatFloat(much, 'f', 3, 64), "--duration", asking.String())
	}()
	w.untilRefused(t, done)
	during := w.measure(t)
	if status, _, _ := w.fetch(t, "/healthz"); status != http.StatusOK {
		t.Errorf("health: %d", status)
	}
	if out, err := w.d.CLI(t.Context(), "status", "--format", "{{.State}}"); err != nil || out != "normal\n" {
		t.Errorf("status: %q, %v", out, err)
	}
	<-done
	if err != nil {
		t.Fatal(err)
	}
	capacity = min(capacity, alone()) // the load of other programs may have changed
	served, refused := busy.ByStatus["200"], busy.ByStatus["503"]
	rate := float64(served.Count) / asking.Seconds()
	t.Logf("capacity %.0f/s; asked for %.0f/s: %.2f of capacity, p99 %v; refused %d, p99 %v",
		capacity, much, rate/capacity, served.P99, refused.Count, refused.P99)
	if total := busy.Metrics.Requests; served.Count+refused.Count != total || busy.Unfinished != 0 {
		t.Errorf("of %d, %d were served and %d refused, %d are not done: %v", total, served.Count, refused.Count, busy.Unfinished, busy.ErrorCounts)
	}
	if rate < goodput*capacity {
		t.Errorf("it did %.0f events/s, want at least %.1f of %.0f", rate, goodput, capacity)
	}
	beside := series{quiet: []times{quiet}, attacked: []times{during}}
	beside.check(t, atMostBusy)
	w.until(t, func() error {
		const want = "normal 0 0 0\n"
		out, err := w.d.CLI(t.Context(), "status", "--format", "{{.State}} {{.Events.Running}} {{.Events.Waiting}} {{.Events.Queued}}")
		if err == nil && out != want {
			err = fmt.Errorf("status %q, want %q", out, want)
		}
		return err
	})
}

// report is the part of a fre-bench report that the test reads.
type report struct {
	Unfinished  uint64            `json:"unfinished"`
	ErrorCounts map[string]uint64 `json:"error_counts"`
	ByStatus    map[string]struct {
		Count uint64        `json:"count"`
		P99   time.Duration `json:"p99"`
	} `json:"by_status"`
	Metrics struct {
		Requests   uint64  `json:"requests"`
		Throughput float64 `json:"throughput"`
		Success    float64 `json:"success"`
	} `json:"metrics"`
}

// bench calls the slow function with fre-bench, which make builds beside fre. The load generator
// belongs to the module bench, and FRE's own module imports no package of bench.
func (w *world) bench(t *testing.T, args ...string) (r report, err error) {
	t.Helper()
	program := filepath.Join(filepath.Dir(daemontest.Bin(t)), "fre-bench")
	out, err := testdaemon.Command(t.Context(), program, append([]string{
		"http", w.d.URL("/function/slow.other/pause?20ms"), "--warm-up", "200ms", "--format", "json",
	}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &r)
	}
	return r, err
}

// untilRefused calls the slow function until the engine refuses. The refusal must have a reason and
// Retry-After.
func (w *world) untilRefused(t *testing.T, done <-chan struct{}) {
	t.Helper()
	for {
		status, header, text := w.fetch(t, "/function/slow.other/pause?20ms")
		if status == http.StatusOK {
			select {
			case <-done:
				t.Error("it was never too much")
				return
			case <-time.After(rand.N(20 * time.Millisecond)): // an immediate retry would find the place that it just left
				continue
			}
		}
		var body struct{ Error struct{ Code string } }
		err := json.Unmarshal(text, &body)
		if status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || body.Error.Code != "overloaded" {
			t.Errorf("refused by %d, Retry-After %q, %+v, %v", status, header.Get("Retry-After"), body, err)
		}
		return
	}
}

// fetch calls the gateway.
func (w *world) fetch(t *testing.T, path string) (status int, header http.Header, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.d.URL(path), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, body
}
