package engine

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestAgentMetricsEnd: of a sandbox that was removed under a command no series stay.
func TestAgentMetricsEnd(t *testing.T) {
	e := &Engine{}
	e.metrics = newMetrics(nil, e)
	a := &agent{f: &function{e: e, name: "agent-0"}}
	if !a.enter() {
		t.Fatal("it cannot be used")
	}
	a.ended = true
	e.metrics.forget(a.f.name, 0)
	e.metrics.failed(a.f, 0, errAbandoned) // what was under way ends after it
	if !a.leave() {
		t.Error("it has not ended")
	}
	series := make(chan prometheus.Metric, 10)
	e.metrics.duration.Collect(series)
	if len(series) != 0 {
		t.Errorf("%d series are left", len(series))
	}
}

// TestAgentCalls: what runs in an agent's sandbox can call no function, whatever it says on
// the channel.
func TestAgentCalls(t *testing.T) {
	r := calls(t, Config{})
	d, err := r.find("f")
	if err != nil {
		t.Fatal(err)
	}
	d.main.agent = true
	if got, resp, err := r.call(t.Context(), "f", "/call/g/", ""); err != nil || resp.Status != 502 || !strings.HasPrefix(got, "not_possible: ") {
		t.Errorf("%q %v, want not_possible", got, err)
	}
}
