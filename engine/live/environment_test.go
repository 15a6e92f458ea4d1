package live

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/template"
)

func TestCPUCount(t *testing.T) {
	for _, test := range []struct {
		millis int64
		host   int
		want   int64
	}{
		{1000, 8, 1},
		{1001, 8, 2},
		{1, 8, 1},
		{0, 8, 1},
		{2500, 8, 3},
		{64000, 8, 8},
	} {
		if got := cpuCount(test.millis, test.host); got != test.want {
			t.Errorf("%d of %d CPUs: got %d, want %d", test.millis, test.host, got, test.want)
		}
	}
}

// TestWithLimits: the environment tells programs the sandbox's CPUs and memory, and keeps variables
// that the template sets.
func TestWithLimits(t *testing.T) {
	given := []string{"PATH=/bin", "GOMAXPROCS=7", "OMP_NUM_THREADS="}
	got := WithLimits(given, template.Resources{MemoryBytes: 1 << 20, CPUMillis: 500})
	want := []string{
		"PATH=/bin", "GOMAXPROCS=7", "OMP_NUM_THREADS=", "FRE_CPUS=1", "FRE_MEMORY_BYTES=1048576",
		"RAYON_NUM_THREADS=1", "TOKIO_WORKER_THREADS=1", "PYTHON_CPU_COUNT=1", "DOTNET_PROCESSOR_COUNT=1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if again := WithLimits(slices.Clone(got), template.Resources{MemoryBytes: 2, CPUMillis: 1000}); !slices.Equal(again, got) {
		t.Errorf("a second time: %q", again)
	}
}
