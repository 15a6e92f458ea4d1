package engine

import (
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
