package system_test

import (
	"fmt"
	"strings"
	"testing"
)

// testCalls: functions call functions in each language, with bodies of any length, and get an error
// code if the call is not allowed.
func (w *world) testCalls(t *testing.T) {
	for _, chain := range []string{"calls", "calls-node", "calls-async"} {
		for _, size := range []int{5, 70_000, 3 << 20} {
			body := strings.Repeat("z", size)
			for _, last := range []string{"calls-node", "calls-async"} {
				if got := w.ok(t, chain, "/"+last+"/end", body); string(got.Body) != body || got.Header.Get("X-Via") != chain {
					t.Errorf("%s → %s: %d bytes came back of %d", chain, last, len(got.Body), size)
				}
			}
		}
	}
	for _, name := range []string{"calls-lambda", "calls-lambda-node", "calls-asgi", "calls-wsgi"} {
		for _, size := range []int{5, 70_000, 3 << 20} {
			body := strings.Repeat("z", size)
			if got := w.ok(t, name, "/calls-async/end", body); string(got.Body) != body || got.Header.Get("X-Via") != name {
				t.Errorf("%s: %d bytes came back of %d", name, len(got.Body), len(body))
			}
		}
	}
	body := strings.Repeat("z", 3<<20)
	if got := w.ok(t, "calls", "/calls-node|calls-async|calls-node/end", body); string(got.Body) != body {
		t.Errorf("one behind the other: %d bytes came back of %d", len(got.Body), len(body))
	}
	if got := w.ok(t, "calls", "/calls-node/calls-async/calls/calls-node/end", "deep"); string(got.Body) != "deep" {
		t.Errorf("one inside the other: %q", got.Body)
	}
	for path, want := range map[string]string{
		"/nobody/":      "CallError not_found: calls → nobody: ",
		"/red-one.red/": "CallError forbidden: calls → red-one.red: ",
		"/red-one/":     "CallError not_found: calls → red-one: ",
	} {
		got, err := w.call(t.Context(), "calls", path, "")
		if err != nil || got.Status != 502 || !strings.HasPrefix(string(got.Body), want) {
			t.Errorf("%s: %+v, %v; want %q", path, got, err, want)
		}
	}
	w.cli(t, "tenant", "create", "slow", "--events", "1") // two events may run at once
	until(t, func() error {                               // on a slow machine each call may take a second
		answer, err := w.call(t.Context(), "calls-slow.slow", strings.Repeat("/calls-slow", 12)+"/end", "")
		if err == nil && !strings.Contains(string(answer.Body), "CallError quota: ") {
			err = fmt.Errorf("a dozen calls of a tenant with one event a second: %+v", answer)
		}
		return err
	})
	until(t, func() error { // the engine counts a call after the answer
		metrics, err := w.client.Get(w.d.URL("/metrics"))
		if err != nil {
			return err
		}
		text := readAll(t, metrics)
		for _, want := range []string{
			`fre_calls_total{from="calls",function="calls-node",outcome="ok"} `,
			`fre_calls_total{from="calls",function="",outcome="not_found"} `,
		} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("the metrics lack %s", want)
			}
		}
		return nil
	})
	got := w.ok(t, "calls", "/calls/end", "x")
	if id, _, _ := strings.Cut(string(got.Body), " "); id == "" || id != got.Header.Get("X-Request-Id") {
		t.Errorf("the request %q was %q to the function called", got.Header.Get("X-Request-Id"), id)
	}
}
