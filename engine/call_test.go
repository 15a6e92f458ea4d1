package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// calls returns an engine with the functions f and g, and with the function other of tenant red.
func calls(t *testing.T, cfg Config) *rig {
	t.Helper()
	r := open(t)
	r.stop()
	r.start(cfg)
	r.deploy("f", nil)
	r.deploy("g", nil)
	r.deploy("other.red", func(c *image.Config) { c.Tenant = "red" })
	return r
}

// TestCalls: a function calls another function and passes on its answer.
func TestCalls(t *testing.T) {
	var mu sync.Mutex
	var records []CallRecord
	r := calls(t, Config{Called: func(c *CallRecord) {
		mu.Lock()
		defer mu.Unlock()
		records = append(records, *c)
	}})
	for _, size := range []int{0, 1, 100_000, 8 << 20} {
		body := strings.Repeat("z", size)
		if got, _, err := r.call(t.Context(), "f", "/call/g/", body); err != nil || got != body {
			t.Errorf("%d bytes through g: %d came back, %v", size, len(got), err)
		}
	}
	r.deploy("fresh", func(c *image.Config) { c.Instances.Isolation = template.IsolationEvent })
	r.deploy("program", stdio)
	for _, chain := range []string{"/call/fresh/", "/call/g/call/fresh/call/g/", "/call/program/", "/call/g@latest/", "/call/f/"} {
		r.mustCall("f", chain, "through", "through")
	}
	for path, want := range map[string]string{
		"/call/nobody/":    "not_found: f → nobody: ",
		"/call/other.red/": "forbidden: f → other.red: ",
		"/call/G!/":        "bad_call: f → G!: ",
		"/call/g@/":        "bad_call: f → g@: ",
		"/call/g@77/":      "not_found: f → g@77: ",
		"/call/g/fail":     "function_error: f → g: ",
		"/call/g/exit":     "function_crashed: f → g: ",
	} {
		got, resp, err := r.call(t.Context(), "f", path, "")
		if err != nil || resp.Status != 502 || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, %v; want it to begin with %q", path, got, err, want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if c := records[0]; c.From != "f" || c.Function != "g" || c.Status != 200 || c.Error != "" || c.Invocation == "" {
		t.Errorf("told of the first call: %+v", c)
	}
	if !slices.ContainsFunc(records, func(c CallRecord) bool { return c.Function == "nobody" && c.Error == "not_found" }) {
		t.Errorf("not told of the call of nobody")
	}
}

// TestCallsCarry: a call carries the time limit and the trace of the event from outside.
func TestCallsCarry(t *testing.T) {
	r := calls(t, Config{})
	r.deploy("brief", func(c *image.Config) { c.Resources.Timeout = 30 * time.Second })
	for path, most := range map[string]int{"/call/brief/deadline": 30_000, "/call/g/deadline": 60_000} {
		got, _, err := r.call(t.Context(), "f", path, "")
		if left, aerr := strconv.Atoi(got); err != nil || aerr != nil || left > most {
			t.Errorf("%s: %q, %v; want at most %d ms", path, got, err, most)
		}
	}
	got, _, err := r.call(t.Context(), "brief", "/call/g/deadline", "")
	if left, aerr := strconv.Atoi(got); err != nil || aerr != nil || left > 30_000 {
		t.Errorf("a call of brief's: %q, %v; want at most 30000 ms", got, err)
	}
	resp, err := r.Invoke(t.Context(), "f", &Request{Method: "GET", Path: "/call/g/headers", Headers: [][2]string{
		{"X-Request-Id", "one"}, {"Traceparent", "00-a-b-01"}, {"Authorization", "secret"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, _ := io.ReadAll(resp.Body)
	for _, want := range []string{"Host: g\n", "X-Request-Id: one\n", "Traceparent: 00-a-b-01\n"} {
		if !bytes.Contains(all, []byte(want)) {
			t.Errorf("g was not told %q but %q", want, all)
		}
	}
	if bytes.Contains(all, []byte("secret")) {
		t.Errorf("g was told what f's client said: %q", all)
	}
}

// TestCallLoops: the engine refuses endless calls and calls that wait for themselves.
func TestCallLoops(t *testing.T) {
	r := calls(t, Config{})
	r.deploy("one", func(c *image.Config) { c.Instances.Max = 1 })
	r.deploy("wide", func(c *image.Config) { c.Instances.Concurrency = 32 })
	deep := strings.Repeat("/call/wide", mostDepth-1)
	r.mustCall("wide", deep+"/", "down", "down")
	for path, want := range map[string]string{
		"one /call/one/":               "loop: one → one: deadlock: one may run 1 events at once",
		"one /call/g/call/one":         "loop: one → g → one: deadlock: one may run 1 events at once",
		"wide " + deep + "/call/wide/": "loop: " + strings.Repeat("wide → ", mostDepth) + "wide: at most 16 functions may wait for each other",
	} {
		name, path, _ := strings.Cut(path, " ")
		got, _, err := r.call(t.Context(), name, path, "")
		if err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s %s: %q, %v; want %q", name, path, got, err, want)
		}
	}
}

// TestCallPipeline: each function receives the answer of the function before as a stream. The first
// step that fails gives the answer.
func TestCallPipeline(t *testing.T) {
	r := calls(t, Config{Concurrency: 1})
	body := strings.Repeat("z", 3<<20)
	if got, _, err := r.call(t.Context(), "f", "/call/g|f|g@latest/", body); err != nil || got != body {
		t.Errorf("%d bytes came back of %d, %v", len(got), len(body), err)
	}
	resp, err := r.Invoke(t.Context(), "f", &Request{Method: "GET", Path: "/call/g|g/stream", Query: "3000000"})
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil || n != 3_000_000 {
		t.Errorf("a stream behind another: %d bytes, %v", n, err)
	}
	for path, want := range map[string]string{
		"/call/g|nobody/": "not_found: f → g|nobody: ",
		"/call/g|/":       "bad_call: f → g|: ",
		"/call/g|f/fail":  "function_error: f → g|f: ",
		"/call/" + strings.Repeat("g|", 16) + "g/x": "bad_call: ",
		"/call/f|g/call/nobody/":                    "not_found: f → f → nobody: ", // f answers 502
	} {
		got, resp, err := r.call(t.Context(), "f", path, "x")
		if err != nil || resp.Status != 502 || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, %v; want it to begin with %q", path, got, err, want)
		}
	}
	eventually(t, "the slots to be free", func() bool { n, waiting := r.slots.count(); return n == 0 && waiting == 0 })
}

// TestCallPipelineTwice: a step would wait for itself if all instances of the function give the
// answers that the step reads: the engine refuses the step. A step that waits only for other events
// is refused at once too, because these events may wait for this call. If an instance is free or
// can be started, the step runs.
func TestCallPipelineTwice(t *testing.T) {
	r := calls(t, Config{})
	r.deploy("one", func(c *image.Config) { c.Instances.Max = 1 })
	r.deploy("two", func(c *image.Config) { c.Instances.Max = 2 })
	r.deploy("wide", func(c *image.Config) { c.Instances.Max, c.Instances.Concurrency = 1, 2 })
	r.deploy("fresh", func(c *image.Config) { c.Instances.Isolation, c.Instances.Max = template.IsolationEvent, 1 })
	r.mustPipeline("inner", "g, one", "")
	r.mustPipeline("first", "one, g", "")
	r.mustPipeline("again", "g, g", "")
	body := strings.Repeat("z", 8<<20) // larger than all buffers on the way
	for _, steps := range []string{"two|two", "wide|wide", "two|g|two", "again|again"} {
		if got, _, err := r.call(t.Context(), "f", "/call/"+steps+"/", body); err != nil || got != body {
			t.Errorf("%s: %d bytes came back of %d, %v", steps, len(got), len(body), err)
		}
	}
	for _, steps := range []string{"one|one", "one|inner", "first|first"} {
		r.mustCall("f", "/call/"+steps+"/slurp", "short", "1") // the last step counts one digit; a complete answer frees the instance at once
	}
	for steps, want := range map[string]string{
		"one|one":        "loop: f → one: deadlock: one may run 1 events at once",
		"one|g|one":      "loop: f → one: deadlock: one may run 1 events at once",
		"one|inner":      "loop: f → inner → one: deadlock: one may run 1 events at once",
		"one|first":      "loop: f → first → one: deadlock: one may run 1 events at once",
		"first|one":      "loop: f → one: deadlock: one may run 1 events at once",
		"wide|wide|wide": "loop: f → wide: deadlock: wide may run 2 events at once",
		"fresh|fresh":    "loop: f → fresh: deadlock: fresh may run 1 events at once",
	} {
		got, _, err := r.call(t.Context(), "f", "/call/"+steps+"/", body)
		if err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %.200q, %v; want %q", steps, got, err, want)
		}
	}
	r.deploy("pair", func(c *image.Config) { c.Instances.Isolation, c.Instances.Max = template.IsolationEvent, 2 })
	for _, name := range []string{"two", "pair"} {
		r.idle(name)
		other, err := r.Invoke(t.Context(), name, &Request{Method: "GET", Path: "/stream", Query: "3000000"})
		if err != nil {
			t.Fatal(err)
		}
		want := "overloaded: f → " + name + "|" + name + ": step 2, " + name + ": "
		if got, _, err := r.call(t.Context(), "f", "/call/"+name+"|"+name+"/", body); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s under load: %.200q, %v; want %q", name, got, err, want)
		}
		if err := other.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	r.idle("pair")
	if got, _, err := r.call(t.Context(), "f", "/call/pair|pair/", body); err != nil || got != body {
		t.Errorf("without load: %d bytes came back of %d, %v", len(got), len(body), err)
	}
	eventually(t, "the slots to be free", func() bool { n, waiting := r.slots.count(); return n == 0 && waiting == 0 })
}

// TestCallPipelineFields: the next function receives only the header fields that describe the
// answer's body: no fields for a client, and no fields of another request.
func TestCallPipelineFields(t *testing.T) {
	ev := &event{header: [][2]string{{"X-Request-Id", "one"}}}
	got := ev.calledHeader("g@1", ofBody([][2]string{
		{"content-type", "text/plain"}, {"Set-Cookie", "secret"}, {"Content-Encoding", "gzip"}, {"Content-Length", "5"}, {"Host", "other"}, {"X-Request-Id", "two"},
	}))
	want := [][2]string{{"Host", "g"}, {"Content-Type", "text/plain"}, {"Content-Encoding", "gzip"}, {"X-Request-Id", "one"}}
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

// TestCallsWithoutSlots: events that have all of the engine's slots, and call others, do
// not wait for each other.
func TestCallsWithoutSlots(t *testing.T) {
	r := calls(t, Config{Concurrency: 2})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { r.mustCall("f", "/call/g/call/g/", "through", "through") })
	}
	wg.Wait()
	eventually(t, "the slots to be free", func() bool { n, waiting := r.slots.count(); return n == 0 && waiting == 0 })
}

// TestCallPipelinePlaces: of functions that run beside each other, one behind the other, all but
// the first take slots beyond those there are; no event from outside begins meanwhile.
func TestCallPipelinePlaces(t *testing.T) {
	r := calls(t, Config{Concurrency: 1})
	r.mustCall("g", "/", "warm", "warm")
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		resp, err := r.Invoke(t.Context(), "f", &Request{Method: "POST", Path: "/call/g|g|g|g/", Body: read, Length: -1})
		if err == nil {
			var n int64
			n, err = io.Copy(io.Discard, resp.Body)
			err = errors.Join(err, resp.Body.Close())
			if n != 200_000 {
				t.Errorf("%d bytes came back", n)
			}
		}
		done <- err
	}()
	if _, err := write.Write(make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "three to run beside the first", func() bool { n, _ := r.slots.count(); return n == 4 })
	other := make(chan struct{})
	go func() {
		defer close(other)
		r.mustCall("f", "/", "waits", "waits")
	}()
	eventually(t, "an event from outside to wait", func() bool { _, waiting := r.slots.count(); return waiting == 1 })

	r.slots.mu.Lock() // as if other events had all the remaining places
	rest := r.slots.all + r.slots.beyond - r.slots.taken
	r.slots.taken += rest
	r.slots.mu.Unlock()
	resp, err := r.Invoke(context.WithValue(t.Context(), callerKey{}, caller{&lineage{slot: full(), f: &function{}}, &event{f: &function{}}}), "g", &Request{Method: "POST", Path: "/"})
	if !errors.Is(err, ErrEngineOverloaded) {
		t.Errorf("one too many: %+v, %v", resp, err)
	}
	r.slots.mu.Lock()
	r.slots.taken -= rest
	r.slots.mu.Unlock()

	_, err = write.Write(make([]byte, 100_000))
	if err = errors.Join(err, write.Close(), <-done); err != nil {
		t.Error(err)
	}
	<-other
	eventually(t, "the slots to be free", func() bool { n, waiting := r.slots.count(); return n == 0 && waiting == 0 })
}

// full is a caller's slot that somebody has.
func full() chan struct{} {
	c := make(chan struct{}, 1)
	c <- struct{}{}
	return c
}

// TestCallsAreGuarded: each call checks its tenant's quota.
func TestCallsAreGuarded(t *testing.T) {
	var asked []string
	r := calls(t, Config{Calls: func(tenant string) error {
		asked = append(asked, tenant)
		if len(asked) > 1 {
			return errors.New("too many events")
		}
		return nil
	}})
	r.mustCall("f", "/call/g/", "x", "x")
	r.mustCall("f", "/call/g/", "x", "quota: f → g: too many events")
	if want := []string{"default", "default"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}

// TestCallsEnd: a call ends with the caller's event and with the caller's time limit.
func TestCallsEnd(t *testing.T) {
	r := calls(t, Config{})
	r.deploy("brief", func(c *image.Config) { c.Resources.Timeout = time.Second })
	got, _, err := r.call(t.Context(), "f", "/call/brief/hang", "")
	if want := "timeout: f → brief: "; err != nil || !strings.HasPrefix(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	// The call has the caller's deadline: either of them may end first, at the same instant.
	got, _, err = r.call(t.Context(), "brief", "/call/g/hang", "")
	if want := "timeout: brief → g: "; !errors.Is(err, ErrTimeout) && (err != nil || !strings.HasPrefix(got, want)) {
		t.Errorf("a caller whose time was over: %q, %v; want %v, or %q", got, err, ErrTimeout, want)
	}
	idle := func() bool {
		return !slices.ContainsFunc(r.Sandboxes(false), func(s *live.Sandbox) bool { return s.State == live.StateBusy })
	}
	eventually(t, "g to be idle once brief's time is over", idle)

	for _, how := range []string{"client gone", "killed"} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _, _ = r.call(ctx, "f", "/call/g/hang", "")
		}()
		eventually(t, "g to be busy", func() bool {
			return slices.ContainsFunc(r.Sandboxes(false), func(s *live.Sandbox) bool { return s.Function == "g" && s.State == live.StateBusy })
		})
		if how == "killed" {
			for _, s := range r.Sandboxes(false) {
				if s.Function == "f" && s.State == live.StateBusy {
					if err := r.Kill(s.ID); err != nil {
						t.Error(err)
					}
				}
			}
		} else {
			cancel()
		}
		<-done
		cancel()
		eventually(t, "g to be idle: "+how, idle)
	}
}

// TestCallsHostile: the engine ends a function that sends a flood of calls and reads no answers.
// The flood takes little of the engine's memory.
func TestCallsHostile(t *testing.T) {
	r := calls(t, Config{})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var crash *CrashError
	resp, err := r.Invoke(t.Context(), "f", &Request{Method: "GET", Path: "/call", Query: "1"})
	if err == nil {
		_ = resp.Body.Close()
	}
	if !errors.As(err, &crash) || !strings.Contains(crash.Reason, "malformed frame") {
		t.Errorf("%v, want a crash for a malformed frame", err)
	}
	runtime.ReadMemStats(&after)
	if more := int64(after.HeapInuse) - int64(before.HeapInuse); more > 64<<20 {
		t.Errorf("the engine's heap grew by %d bytes", more)
	}
	r.mustCall("f", "/call/g/", "goes on", "goes on")
}
