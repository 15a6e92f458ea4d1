package live

import (
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/template"
)

// WithLimits adds variables to env that tell software the limits of its sandbox. Otherwise
// software would find the host's: a function has no /proc/cpuinfo, /proc/meminfo or cgroup file
// to read, and the kernel's own answers (sched_getaffinity(2), sysinfo(2)) describe the host.
// Variables that env already sets stay. See docs/ordinary-software.md.
func WithLimits(env []string, r template.Resources) []string {
	cpus := strconv.FormatInt(cpuCount(r.CPUMillis, runtime.NumCPU()), 10)
	env = slices.Clip(env)
	for _, v := range []struct{ name, value string }{
		{"FRE_CPUS", cpus},
		{"FRE_MEMORY_BYTES", strconv.FormatInt(r.MemoryBytes, 10)},
		{"GOMAXPROCS", cpus},           // Go
		{"OMP_NUM_THREADS", cpus},      // OpenMP; also read by OpenBLAS, MKL, PyTorch and numexpr
		{"RAYON_NUM_THREADS", cpus},    // Rust's rayon: polars, tokenizers, …
		{"TOKIO_WORKER_THREADS", cpus}, // Rust's tokio
		{"PYTHON_CPU_COUNT", cpus},     // Python 3.13 and newer, and its child processes
		{"DOTNET_PROCESSOR_COUNT", cpus},
	} {
		given := slices.ContainsFunc(env, func(s string) bool { return strings.HasPrefix(s, v.name+"=") })
		if !given && v.value != "0" { // a base environment has no limits of its own
			env = append(env, v.name+"="+v.value)
		}
	}
	return env
}

// cpuCount returns how many threads can run at once with a limit of millis thousandths of a CPU
// on a host of host CPUs.
func cpuCount(millis int64, host int) int64 {
	return max(1, min((millis+999)/1000, int64(host)))
}

// SearchPath is the PATH of a program in an image of FRE.
const SearchPath = "/usr/local/bin:/usr/bin:/bin"

// LastOfEach returns env with each variable once: the last value at the first position.
func LastOfEach(env []string) []string {
	at := map[string]int{}
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			out[i] = kv
			continue
		}
		at[name] = len(out)
		out = append(out, kv)
	}
	return out
}
