package engine

import (
	"errors"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// quotaRig has an engine whose tenant acme has these quotas, which may change.
func quotaRig(t *testing.T, q live.Quotas) (*rig, *atomic.Pointer[live.Quotas]) {
	t.Helper()
	r := open(t)
	r.stop()
	var now atomic.Pointer[live.Quotas]
	now.Store(&q)
	r.start(Config{Quotas: func(tenant string) live.Quotas {
		if tenant != "acme" {
			return live.Quotas{}
		}
		return *now.Load()
	}})
	return r, &now
}

func ofAcme(c *image.Config) { c.Tenant = "acme" }

// TestQuotaInstances: a tenant at its quota gets no more instances for any of its functions.
// Another tenant is not affected.
func TestQuotaInstances(t *testing.T) {
	for name, c := range map[string]struct {
		q    live.Quotas
		what string
	}{
		"instances": {live.Quotas{Instances: 2}, "instances"},
		"memory":    {live.Quotas{MemoryBytes: 2*64<<20 + 1}, "bytes of memory"},
		"cpu":       {live.Quotas{CPUMillis: 2500}, "thousandths of a CPU"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := quotaRig(t, c.q)
			for _, f := range []string{"a", "b", "c"} {
				r.deploy(f, ofAcme)
			}
			r.deploy("other", nil)
			r.mustCall("a.acme", "/", "x", "x")
			r.mustCall("b.acme", "/", "x", "x")
			_, _, err := r.call(t.Context(), "c.acme", "/", "x")
			var full *live.QuotaError
			if !errors.As(err, &full) || full.Tenant != "acme" || full.What != c.what {
				t.Fatalf("a third instance: %v, want a QuotaError of %s", err, c.what)
			}
			r.mustCall("a.acme", "/", "warm", "warm") // a running instance continues
			r.mustCall("other", "/", "x", "x")
			if use := r.TenantUse("acme"); use.Instances != 2 || use.MemoryBytes != 128<<20 || use.CPUMillis != 2000 || use.Images != 3 {
				t.Errorf("TenantUse = %+v, want 2 instances of 64 MiB and a CPU each, and 3 images", use)
			}
			if err := r.RemoveFunction(t.Context(), "a.acme"); err != nil {
				t.Fatal(err)
			}
			r.mustCall("c.acme", "/", "x", "x")
		})
	}
}

// TestQuotaQueues: if a function has an instance, further events wait for the instance and are not
// refused. The same holds for events with their own sandboxes.
func TestQuotaQueues(t *testing.T) {
	for _, isolation := range []template.Isolation{template.IsolationInstance, template.IsolationEvent} {
		t.Run(string(isolation), func(t *testing.T) { // each looks for leaks by itself
			r, _ := quotaRig(t, live.Quotas{Instances: 1})
			r.deploy("a", func(c *image.Config) { c.Tenant, c.Instances.Isolation = "acme", isolation })
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					if _, _, err := r.call(t.Context(), "a.acme", "/slow", "x"); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if isolation == template.IsolationEvent {
				eventually(t, "nothing to be counted", func() bool { return r.TenantUse("acme").Instances == 0 })
			}
		})
	}
}

// TestQuotaCounts: after any end of instances nothing remains counted.
func TestQuotaCounts(t *testing.T) {
	r, now := quotaRig(t, live.Quotas{Instances: 3})
	r.deploy("a", ofAcme)
	r.deploy("s", func(c *image.Config) { stdio(c); c.Tenant = "acme" })
	r.deploy("bad", func(c *image.Config) { c.Tenant, c.Args = "acme", []string{"/nowhere"} })
	for _, path := range []string{"/exit", "/garbage", "/fail"} {
		if _, _, err := r.call(t.Context(), "a.acme", path, "x"); err == nil {
			t.Errorf("%s has answered", path)
		}
	}
	for range 5 {
		if _, _, err := r.call(t.Context(), "bad.acme", "/", "x"); err == nil {
			t.Error("a program that is not there has answered")
		}
		_, _, _ = r.call(t.Context(), "s.acme", "/", "x")
	}
	r.mustCall("a.acme", "/", "x", "x")
	eventually(t, "one instance to be counted", func() bool { return r.TenantUse("acme").Instances == 1 })
	// Idle instances of a replaced function give their room to the new instances.
	now.Store(&live.Quotas{Instances: 1})
	for range 5 {
		r.deploy("a", func(c *image.Config) { c.Tenant, c.Instances.Idle = "acme", c.Instances.Idle+time.Second })
		r.mustCall("a.acme", "/", "x", "x")
	}
	if err := r.RemoveFunction(t.Context(), "a.acme"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing to be counted", func() bool {
		u := r.TenantUse("acme")
		return u.Instances == 0 && u.MemoryBytes == 0 && u.CPUMillis == 0
	})
}

// TestCheckSecrets: the check finds a missing secret of the tenant, named by the function or by a
// trigger. A secret of another tenant counts as missing.
func TestCheckSecrets(t *testing.T) {
	h := &host{cfg: Config{Secrets: func(tenant, name string) ([]byte, error) {
		if tenant == "acme" && name == "there" {
			return []byte("value"), nil
		}
		return nil, fs.ErrNotExist
	}}}
	for _, c := range []struct {
		name, tenant, missing string
		secrets               []string
		trigger               template.Trigger
	}{
		{"none", "acme", "", nil, template.Trigger{}},
		{"what is there", "acme", "", []string{"there"}, template.Trigger{Webhook: &template.Webhook{Secret: "there"}}},
		{"of the function", "acme", "gone", []string{"there", "gone"}, template.Trigger{}},
		{"of another tenant", "other", "there", []string{"there"}, template.Trigger{}},
		{"of a webhook", "acme", "hook", nil, template.Trigger{Webhook: &template.Webhook{Secret: "hook"}}},
		{"of CloudEvents", "acme", "token", nil, template.Trigger{CloudEvents: &template.CloudEvents{Token: "token"}}},
	} {
		f := &program{host: h, config: image.Config{Tenant: c.tenant, Secrets: c.secrets, Triggers: []template.Trigger{c.trigger}}}
		err := f.checkSecrets()
		var missing *SecretError
		if c.missing == "" && err != nil || c.missing != "" && (!errors.As(err, &missing) || *missing != SecretError{c.tenant, c.missing}) {
			t.Errorf("%s: %v, want %q to be missing", c.name, err, c.missing)
		}
	}
}

// TestSecretsDelivered: a secret reaches a parked interpreter, a fresh start, and a program of one
// event. The next instance gets an updated value. A missing secret is reported.
func TestSecretsDelivered(t *testing.T) {
	r := open(t)
	r.stop()
	var mu sync.Mutex
	values := map[string]string{"acme/key": "one", "other/key": "of another"}
	var given [][]byte
	r.start(Config{Secrets: func(tenant, name string) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		v, ok := values[tenant+"/"+name]
		if !ok {
			return nil, fs.ErrNotExist
		}
		b := []byte(v)
		given = append(given, b)
		return b, nil
	}})
	set := func(v string) {
		mu.Lock()
		defer mu.Unlock()
		if values["acme/key"] = v; v == "" {
			delete(values, "acme/key")
		}
	}
	secret := func(c *image.Config) {
		c.Tenant, c.Secrets, c.Instances.Isolation = "acme", []string{"key"}, template.IsolationEvent
	}
	r.deployInterpreted("parked", "1", secret)
	r.deploy("direct", secret)
	r.deploy("without", func(c *image.Config) { c.Tenant = "acme" })
	r.parked("parked.acme", 2)
	for _, f := range []string{"parked.acme", "direct.acme"} {
		got, resp, err := r.look(f, "file=/run/secrets/key")
		if err != nil || got != "one" {
			t.Errorf("%s: %q, %v, want one", f, got, err)
			continue
		}
		if f == "parked.acme" && resp.StartKind != StartInterpreter {
			t.Errorf("the start was %s, want %s", resp.StartKind, StartInterpreter)
		}
	}
	if got, _, err := r.look("without.acme", "file=/run/secrets/key"); err == nil {
		t.Errorf("a function that names no secret reads %q", got)
	}
	set("two")
	for _, f := range []string{"parked.acme", "direct.acme"} {
		if got, _, err := r.look(f, "file=/run/secrets/key"); err != nil || got != "two" {
			t.Errorf("%s after the update: %q, %v, want two", f, got, err)
		}
	}
	mu.Lock()
	for _, b := range given {
		for _, c := range b {
			if c != 0 {
				t.Errorf("a value was left in the engine's memory: %q", b)
				break
			}
		}
	}
	mu.Unlock()
	set("")
	var missing *SecretError
	for _, f := range []string{"parked.acme", "direct.acme"} {
		if _, _, err := r.look(f, "file=/run/secrets/key"); !errors.As(err, &missing) || missing.Name != "key" {
			t.Errorf("%s without it: %v, want a SecretError", f, err)
		}
	}
	if _, err := r.Deploy(t.Context(), "late", r.image("late", secret), DeployOptions{}); !errors.As(err, &missing) {
		t.Errorf("deployed without it: %v, want a SecretError", err)
	}
	if _, err := r.Function("late"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the refused function is there: %v", err)
	}
}

// TestTenantMetrics: metrics show each tenant's use by tenant, and nothing of the engine itself.
func TestTenantMetrics(t *testing.T) {
	r := open(t)
	r.stop()
	reg := prometheus.NewRegistry()
	r.start(Config{Metrics: reg})
	g := r.gated()
	r.deploy("a", ofAcme)
	r.mustCall("a.acme", "/", "x", "x")
	if err := r.StartContainer(t.Context(), r.create(container.Config{Tenant: "acme", Limits: small}).ID); err != nil {
		t.Fatal(err)
	}
	b := r.build(t.Context(), "other", "b")
	<-g.entered
	got := map[string]float64{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "fre_tenant_") {
			continue
		}
		for _, m := range f.GetMetric() {
			name := []string{f.GetName()}
			for _, l := range m.GetLabel() {
				name = append(name, l.GetValue())
			}
			if v := m.GetGauge().GetValue(); v != 0 {
				got[strings.Join(name, " ")] = v
			}
		}
	}
	want := map[string]float64{
		"fre_tenant_instances acme": 2, "fre_tenant_containers acme": 1, "fre_tenant_memory_bytes acme": 128 << 20, "fre_tenant_cpus acme": 1.5,
		"fre_tenant_builds running other": 1, // labels are in their order
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	g.let("b")
	if err := <-b.ended; err != nil {
		t.Error(err)
	}
}
