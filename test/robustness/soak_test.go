package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/template"
)

const (
	soakClients = 8
	soakPace    = 20 * time.Millisecond  // the least time between two exchanges of a client
	soakSlow    = 500 * time.Millisecond // the time for an exchange that would not end by itself
	soakSamples = 10 * time.Second
)

// soakRoom is the allowed growth in resources outside roomy: goroutines of recent work's pools, and
// a mount of each parked sandbox.
var soakRoom = map[string]int64{"goroutine": 3 * int64(roomy.parked), "mount": int64(roomy.parked)}

// well are correct exchanges.
var well = []exchange{
	whole("/function/fn.chaos/stream?1048576", 1<<20),
	whole("/function/fn.chaos/large", 1<<20),
	whole("/function/fn.chaos/file/unsealed?262144", 256<<10),
	whole("/function/fn.chaos/file/named?262144", 256<<10),
	whole("/function/printer.chaos/print?100", 100),
	whole("/function/printer.chaos/print?2097152", 2<<20),
	whole("/function/again.chaos/stream?65536", 64<<10),
	echo("victim", 100),
	echo("again.chaos", 100_000),
	echo("fn.chaos", 1_000_000),
	wholeStream("/function/fn.chaos/large", 1<<20),
}

// echo sends a body and requires the same body back.
func echo(name string, size int) exchange {
	return func(_ context.Context, w *world) error {
		body := strings.Repeat("x", size)
		a, err := testdaemon.Event{Method: http.MethodPost, Body: body}.Call(context.Background(), w.client, w.d.Addr(), name)
		if err != nil || a.Status != http.StatusOK || string(a.Body) != body {
			return fmt.Errorf("%s with %d bytes: %+.200v, %w", name, size, a, err)
		}
		return nil
	}
}

// wholeStream requires an answer of size bytes over HTTP/2.
func wholeStream(path string, size int) exchange {
	return func(_ context.Context, w *world) error {
		return w.overHTTP2(func(client *http.Client) error {
			resp, err := client.Get(w.d.URL(path))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if n, err := checkBody(resp.Body, 0); err != nil || n != size || resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s, %d bytes, %w; want %d", path, resp.Status, n, err, size)
			}
			return nil
		})
	}
}

// After a long mixed load the engine holds no more than before. The load is everything of
// TestChaos, correct exchanges and repeated deployments, for FRE_SOAK (default two seconds).
//
// FRE_SOAK_TEMPLATES names templates, such as "python-hello node-hello", to build, call and remove
// as well: a Python function with a slow import has a fork server, which stays for half an hour
// (docs/fork-server.md) but no longer than the function.
func TestSoak(t *testing.T) {
	duration := 2 * time.Second
	if text := os.Getenv("FRE_SOAK"); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	d := serveChaos(t, testdaemon.Function{Name: "again", Config: image.Config{Tenant: "chaos", Instances: template.Instances{Idle: time.Second, Max: 4}}})
	w := newWorld(t, d)
	tries := append([]exchange{}, well...)
	for _, m := range misbehaviours {
		if m.name != "datagrams" {
			tries = append(tries, m.tries...)
		}
	}
	var templates []copied
	for name := range strings.FieldsSeq(os.Getenv("FRE_SOAK_TEMPLATES")) {
		f := w.readTemplate(t, name)
		templates, tries = append(templates, f), append(tries, f.call)
	}
	load := func(duration time.Duration, every func()) (exchanges int) {
		for _, f := range templates {
			if _, err := d.CLI(t.Context(), "deploy", f.dir, "--name", f.name); err != nil {
				t.Fatal(err)
			}
		}
		exchanges = w.load(t, duration, tries, every)
		w.client.CloseIdleConnections()
		for _, f := range templates {
			if _, err := d.CLI(t.Context(), "function", "rm", f.name); err != nil {
				t.Error(err)
			}
		}
		return exchanges
	}

	w.measure(t) // starts the victim, which stays
	had := w.holdings(t)
	load(duration/10, nil)
	w.untilQuiet(t, had)
	quiet, before := w.holdings(t), w.held(t)
	t.Logf("quiet before: %+v, %v", quiet, before)
	began := time.Now()
	exchanges := load(duration, func() {
		if _, err := d.CLI(t.Context(), "deploy", "--image", "again:1", "--name", "again"); err != nil {
			t.Error(err)
		}
		t.Logf("%v: %v", time.Since(began).Round(time.Second), w.held(t))
	})
	w.untilQuiet(t, quiet)
	after := w.held(t)
	t.Logf("quiet after %d exchanges in %v: %+v, %v", exchanges, time.Since(began).Round(time.Second), w.holdings(t), after)
	for kind, room := range soakRoom {
		if after[kind] > before[kind]+room {
			t.Errorf("%s: %d, %d before", kind, after[kind], before[kind])
		}
	}
	t.Logf("stops for collections of garbage: p50 %v, p99 %v, longest %v", w.pause(t, "0.5"), w.pause(t, "0.99"), w.pause(t, "1"))
}

// copied is a copy of a template from templates/.
type copied struct {
	name, dir string
	call      exchange // the template's test case
}

// readTemplate copies a template from templates/ and gives its instances a short idle time.
func (w *world) readTemplate(t *testing.T, name string) copied {
	t.Helper()
	source, err := filepath.Abs(filepath.Join("../../templates", name))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), name)
	if err := testdaemon.CopyTemplate(t.Context(), source, dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "fret.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var fret map[string]any
	if err := yaml.Unmarshal(text, &fret); err != nil {
		t.Fatal(err)
	}
	instances, _ := fret["instances"].(map[string]any)
	if instances == nil {
		instances = map[string]any{}
	}
	instances["idle"], instances["max"] = "1s", 2
	fret["instances"] = instances
	if text, err = yaml.Marshal(fret); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := testdaemon.LoadCase(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return copied{name, dir, func(_ context.Context, w *world) error {
		a, err := c.Event.Call(context.Background(), w.client, w.d.Addr(), name)
		if err != nil {
			return err
		}
		return c.Check(a)
	}}
}

// load runs clients with exchanges in random order, and calls now from time to time unless now is
// nil. It returns the number of exchanges.
func (w *world) load(t *testing.T, duration time.Duration, tries []exchange, now func()) (count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	counts := make([]int, soakClients)
	var clients sync.WaitGroup
	for i := range soakClients {
		seed := uint64(time.Now().UnixNano()) + uint64(i)
		r := rand.New(rand.NewPCG(seed, 0))
		clients.Go(func() {
			tick := time.NewTicker(soakPace)
			defer tick.Stop()
			for ctx.Err() == nil {
				slow, stop := context.WithTimeout(ctx, soakSlow)
				which := r.IntN(len(tries))
				if err := tries[which](slow, w); err != nil {
					t.Errorf("seed %d, exchange %d: %v", seed, which, err)
				}
				stop()
				counts[i]++
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	if now != nil {
		tick := time.NewTicker(soakSamples)
		defer tick.Stop()
		for now(); ctx.Err() == nil; {
			select {
			case <-tick.C:
				now()
			case <-ctx.Done():
			}
		}
	}
	clients.Wait()
	for _, n := range counts {
		count += n
	}
	return count
}

// held returns the holdings of the engine's process by kind: counts, and bytes of memory.
func (w *world) held(t *testing.T) map[string]int64 {
	t.Helper()
	out, err := w.d.CLI(t.Context(), "debug", "leaks", "--format", "{{json .}}")
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]int64{"buffer": 0}
	for line := range strings.Lines(out) {
		var h struct {
			Kind, Name   string
			Count, Bytes int64
		}
		if err := json.Unmarshal([]byte(line), &h); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if h.Kind == "memory" {
			held[h.Name] = h.Bytes
			continue
		}
		held[h.Kind] += h.Count
	}
	return held
}

// pause returns a quantile of the engine's garbage collection pauses.
func (w *world) pause(t *testing.T, quantile string) time.Duration {
	t.Helper()
	return time.Duration(w.metric(t, fmt.Sprintf("fre_go_gc_pause_seconds{quantile=%q}", quantile)) * float64(time.Second))
}
