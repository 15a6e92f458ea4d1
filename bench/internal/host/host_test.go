package host_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/bench/internal/host"
)

func TestDescribe(t *testing.T) {
	info, err := host.Describe(t.Context(), map[string][]string{
		"fre":  {"sh", "-c", `printf '\033[1mversion 1\033[m\nmore\n'`},
		"runc": {"no-such-program-anywhere"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"fre": "version 1"}, info.Programs); diff != "" {
		t.Errorf("programs (-want +got):\n%s", diff)
	}
	line := info.Markdown()
	for _, want := range []string{info.Kernel, info.CPU, runtime.Version(), "fre: version 1"} {
		if want == "" || !strings.Contains(line, want) {
			t.Errorf("%q does not hold %q", line, want)
		}
	}
	if _, err := host.Describe(t.Context(), map[string][]string{"fre": {"false"}}); err == nil {
		t.Error("a program that fails: got no error")
	}
}
