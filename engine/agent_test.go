package engine

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// TestAgentSnapshotFits: an agent does not start from a snapshot larger than its limit for /work:
// root restores the snapshot, and the file system's quota does not limit root.
func TestAgentSnapshotFits(t *testing.T) {
	for name, c := range map[string]struct {
		limit int64
		fits  bool
	}{"smaller": {16<<20 - 1, false}, "none": {0, true}} {
		all := newAgents(&Engine{host: &host{tenants: &live.Tenants{}}})
		_, err := all.enter(&AgentOptions{Tenant: "acme", WorkBytes: c.limit}, &store.Image{}, &store.Image{Size: 16 << 20})
		var field *template.FieldError
		if fits := err == nil; fits != c.fits || !fits && (!errors.As(err, &field) || field.Field != "work_bytes") {
			t.Errorf("limit %s: %v", name, err)
		}
		if taken := len(all.byID) > 0; taken != c.fits {
			t.Errorf("limit %s: it has a place: %v", name, taken)
		}
	}
}

// TestAgentImages: a tenant gets no files of another tenant, not even in images that the engine
// made.
func TestAgentImages(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  image.Config
		want bool
	}{
		"its own":                   {image.Config{Protocol: image.ProtocolChannel, Tenant: "acme"}, true},
		"another's":                 {image.Config{Protocol: image.ProtocolChannel, Tenant: "other"}, false},
		"another's snapshot":        {image.Config{Protocol: image.ProtocolSnapshot, Tenant: "other"}, false},
		"a base":                    {image.Config{Protocol: image.ProtocolNone, Labels: map[string]string{image.LabelKind: image.KindBase}}, true},
		"a container's":             {image.Config{Protocol: image.ProtocolNone}, true},
		"another agent's, or tools": {image.Config{Protocol: image.ProtocolNone, Labels: map[string]string{image.LabelKind: image.KindTools}}, false},
	} {
		config, err := json.Marshal(c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := agentMayHave(&store.Image{Manifest: store.Manifest{Config: config}}, "acme"); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestAgentMetricsEnd: no series remain of a sandbox that was removed during a command.
func TestAgentMetricsEnd(t *testing.T) {
	e := &host{life: live.NewLife(), metrics: newMetrics()}
	a := &agent{f: &function{program: program{host: e, name: "agent-0"}}}
	if !a.enter() {
		t.Fatal("it cannot be used")
	}
	a.ended = true
	e.metrics.forget(a.f.name, 0)
	e.metrics.failed(a.f.name, a.f.number(), 0, errAbandoned) // the running command ends after the removal
	if !a.leave() {
		t.Error("it has not ended")
	}
	series := make(chan prometheus.Metric, 10)
	e.metrics.duration.Collect(series)
	if len(series) != 0 {
		t.Errorf("%d series are left", len(series))
	}
}

// TestAgentCalls: a program in an agent's sandbox cannot call functions by any message on the
// channel.
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

// TestNoInterpretersForOne: a temporary function has its own /work and ends soon, so the engine
// keeps no parked interpreters for it. They would hold that /work and take the place of other
// functions' interpreters.
func TestNoInterpretersForOne(t *testing.T) {
	r := open(t)
	r.cfg.Builder.Runtimes = []image.Runtime{agentRuntime{}}
	img := r.image("app", nil)
	a, err := r.Agents().Create(t.Context(), AgentOptions{Image: "app:1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]DeployOptions{"temporary": {Temporary: true}, "lasting": {}} {
		if _, err := r.Deploy(t.Context(), name, img, o); err != nil {
			t.Fatal(err)
		}
	}
	temporary, err := r.lookup("temporary")
	if err != nil {
		t.Fatal(err)
	}
	lasting, err := r.lookup("lasting")
	if err != nil {
		t.Fatal(err)
	}
	found, err := r.agents.find(a.ID)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		f    *function
		want bool
	}{"agent's sandbox": {found.f, false}, "temporary function": {temporary, false}, "function": {lasting, true}} {
		if spec, err := c.f.spec(""); err != nil || spec.Repeats != c.want {
			t.Errorf("%s: %v, %v; want %v", what, spec.Repeats, err, c.want)
		}
	}
	if err := r.Agents().Remove(a.ID); err != nil {
		t.Error(err)
	}
}

// agentRuntime makes testdata/fn the program of agents' sandboxes.
type agentRuntime struct{ plainRuntime }

func (agentRuntime) Name() string { return "http" }

// Contract returns the runtime for the contract http, nil for other contracts.
func (r agentRuntime) Contract(c template.Contract) image.Runtime {
	if c != template.ContractHTTP {
		return nil
	}
	return r
}

func (agentRuntime) Bootstrap() map[string][]byte { return map[string][]byte{"http": fnBinary} }
