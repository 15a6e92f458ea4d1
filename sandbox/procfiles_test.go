package sandbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/fretest"
)

// TestProcFiles: The /proc files show the sandbox's limits and its current memory, for each kind of
// start. After the sandbox's end they are gone.
func TestProcFiles(t *testing.T) {
	h := openHost(t)
	for name, memory := range map[string]int64{"spawner": parkedMemory - 4096, "parked sandbox": 64 << 20} {
		t.Run(name, func(t *testing.T) {
			spec := container(fretest.Rootfs(t))
			spec.ProcFiles, spec.Limits = true, Limits{MemoryBytes: memory, CPUMillis: 500}
			order, s := orders(t, h, spec)
			info := func(field string) string {
				for line := range strings.Lines(strings.ReplaceAll(order("cat /proc/meminfo"), " kB", " kB\n")) {
					if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == field {
						return strings.TrimSpace(value)
					}
				}
				t.Fatalf("no %s in /proc/meminfo", field)
				return ""
			}
			total := strings.TrimSpace(string(meminfo(memory, 0, 0)[len("MemTotal:"):31])) + " kB"
			if got := info("MemTotal"); got != total {
				t.Errorf("MemTotal %s, want %s", got, total)
			}
			h.proc.look()
			if got := info("MemFree"); got == total {
				t.Errorf("MemFree is %s, as if the sandbox used nothing", got)
			}
			if got := strings.Count(order("cat /proc/cpuinfo"), "processor\t:"); got != 1 {
				t.Errorf("%d processors for half a CPU", got)
			}
			for _, link := range []string{"mounts", "net"} {
				if got := order("readlink /proc/" + link); got != "self/"+link {
					t.Errorf("/proc/%s leads to %q", link, got)
				}
			}
			if a, b := order("cat /proc/sys/kernel/random/uuid"), order("cat /proc/sys/kernel/random/uuid"); len(a) != 36 || a == b {
				t.Errorf("random numbers %q and %q", a, b)
			}
			for _, target := range []string{"/proc/meminfo", "/proc/uptime", "/proc/sys/kernel/pid_max", "/proc/sys/kernel/random/uuid"} {
				if got := order("write " + target + " 1"); !strings.HasSuffix(got, "read-only file system") && !strings.HasSuffix(got, "permission denied") {
					t.Errorf("write %s: %q", target, got)
				}
			}
			s.Kill()
			<-s.Done()
			left, err := os.ReadDir(filepath.Join(h.proc.dir, "memory"))
			if err != nil || len(left) > 0 {
				t.Errorf("after the end there are %v, %v", left, err)
			}
		})
	}
	if n := len(h.proc.views); n != 0 {
		t.Errorf("%d sandboxes are looked after that have ended", n)
	}
}

// TestMeminfo: /proc/meminfo shows the sandbox's memory limit and its usage.
func TestMeminfo(t *testing.T) {
	for _, test := range []struct {
		limit, used, cached int64
		want                string
	}{
		{64 << 20, 48 << 20, 16 << 20, "MemTotal: 65536 kB MemFree: 16384 kB MemAvailable: 32768 kB Buffers: 0 kB Cached: 16384 kB"},
		{64 << 20, 80 << 20, 1 << 40, "MemTotal: 65536 kB MemFree: 0 kB MemAvailable: 65536 kB Buffers: 0 kB Cached: 65536 kB"}, // read during the reclaim
	} {
		text := meminfo(test.limit, test.used, test.cached)
		if got := strings.Join(strings.Fields(string(text)), " "); !strings.HasPrefix(got, test.want) {
			t.Errorf("%d used, %d cached of %d: %s", test.used, test.cached, test.limit, got)
		}
		if got := len(meminfo(1<<45, 0, 0)); got != len(text) {
			t.Errorf("a limit of 32 TiB takes %d bytes, not %d: the rest of the earlier text would show behind it", got, len(text))
		}
	}
}

// TestCPUTimes: /proc/stat shows the sandbox's own CPU time and start.
func TestCPUTimes(t *testing.T) {
	const want = "cpu  0 0 0 300 0 0 0 0 0 0\ncpu0 0 0 0 150 0 0 0 0 0 0\ncpu1 0 0 0 150 0 0 0 0 0 0\n" +
		"intr 0\nctxt 0\nbtime 1700000000\nprocesses 0\nprocs_running 1\nprocs_blocked 0\n"
	if diff := cmp.Diff(want, string(cpuTimes(2, 1500*time.Millisecond, time.Unix(1700000000, 0)))); diff != "" {
		t.Error(diff)
	}
}

// TestCPUInfo: /proc/cpuinfo shows the properties of the processor and no state of the kernel.
func TestCPUInfo(t *testing.T) {
	const place = "physical id\t: 0\nsiblings\t: 1\ncore id\t\t: 0\ncpu cores\t: 1\n\n"
	for name, test := range map[string]struct{ host, want string }{
		"x86": {
			"processor\t: 0\nmodel name\t: X\nmicrocode\t: 0x1\ncpu MHz\t\t: 2445.430\nflags\t\t: fpu vme\nbugs\t\t: none\napicid\t\t: 7\n\nprocessor\t: 1\nmodel name\t: Y\n\n",
			"processor\t: 0\nmodel name\t: X\nflags\t\t: fpu vme\n" + place,
		},
		"arm":     {"processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\nCPU part\t: 0xd0c", "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\nCPU part\t: 0xd0c\n" + place},
		"nothing": {"", "processor\t: 0\n" + place},
	} {
		if diff := cmp.Diff(test.want, cpuinfo([]byte(test.host), 1)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := cpuinfo(nil, 3); strings.Count(got, "processor\t:") != 3 || !strings.Contains(got, "core id\t\t: 2") {
		t.Errorf("three processors: %q", got)
	}
}
