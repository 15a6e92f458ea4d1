package system_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// testInstances: an instance lives as long, and as many instances run, as the template says.
func (w *world) testInstances(t *testing.T) {
	t.Run("fresh for every event", func(t *testing.T) {
		seen := map[string]bool{}
		for range 3 {
			a := w.ok(t, "chaos", "/well", "")
			if cold := a.Header.Get("X-Fre-Cold"); cold != "1" {
				t.Errorf("X-Fre-Cold: got %q, want 1", cold)
			}
			seen[a.Header.Get("X-Fre-Instance")] = true
		}
		if len(seen) != 3 {
			t.Errorf("three events were answered by %d sandboxes: %v", len(seen), seen)
		}
		w.untilGone(t, "chaos")
	})
	t.Run("reused while warm", func(t *testing.T) {
		first := w.ok(t, "narrow", "/echo", "")
		w.untilIdle(t, "narrow")
		second := w.ok(t, "narrow", "/echo", "")
		if a, b := first.Header.Get("X-Fre-Instance"), second.Header.Get("X-Fre-Instance"); a != b {
			t.Errorf("two events one after the other were answered by %s and %s", a, b)
		}
		if cold := second.Header.Get("X-Fre-Cold"); cold != "0" {
			t.Errorf("the second event's X-Fre-Cold: got %q, want 0", cold)
		}
	})
	t.Run("stopped when idle", func(t *testing.T) {
		w.ok(t, "brief", "/echo", "")
		w.untilGone(t, "brief")
		w.ok(t, "brief", "/echo", "")
	})
	t.Run("minimum kept warm", func(t *testing.T) {
		w.untilIdle(t, "kept")
		if cold := w.ok(t, "kept", "/echo", "").Header.Get("X-Fre-Cold"); cold != "0" {
			t.Errorf("X-Fre-Cold: got %q, want 0", cold)
		}
	})
	t.Run("several events at once in one", func(t *testing.T) {
		answers := w.all(t, 4, "probe", "/meet", "4") // each call waits until four calls are in the same sandbox
		if count := instances(answers); len(count) != 1 {
			t.Errorf("got %v, want one sandbox", count)
		}
	})
	t.Run("one event at once", func(t *testing.T) {
		for _, a := range w.all(t, 6, "narrow", "/alone", "") {
			if got := string(a.Body); got != "1" {
				t.Errorf("got %s events at once in one sandbox of concurrency 1", got)
			}
		}
	})
	t.Run("at most the maximum", func(t *testing.T) {
		if count := instances(w.all(t, 8, "narrow", "/slow", "0.1")); len(count) > 2 {
			t.Errorf("got %v, want at most two sandboxes", count)
		}
	})
	t.Run("no stampede", func(t *testing.T) {
		// One sandbox can hold all events. A late event may find the sandbox full of ending events,
		// so two sandboxes are allowed.
		if count := instances(w.all(t, 64, "crowd", "/slow", "0.2")); len(count) > 2 {
			t.Errorf("64 events at once on a cold function of concurrency 64 started %d sandboxes: %v", len(count), count)
		}
	})
	t.Run("client gone", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := w.call(ctx, "patient", "/slow", "100")
			failed <- err
		}()
		until(t, w.busy("patient"))
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Fatalf("got error %v, want the cancellation", err)
		}
		w.untilGone(t, "patient") // long before the call's 100 seconds
	})
	t.Run("metrics", w.testMetrics)
}

// busy reports whether a sandbox of the function works on an event.
func (w *world) busy(function string) func() error {
	return func() error {
		out, err := w.d.CLI(context.Background(), "ps", "--format", "{{json .}}")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if strings.Contains(line, `"`+function+`"`) && strings.Contains(line, `"busy"`) {
				return nil
			}
		}
		return fmt.Errorf("no busy sandbox of %s in:\n%s", function, out)
	}
}
