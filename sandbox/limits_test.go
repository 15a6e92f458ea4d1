package sandbox

import (
	"errors"
	"log/slog"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
)

// TestMaxFiles: The limit of open files ends at the spawner's own limit; a higher value is refused
// with a clear error.
func TestMaxFiles(t *testing.T) {
	h := openHost(t)
	spec := prog(fretest.Rootfs(t), "exit", "0")
	spec.Limits.Files = h.maxFiles
	if _, status := run(t, h, spec); status.Code != 0 {
		t.Errorf("with %d files: ended with %+v", h.maxFiles, status)
	}
	if err := h.CheckLimits(spec.Limits); err != nil {
		t.Error(err)
	}
	spec.Limits.Files++
	var limit *LimitError
	if _, err := h.Start(t.Context(), spec); !errors.Is(err, unix.EINVAL) || !errors.As(err, &limit) || limit.Most != h.maxFiles {
		t.Errorf("start with %d files: %v, want a LimitError of %d", spec.Limits.Files, err, h.maxFiles)
	}
}

// TestCheckLimits: CheckLimits accepts the maximum of this host and refuses one more of each limit.
func TestCheckLimits(t *testing.T) {
	h := openHost(t)
	most, err := h.CutLimits(Limits{MemoryBytes: math.MaxInt64, CPUMillis: math.MaxInt64, Pids: math.MaxInt64, Files: math.MaxInt64})
	if err != nil {
		t.Fatal(err)
	}
	memory, err := HostMemory()
	if err != nil {
		t.Fatal(err)
	}
	if most.MemoryBytes > memory || most.CPUMillis > int64(h.cpus.Count())*1000 || most.Pids > 1<<22 || most.Files != h.maxFiles {
		t.Errorf("the host can give %+v: more than it has", most)
	}
	if err := h.CheckLimits(most); err != nil {
		t.Errorf("all the host can give: %v", err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		limit, controller string
		above             Limits
	}{
		{"memory", "memory", Limits{MemoryBytes: most.MemoryBytes + 1}},
		{"cpu", "cpu", Limits{CPUMillis: most.CPUMillis + 1}},
		{"pids", "pids", Limits{Pids: most.Pids + 1}},
		{"files", "RLIMIT_NOFILE", Limits{Files: most.Files + 1}},
	} {
		err := h.CheckLimits(test.above)
		var limit *LimitError
		if !errors.As(err, &limit) || limit.Limit != test.limit || limit.Controller != test.controller || limit.Host != host || limit.Want != limit.Most+1 {
			t.Errorf("%+v: %v, want a LimitError of %s", test.above, err, test.limit)
		}
	}
}

// TestLimitError: A refused limit names the limit, the controller, the host, the maximum and the
// next step.
func TestLimitError(t *testing.T) {
	above := func(limit, controller string, most int64, by, next string, of func(*Limits) *int64) bound {
		return bound{LimitError: LimitError{Limit: limit, Controller: controller, Host: "web1", Most: most, By: by, next: next}, of: of}
	}
	bounds := []bound{
		above("memory", "memory", 2<<30+5, "memory.max of /sys/fs/cgroup/fre.slice", "raise the parent's limit", func(l *Limits) *int64 { return &l.MemoryBytes }),
		above("cpu", "cpu", 2000, "the engine's CPUs", "use a host with more CPUs", func(l *Limits) *int64 { return &l.CPUMillis }),
		above("pids", "pids", 32768, "kernel.pid_max", "raise kernel.pid_max", func(l *Limits) *int64 { return &l.Pids }),
		above("files", "RLIMIT_NOFILE", 20000, "the engine's own limit", "raise LimitNOFILE of the engine's service", func(l *Limits) *int64 { return &l.Files }),
	}
	for _, test := range []struct {
		name string
		ask  Limits
		want string
	}{
		{"nothing", Limits{}, ""},
		{"all there is", Limits{MemoryBytes: 2<<30 + 5, CPUMillis: 2000, Pids: 32768, Files: 20000}, ""},
		{"memory", Limits{MemoryBytes: 2<<30 + 6}, "limit of 2049 MiB of memory is above the maximum of cgroup controller memory on host web1: " +
			"2048 MiB of memory (memory.max of /sys/fs/cgroup/fre.slice); lower the limit, or raise the parent's limit"},
		{"cpu", Limits{CPUMillis: 2500}, "limit of 2.5 CPUs is above the maximum of cgroup controller cpu on host web1: " +
			"2 CPUs (the engine's CPUs); lower the limit, or use a host with more CPUs"},
		{"pids", Limits{Pids: 40000}, "limit of 40000 processes is above the maximum of cgroup controller pids on host web1: " +
			"32768 processes (kernel.pid_max); lower the limit, or raise kernel.pid_max"},
		{"files", Limits{Files: 20001}, "limit of 20001 open files is above the maximum of RLIMIT_NOFILE on host web1: " +
			"20000 open files (the engine's own limit); lower the limit, or raise LimitNOFILE of the engine's service"},
	} {
		got := ""
		err := checkLimits(test.ask, bounds)
		if err != nil {
			got = err.Error()
			if !errors.Is(err, unix.EINVAL) {
				t.Errorf("%s: %v is no EINVAL", test.name, err)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %+v (-want +got):\n%s", test.name, test.ask, diff)
		}
	}
	cut := cutLimits(Limits{MemoryBytes: 4 << 30, CPUMillis: 1000, Pids: 1024, Files: 1 << 20, TmpBytes: 2 << 30}, bounds)
	if diff := cmp.Diff(Limits{MemoryBytes: 2<<30 + 5, CPUMillis: 1000, Pids: 1024, Files: 20000, TmpBytes: 2 << 30}, cut); diff != "" {
		t.Errorf("cut limits (-want +got):\n%s", diff)
	}

	bounds[2].missing = true
	var limit *LimitError
	if err := checkLimits(Limits{Pids: 64}, bounds); !errors.As(err, &limit) {
		t.Fatalf("64 processes without the controller: %v", err)
	}
	if diff := cmp.Diff(&LimitError{Limit: "pids", Controller: "pids", Host: "web1", Want: 64, By: "kernel.pid_max"}, limit,
		cmpopts.IgnoreUnexported(LimitError{})); diff != "" {
		t.Errorf("64 processes without the controller (-want +got):\n%s", diff)
	}
	const want = "limit of 64 processes cannot be enforced: host web1 has no cgroup controller pids; enable the controller at boot (fre doctor)"
	if diff := cmp.Diff(want, limit.Error()); diff != "" {
		t.Errorf("64 processes without the controller (-want +got):\n%s", diff)
	}
	if err := checkLimits(Limits{MemoryBytes: 1 << 20}, bounds); err != nil {
		t.Errorf("no limit of processes asked for: %v", err)
	}
}

// TestPoolSizes: Memory and process ids bound the size of the pools. The log warns of a pool
// smaller than requested.
func TestPoolSizes(t *testing.T) {
	const gib = 1 << 30
	for _, test := range []struct {
		name            string
		pool, most      int
		memory, pids    int64
		poolGot, parked int
		warnings        []string
	}{
		{"defaults", 0, 0, 16 * gib, 32768, 16, 64, nil},
		{"no parked sandboxes", 16, -1, 16 * gib, 32768, 16, 0, nil},
		{"room for all", 64, 256, 16 * gib, 32768, 64, 256, nil},
		{"memory for some parked sandboxes", 64, 256, gib, 32768, 64, 102, []string{`what="parked sandboxes"`}},
		{"memory for some of both", 256, 8192, gib, 32768, 102, 102, []string{`what="cgroups and network namespaces"`, `what="parked sandboxes"`}},
		{"memory for a large pool", 8192, 8192, 16 * gib, 32768, 1638, 1638, []string{`what="cgroups and network namespaces"`, `what="parked sandboxes"`}},
		{"process ids for some", 8192, -1, 1024 * gib, 32768, 4096, 0, []string{`what="cgroups and network namespaces"`}},
		{"few process ids", 64, 0, 16 * gib, 100, 12, 12, []string{`what="cgroups and network namespaces"`, `what="parked sandboxes"`}},
		{"no room", 64, 256, 4 << 20, 4, 1, 0, []string{`what="cgroups and network namespaces"`, `what="parked sandboxes"`}},
	} {
		var log strings.Builder
		cfg := Config{PoolSize: test.pool, Parked: test.most, Log: slog.New(slog.NewTextHandler(&log, nil))}
		cfg.sizePools(test.memory, test.pids)
		if cfg.PoolSize != test.poolGot || cfg.Parked != test.parked {
			t.Errorf("%s: pool of %d and %d parked sandboxes, want %d and %d", test.name, cfg.PoolSize, cfg.Parked, test.poolGot, test.parked)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != len(test.warnings) {
			t.Errorf("%s: %d warnings, want %q:\n%s", test.name, n, test.warnings, log.String())
		}
		for _, w := range test.warnings {
			if !strings.Contains(log.String(), w) {
				t.Errorf("%s: no warning of %q:\n%s", test.name, w, log.String())
			}
		}
	}
}
