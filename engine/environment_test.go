package engine

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
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

// TestLambdaName: a function of the contract lambda finds its deployed name in the environment, in
// a parked interpreter and in a start of its own; other functions keep their variables.
func TestLambdaName(t *testing.T) {
	r := open(t)
	deploy := func(name string, contract template.Contract, parks bool) {
		r.deployInterpreted(name, "1", func(c *image.Config) {
			c.Contract = contract
			c.Env = append(c.Env, "AWS_LAMBDA_FUNCTION_NAME=template", "AWS_LAMBDA_LOG_GROUP_NAME=/aws/lambda/template")
			if !parks {
				c.Parked = nil
			}
		})
	}
	deploy("parked", template.ContractLambda, true)
	deploy("alone", template.ContractLambda, false)
	deploy("other", template.ContractFRE, false)
	r.parked("parked", 1)
	for _, test := range []struct {
		function, want string
		parked         bool
	}{
		{"parked", "parked", true},
		{"alone", "alone", false},
		{"other", "template", false},
	} {
		got, resp, err := r.look(test.function, "env=AWS_LAMBDA_FUNCTION_NAME")
		if err != nil || got != test.want || (resp.StartKind == StartInterpreter) != test.parked {
			t.Errorf("%s: AWS_LAMBDA_FUNCTION_NAME is %q, %v, want %q: %+v", test.function, got, err, test.want, resp)
		}
		group, _, err := r.look(test.function, "env=AWS_LAMBDA_LOG_GROUP_NAME")
		if want := "/aws/lambda/" + test.want; err != nil || group != want {
			t.Errorf("%s: AWS_LAMBDA_LOG_GROUP_NAME is %q, %v, want %q", test.function, group, err, want)
		}
	}
}

func TestWithLimits(t *testing.T) {
	given := []string{"PATH=/bin", "GOMAXPROCS=7", "OMP_NUM_THREADS="}
	got := withLimits(given, template.Resources{MemoryBytes: 1 << 20, CPUMillis: 500})
	want := []string{
		"PATH=/bin", "GOMAXPROCS=7", "OMP_NUM_THREADS=", "FRE_CPUS=1", "FRE_MEMORY_BYTES=1048576",
		"RAYON_NUM_THREADS=1", "TOKIO_WORKER_THREADS=1", "PYTHON_CPU_COUNT=1", "DOTNET_PROCESSOR_COUNT=1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if again := withLimits(slices.Clone(got), template.Resources{MemoryBytes: 2, CPUMillis: 1000}); !slices.Equal(again, got) {
		t.Errorf("a second time: %q", again)
	}
}
