package engine

import (
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/image"
)

// withLimits adds to env what tells software its sandbox's limits, where it would
// find the host's: a function has no /proc/cpuinfo, /proc/meminfo or cgroup file to
// read, and the kernel's own answers (sched_getaffinity(2), sysinfo(2)) are about
// the host. What env says already stands. See docs/ordinary-software.md.
func withLimits(env []string, r image.Resources) []string {
	cpus := strconv.FormatInt(cpuCount(r.CPUMillis, runtime.NumCPU()), 10)
	env = slices.Clip(env)
	for _, v := range []struct{ name, value string }{
		{"FRE_CPUS", cpus},
		{"FRE_MEMORY_BYTES", strconv.FormatInt(r.MemoryBytes, 10)},
		{"GOMAXPROCS", cpus},           // Go
		{"OMP_NUM_THREADS", cpus},      // OpenMP; OpenBLAS, MKL, PyTorch and numexpr look at it too
		{"RAYON_NUM_THREADS", cpus},    // Rust's rayon: polars, tokenizers, …
		{"TOKIO_WORKER_THREADS", cpus}, // Rust's tokio
		{"PYTHON_CPU_COUNT", cpus},     // Python 3.13 and newer, children included
		{"DOTNET_PROCESSOR_COUNT", cpus},
	} {
		given := slices.ContainsFunc(env, func(s string) bool { return strings.HasPrefix(s, v.name+"=") })
		if !given && v.value != "0" { // a base environment has no limits of its own
			env = append(env, v.name+"="+v.value)
		}
	}
	return env
}

// cpuCount is how many threads can run at once under a limit of so many
// thousandths of a CPU on a host of so many.
func cpuCount(millis int64, host int) int64 {
	return max(1, min((millis+999)/1000, int64(host)))
}
