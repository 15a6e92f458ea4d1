package engine

import (
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/template"
)

// withLimits adds variables to env that tell software the limits of its sandbox. Otherwise
// software would find the host's: a function has no /proc/cpuinfo, /proc/meminfo or cgroup file
// to read, and the kernel's own answers (sched_getaffinity(2), sysinfo(2)) describe the host.
// Variables that env already sets stay. See docs/ordinary-software.md.
func withLimits(env []string, r template.Resources) []string {
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

// withName puts the function's name into the variables of AWS Lambda that hold a name
// (docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html). An image of the contract
// lambda has the template's id there, because a build does not know the name.
func withName(env []string, c template.Contract, name string) []string {
	if c != template.ContractLambda {
		return env
	}
	env = slices.Clone(env)
	for _, v := range []struct{ name, value string }{
		{"AWS_LAMBDA_FUNCTION_NAME", name},
		{"AWS_LAMBDA_LOG_GROUP_NAME", "/aws/lambda/" + name},
	} {
		// The runtime's variables come before the template's, which stay.
		if i := slices.IndexFunc(env, func(s string) bool { return strings.HasPrefix(s, v.name+"=") }); i >= 0 {
			env[i] = v.name + "=" + v.value
		}
	}
	return env
}

// cpuCount returns how many threads can run at once with a limit of millis thousandths of a CPU
// on a host of host CPUs.
func cpuCount(millis int64, host int) int64 {
	return max(1, min((millis+999)/1000, int64(host)))
}
