package engine

import (
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fre-engine/fre/engine/container"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/sandbox"
)

// small are limits that fit into a quota several times.
var small = sandbox.Limits{MemoryBytes: 64 << 20, CPUMillis: 500}

func (r *rig) acmeHas(what string, instances, containers int64) {
	r.t.Helper()
	u := r.TenantUse("acme")
	if u.Instances != instances || u.Containers != containers || u.MemoryBytes != instances*64<<20 {
		r.t.Errorf("%s: TenantUse = %+v, want %d instances of 64 MiB, %d of them containers", what, u, instances, containers)
	}
}

// TestContainerQuota: a running container uses its tenant's quotas as an instance of a function
// does. Beyond the quotas a start is refused; it succeeds after a container or an instance has
// ended.
func TestContainerQuota(t *testing.T) {
	for name, c := range map[string]struct {
		q    live.Quotas
		what string
	}{
		"instances": {live.Quotas{Instances: 2}, "instances"},
		"memory":    {live.Quotas{MemoryBytes: 2*64<<20 + 1}, "bytes of memory"},
		"cpu":       {live.Quotas{CPUMillis: 1100}, "thousandths of a CPU"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := quotaRig(t, c.q)
			r.ordinary("ordinary")
			create := func(tenant string) string {
				return r.create(container.Config{Tenant: tenant, Limits: small}).ID
			}
			one, two, three := create("acme"), create("acme"), create("acme")
			r.acmeHas("none runs", 0, 0)
			for _, id := range []string{one, two} {
				if err := r.StartContainer(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
			r.acmeHas("two run", 2, 2)
			var full *live.QuotaError
			for range 3 { // an attempt leaves nothing counted
				if err := r.StartContainer(t.Context(), three); !errors.As(err, &full) || full.Tenant != "acme" || full.What != c.what {
					t.Fatalf("a third container: %v, want a QuotaError of %s", err, c.what)
				}
			}
			if got, err := r.Container(three); err != nil || got.State != live.StateCreated || !strings.Contains(got.Error, "quota of "+c.what) {
				t.Errorf("the refused container is %+v, %v; want one that was not started, and why", got, err)
			}
			if _, err := r.Run(t.Context(), container.RunRequest{Image: "ordinary", Args: []string{"prog", "exit", "0"}, Tenant: "acme"}); !errors.As(err, &full) {
				t.Errorf("a command beside them: %v, want a QuotaError", err)
			}
			if err := r.StartContainer(t.Context(), create("other")); err != nil {
				t.Errorf("another tenant's: %v", err)
			}
			r.deploy("f", ofAcme)
			if _, _, err := r.call(t.Context(), "f.acme", "/", "x"); !errors.As(err, &full) {
				t.Errorf("an instance beside them: %v, want a QuotaError", err)
			}
			if err := r.Kill(one); err != nil {
				t.Fatal(err)
			}
			r.acmeHas("one was killed", 1, 1)
			if err := r.StartContainer(t.Context(), three); err != nil {
				t.Errorf("once there is room: %v", err)
			}
			r.acmeHas("the third has its place", 2, 2)
		})
	}
}

// TestContainerQuotaCounts: after any end of a run, or a failed start, nothing remains counted, and
// nothing is released twice. A restarted engine counts the restarted containers.
func TestContainerQuotaCounts(t *testing.T) {
	r, now := quotaRig(t, live.Quotas{Instances: 2})
	r.ordinary("ordinary")
	start := func(cfg container.Config) (string, error) {
		cfg.Tenant, cfg.Limits = "acme", small
		id := r.create(cfg).ID
		return id, r.StartContainer(t.Context(), id)
	}
	ends := map[string]func(id string) error{
		"by itself": func(id string) error { r.exited(id); return nil },
		"stopped":   func(id string) error { return r.StopContainer(t.Context(), id, live.StopOptions{}) },
		"killed":    r.Kill,
		"removed":   func(id string) error { return r.RemoveContainer(id, true) },
	}
	for name, end := range ends {
		cfg := container.Config{Cmd: prog("sleep")}
		if name == "by itself" {
			cfg.Cmd = prog("exit", "3")
		}
		for _, cfg.AutoRemove = range []bool{false, true} {
			if name == "by itself" && cfg.AutoRemove {
				continue // the container may be gone before the stop
			}
			id, err := start(cfg)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := end(id); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			r.acmeHas(name, 0, 0)
		}
	}
	for name, cfg := range map[string]container.Config{
		"no such program":   {Cmd: []string{"/nowhere"}},
		"no such directory": {Cmd: prog("sleep"), Dir: "/bin/prog/sub"},
		"and removed":       {Cmd: []string{"/nowhere"}, AutoRemove: true},
	} {
		if _, err := start(cfg); err == nil {
			t.Errorf("%s: it was started", name)
		}
		r.acmeHas(name, 0, 0)
	}
	for _, args := range [][]string{prog("exit", "3"), {"/nowhere"}} {
		_, _ = r.Run(t.Context(), container.RunRequest{Image: "ordinary", Args: args, Tenant: "acme"})
		r.acmeHas("a command", 0, 0)
	}
	id, err := start(container.Config{Cmd: prog("sleep")})
	if err != nil {
		t.Fatal(err)
	}
	now.Store(&live.Quotas{Instances: 1}) // running containers stay
	r.acmeHas("the quota was lowered", 1, 1)
	r.stop()
	r.start(Config{Quotas: func(string) live.Quotas { return *now.Load() }})
	r.acmeHas("after a restart", 0, 0)
	if err := r.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	var full *live.QuotaError
	if _, err := start(container.Config{Cmd: prog("sleep")}); !errors.As(err, &full) {
		t.Errorf("a second one after a restart: %v, want a QuotaError", err)
	}
	r.acmeHas("it runs again", 1, 1)
}

// TestContainerQuotaRace: of simultaneous starts no more succeed than the quota allows.
func TestContainerQuotaRace(t *testing.T) {
	const most, attempts = 3, 12
	r, _ := quotaRig(t, live.Quotas{Instances: most})
	r.ordinary("ordinary")
	var all []string
	for range attempts {
		all = append(all, r.create(container.Config{Tenant: "acme", Limits: small}).ID)
	}
	for range 2 {
		var started, refused atomic.Int64
		var wg sync.WaitGroup
		for _, id := range all {
			wg.Go(func() {
				var full *live.QuotaError
				switch err := r.StartContainer(t.Context(), id); {
				case err == nil:
					started.Add(1)
				case errors.As(err, &full):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if started.Load() != most || refused.Load() != attempts-most {
			t.Errorf("%d were started and %d refused, want %d and %d", started.Load(), refused.Load(), most, attempts-most)
		}
		r.acmeHas("they run", most, most)
		for _, id := range all { // two stops of each container at the same time
			wg.Go(func() { _ = r.Kill(id) })
			wg.Go(func() { _ = r.StopContainer(t.Context(), id, live.StopOptions{}) })
		}
		wg.Wait()
		r.acmeHas("all were killed", 0, 0)
	}
}

// TestContainerQuotaLimits: default limits leave room for several containers in the quotas. Limits
// above the quotas are refused when the container is created.
func TestContainerQuotaLimits(t *testing.T) {
	r, now := quotaRig(t, live.Quotas{})
	r.ordinary("ordinary")
	free := r.create(container.Config{Tenant: "acme"}).Config.Limits
	now.Store(&live.Quotas{MemoryBytes: 256 << 20, CPUMillis: 1000})
	c := r.create(container.Config{Tenant: "acme"}).Config.Limits
	if c.MemoryBytes != 64<<20 || c.CPUMillis != 250 || c.Pids != free.Pids {
		t.Errorf("limits are %+v, want a quarter of the quotas, and all else as without: %+v", c, free)
	}
	now.Store(&live.Quotas{MemoryBytes: 8 << 20, CPUMillis: 1 << 30})
	if c := r.create(container.Config{Tenant: "acme"}).Config.Limits; c.MemoryBytes != 8<<20 || c.CPUMillis != free.CPUMillis {
		t.Errorf("limits are %+v, want all of a small quota, and no more than without: %+v", c, free)
	}
	now.Store(&live.Quotas{MemoryBytes: 256 << 20, CPUMillis: 400})
	for what, l := range map[string]sandbox.Limits{
		"bytes of memory":      {MemoryBytes: 256<<20 + 1<<12},
		"thousandths of a CPU": {CPUMillis: 401},
	} {
		var full *live.QuotaError
		if _, err := r.CreateContainer(t.Context(), container.Config{Image: "ordinary", Name: "large", Tenant: "acme", Limits: l}); !errors.As(err, &full) || full.What != what {
			t.Errorf("%+v: %v, want a QuotaError of %s", l, err, what)
		}
	}
	entries, err := os.ReadDir(r.state + "/containers")
	if err != nil || len(entries) != 3 {
		t.Errorf("%d containers are on disk, %v; want the 3 that were made", len(entries), err)
	}
	if _, err := r.Container("large"); err == nil {
		t.Error("a refused container is there")
	}
}
