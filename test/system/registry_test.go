package system_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// An engine serves a registry: an image that was pushed to two repositories comes back from both,
// after a restart too.
func TestRegistry(t *testing.T) {
	fretest.RequireRoot(t)
	dir := daemontest.Dir(t)
	state := filepath.Join(dir, "state")
	bin := daemontest.Bin(t)
	program := filepath.Join(dir, "program") // never runs
	if err := os.WriteFile(program, []byte(strings.Repeat("program\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := testdaemon.PutImages(t.Context(), state, testdaemon.Function{Name: "app", Program: program}); err != nil {
		t.Fatal(err)
	}
	addr, err := testdaemon.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "fre.yaml")
	if err := os.WriteFile(config, []byte("registry: {serve: {listen: '"+addr+"'}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() (d *testdaemon.Daemon, cli func(args ...string) string) {
		d = daemontest.Start(t, testdaemon.Config{Bin: bin, State: state, Args: []string{"--config", config}})
		return d, func(args ...string) string {
			t.Helper()
			out, err := d.CLI(t.Context(), args...)
			if err != nil {
				d.Kill()
				t.Fatalf("fre %s: %v\n%s", strings.Join(args, " "), err, out)
			}
			return strings.TrimSpace(out)
		}
	}
	d, cli := start()
	cli("push", "app:1", addr+"/lib/app:1")
	cli("push", "app:1", addr+"/team/app:1")
	daemontest.Stop(t, d)

	d, cli = start()
	defer daemontest.Stop(t, d)
	cli("image", "rm", "app:1")
	if got := cli("images", "-q"); got != "" {
		t.Fatalf("images after their removal: %s", got)
	}
	for _, name := range []string{"lib/app:1", "team/app:1"} {
		cli("pull", addr+"/"+name)
	}
	resp, err := http.Get(d.URL("/metrics"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if want := `fre_registry_requests_total{method="GET",resource="manifest",result="ok"}`; !strings.Contains(string(metrics), want) {
		t.Errorf("no %s among the metrics", want)
	}
	for _, sub := range []string{"repos/lib/app", "repos/team/app"} {
		if _, err := os.Stat(filepath.Join(state, "registry", sub, "_manifests")); err != nil {
			t.Error(err)
		}
	}
}
