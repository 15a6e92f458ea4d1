package engine

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/template"
)

func fresh(c *image.Config) { c.Instances.Isolation = template.IsolationEvent }

// isolations are the ways in which a function can have its instances.
var isolations = map[string]func(*image.Config){"instance": func(*image.Config) {}, "event": fresh, "stdio": stdio}

// blockedBody gives its start, and then nothing until Close.
type blockedBody struct {
	start io.Reader
	once  sync.Once
	ended chan struct{}
}

func newBlockedBody(start string) *blockedBody {
	return &blockedBody{start: strings.NewReader(start), ended: make(chan struct{})}
}

func (b *blockedBody) Read(p []byte) (int, error) {
	if n, _ := b.start.Read(p); n > 0 {
		return n, nil
	}
	<-b.ended
	return 0, errCut
}

func (b *blockedBody) Close() error {
	b.once.Do(func() { close(b.ended) })
	return nil
}

// TestCloseWithQueue: if the stop gives up waiting, running events and queued events end.
func TestCloseWithQueue(t *testing.T) {
	r := open(t)
	r.deploy("f", func(c *image.Config) { c.Instances.Max = 1 })
	done := make(chan error)
	for range 2 {
		go func() { _, _, err := r.call(context.Background(), "f", "/stuck", "x"); done <- err }()
	}
	eventually(t, "one event to run and one to wait", func() bool {
		f, err := r.Function("f")
		return err == nil && f.Busy == 1 && f.Queued == 1
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close = %v", err)
	}
	for range 2 {
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("event at the end of a stop: %v; want ErrClosed", err)
		}
	}
}

// TestBodyFault: a fault of an event is not a fault of the instance.
func TestBodyFault(t *testing.T) {
	for name, change := range isolations {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			r.deploy("f", change)
			warm := r.mustCall("f", "/", "a", "a")
			for _, size := range []int{4, 100 << 10} {
				body := io.MultiReader(strings.NewReader(strings.Repeat("h", size)), errReader{})
				if resp, err := r.Invoke(t.Context(), "f", &Request{Path: "/", Body: body, Length: -1}); err == nil {
					_, err = io.Copy(io.Discard, resp.Body) // the echo had begun
					if err = errors.Join(err, resp.Body.Close()); !errors.Is(err, errCut) {
						t.Errorf("answer to a body that breaks off after %d bytes: %v", size, err)
					}
				} else if !errors.Is(err, errCut) {
					t.Errorf("body that breaks off after %d bytes: %v", size, err)
				}
				r.idle("f")
			}
			large := &Request{Path: "/", Headers: [][2]string{{"X-Large", strings.Repeat("<", 200<<10)}}}
			if _, err := r.Invoke(t.Context(), "f", large); !errors.Is(err, ErrEventTooLarge) {
				t.Errorf("200 KiB of header: %v", err)
			}
			if again := r.mustCall("f", "/", "b", "b"); name == "instance" && again.Instance != warm.Instance {
				t.Error("the instance was not kept")
			}
		})
	}
}

// TestSlowBody: a slow client keeps an instance no longer than the function's time limit, and no
// longer than the function's answer.
func TestSlowBody(t *testing.T) {
	for name, change := range isolations {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			r.deploy("brief", func(c *image.Config) {
				change(c)
				c.Instances.Max, c.Resources.Timeout = 1, 500*time.Millisecond
			})
			r.deploy("f", func(c *image.Config) {
				change(c)
				c.Instances.Max, c.Resources.Timeout = 1, time.Hour // an instance that is kept stays busy
			})
			resp, err := r.Invoke(t.Context(), "brief", &Request{Path: "/", Body: newBlockedBody("slow"), Length: -1})
			if err == nil { // the function answers before the end of the body
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close() // the answer has ended already
			}
			if !errors.Is(err, ErrTimeout) {
				t.Errorf("body that never ends: %v", err)
			}
			r.idle("brief")
			for path, want := range map[string]string{"/early": "early", "/fail": ""} {
				if name == "stdio" && path == "/early" {
					continue
				}
				resp, err := r.Invoke(t.Context(), "f", &Request{Path: path, Body: newBlockedBody(strings.Repeat("s", 64<<10)), Length: -1})
				var failure *FunctionError
				switch {
				case want == "":
					if !errors.As(err, &failure) {
						t.Errorf("failure before the body's end: %v", err)
					}
				case err != nil:
					t.Errorf("answer before the body's end: %v", err)
				default:
					got, err := io.ReadAll(resp.Body)
					if err = errors.Join(err, resp.Body.Close()); string(got) != want || err != nil {
						t.Errorf("answer before the body's end: %q, %v", got, err)
					}
				}
			}
			r.mustCall("f", "/", "b", "b")
		})
	}
}

// TestSlowReader: an unread answer frees the slot at the time limit, or at once if the answer is
// complete.
func TestSlowReader(t *testing.T) {
	for name, change := range map[string]func(*image.Config){"event": fresh, "stdio": stdio} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			r.deploy("f", func(c *image.Config) {
				change(c)
				c.Instances.Max, c.Resources.Timeout = 1, time.Hour
			})
			req := &Request{Path: "/status", Query: "status=200&endless=1"}
			if name == "stdio" {
				req.Path = "/big"
			}
			resp, err := r.Invoke(t.Context(), "f", req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if !eventOf(resp).ctx.timer.Reset(0) { // ends its time now
				t.Error("the event has no time limit")
			}
			r.idle("f")
			if _, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, ErrTimeout) {
				t.Errorf("rest of the answer: %v", err)
			}
			r.mustCall("f", "/", "b", "b")
		})
	}
}

// TestBrokenAnswer: the end of a broken answer gives the error, and the function's owner finds the
// error in the log.
func TestBrokenAnswer(t *testing.T) {
	r := open(t)
	r.deploy("f", nil)
	resp, err := r.Invoke(t.Context(), "f", &Request{Path: "/status", Query: "status=200&fail=1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	var failure *FunctionError
	if !errors.As(err, &failure) || failure.Message != "broke off" {
		t.Errorf("end of the answer: %v (%T)", err, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	var last live.LogLine
	if err := r.Logs(t.Context(), "f", live.LogOptions{Tail: 1}, func(l live.LogLine) error { last = l; return nil }); err != nil {
		t.Fatal(err)
	}
	if last.Invocation != resp.ID || !strings.Contains(last.Text, "broke off") {
		t.Errorf("last line of the log: %+v", last)
	}
}

// TestTimeoutDuringStart: a time-out in any phase of a start is reported as a time-out.
func TestTimeoutDuringStart(t *testing.T) {
	for name, change := range isolations {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			r.deploy("f", func(c *image.Config) {
				change(c)
				c.Resources.Timeout = 1
			})
			if _, _, err := r.call(t.Context(), "f", "/", "x"); !errors.Is(err, ErrTimeout) {
				t.Errorf("%v; want ErrTimeout", err)
			}
		})
	}
}

// TestBackOff: the engine pauses before restarting a function that is ready and ends at once.
func TestBackOff(t *testing.T) {
	r := open(t)
	r.deploy("f", func(c *image.Config) { c.Env, c.Instances.Min = []string{"FN_LOAD=quit"}, 1 })
	f, err := r.lookup("f")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pause", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.rewarming && f.failed > 0 && len(f.instances) == 0
	})
}

// TestRemovedSeries: a removed function leaves no series behind.
func TestRemovedSeries(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	reg := prometheus.NewRegistry()
	r := &rig{t: t, state: t.TempDir()}
	r.start(Config{Metrics: reg})
	r.deploy("f", nil)
	r.mustCall("f", "/", "a", "a")
	series := func() (n int) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "function" {
						n++
					}
				}
			}
		}
		return n
	}
	if series() == 0 {
		t.Error("no series of a function that was invoked")
	}
	if err := r.RemoveFunction(t.Context(), "f"); err != nil {
		t.Fatal(err)
	}
	if n := series(); n != 0 {
		t.Errorf("%d series of a removed function", n)
	}
}

// TestStartKinds: the metrics count the same kinds of start as the answers report.
func TestStartKinds(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	reg := prometheus.NewRegistry()
	r := &rig{t: t, state: t.TempDir()}
	r.start(Config{Metrics: reg})
	for name, change := range isolations {
		r.deploy(name, change)
		want := map[string]uint64{}
		for range 3 {
			want[string(r.mustCall(name, "/", "a", "a").StartKind)]++
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]uint64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if l := m.GetLabel(); f.GetName() == "fre_instance_start_seconds" && l[0].GetValue() == name {
					if n := m.GetHistogram().GetSampleCount(); n > 0 {
						got[l[1].GetValue()] = n
					}
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: starts counted (+), starts answered (-):\n%s", name, diff)
		}
	}
}

// TestSmallBodyFirst: the engine starts a program only when a small body is complete.
func TestSmallBodyFirst(t *testing.T) {
	r := open(t)
	r.deploy("f", func(c *image.Config) { stdio(c); c.Resources.Timeout = 200 * time.Millisecond })
	if _, err := r.Invoke(t.Context(), "f", &Request{Path: "/", Body: newBlockedBody("half"), Length: 8}); !errors.Is(err, ErrTimeout) {
		t.Errorf("small body that never ends: %v", err)
	}
	if all := r.Sandboxes(true); len(all) != 0 {
		t.Errorf("started for it: %+v", all[0])
	}
	r.deploy("g", stdio)
	for _, size := range []int{1, smallBody, smallBody + 1} {
		body := strings.Repeat("s", size)
		resp, err := r.Invoke(t.Context(), "g", &Request{Path: "/", Body: strings.NewReader(body), Length: int64(size)})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil || string(got) != body {
			t.Errorf("body of %d bytes: %d came back, %v", size, len(got), err)
		}
	}
}

// TestLogFramesPace: log frames of any length beyond a second's budget are dropped unread, and no
// faster than the limit. Empty frames also use up the budget.
func TestLogFramesPace(t *testing.T) {
	for _, size := range []int{0, 256 << 10} {
		synctest.Test(t, func(t *testing.T) {
			l, err := live.OpenLog(filepath.Join(t.TempDir(), "f"), "f", 8<<20, 3)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			f := &function{program: program{logs: l}}
			cfg := f.channelConfig("s", nil)
			const seconds = 3
			text := strings.Repeat("x", size)
			began, decoded, dropped := time.Now(), 0, 0
			for time.Since(began) < seconds*time.Second {
				drop, wait := cfg.LogPace(size)
				if drop {
					dropped++
				} else {
					cfg.Log("", "info", text)
					decoded++
				}
				time.Sleep(wait) //nolint:forbidigo // of the bubble, whose clock stands otherwise
			}
			if most := (seconds + 1) * (live.LogBurst/(size+live.LogCost) + 1); decoded > most {
				t.Errorf("%d frames of %d bytes were decoded in %d seconds, want %d at most", decoded, size, seconds, most)
			}
			if most := (seconds + 1) * live.DrainBytes / max(size, live.LeastDrained); dropped == 0 || dropped > most {
				t.Errorf("%d frames of %d bytes were dropped in %d seconds, want some, and %d at most", dropped, size, seconds, most)
			}
			time.Sleep(time.Second) //nolint:forbidigo // of the bubble
			if drop, _ := cfg.LogPace(size); drop {
				t.Errorf("frames of %d bytes: none is read in the next second", size)
			}
		})
	}
}
