package registry

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/internal/fretest"
)

// counts are the attributes of the suite's junit.xml.
type counts struct {
	Tests    int `xml:"tests,attr"`
	Errors   int `xml:"errors,attr"`
	Failures int `xml:"failures,attr"`
	Skipped  int `xml:"skipped,attr"`
	Disabled int `xml:"disabled,attr"`
}

// TestConformance: The suite of the distribution-spec passes without a skipped case.
func TestConformance(t *testing.T) {
	program := fretest.Tool(t, "conformance")
	for name, c := range map[string]struct {
		env   []string
		login bool
		want  counts
	}{
		// The suite leaves out the cancelling of uploads, which 1.1 does not require.
		"1.1, with a login":     {env: []string{"OCI_USERNAME=writer", "OCI_PASSWORD=secret"}, login: true, want: counts{Tests: 862, Disabled: 2}},
		"what is to become 1.2": {env: []string{"OCI_VERSION=dev"}, want: counts{Tests: 986}},
	} {
		t.Run(name, func(t *testing.T) {
			fretest.CheckLeaks(t)
			cfg := Config{}
			if c.login {
				cfg.Users = testUsers(t)
			}
			addr := serve(t, open(t, t.TempDir(), cfg))
			results := t.TempDir()
			cmd := exec.CommandContext(t.Context(), program)
			cmd.Env = append(os.Environ(), append(c.env, "OCI_REGISTRY="+addr, "OCI_TLS=disabled", "OCI_RESULTS_DIR="+results)...)
			cmd.Dir = results
			out, runErr := cmd.CombinedOutput()
			src, err := os.ReadFile(filepath.Join(results, "junit.xml"))
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var got counts
			if err := xml.Unmarshal(src, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" || runErr != nil {
				t.Errorf("%v; (-want +got):\n%s\n%s", runErr, diff, out)
			}
		})
	}
}
