package docker_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// Containers count against the quotas of the tenant in their label. The client shows the refused
// object, the reason and the next step. After a crash only the containers that run again count.
func TestQuota(t *testing.T) {
	for _, client := range clients(t) {
		t.Run(strings.ReplaceAll(strings.Trim(client, "/"), "/", "-"), func(t *testing.T) {
			fretest.RequireRoot(t)
			fretest.CheckLeaks(t)
			state := filepath.Join(daemontest.Dir(t), "state")
			w := &world{Daemon: daemontest.Start(t, testdaemon.Config{State: state, Log: t.Output()}), client: client, config: t.TempDir()}
			t.Cleanup(func() { daemontest.Stop(t, w.Daemon) })
			w.app(t)
			w.fre(t, "tenant create acme --instances 1 --memory 128MiB")
			run := func(args string) []string {
				return append(words("run --network none -l fre.tenant=acme -m 64m "+args), "app", "orders")
			}
			const full = `tenant acme has reached its quota of instances \(1\): .*fre tenant quota acme`
			w.ok(t, run("-d -i --name one")...)
			w.run(t, []line{
				{run("--rm"), 125, ``, full},
				{words("create --network none -l fre.tenant=acme -m 64m --name two -i app orders"), 0, `.`, ``},
				{words("start two"), 1, ``, full},
				{words("create --network none -l fre.tenant=acme -m 256m app"), 1, ``, `quota of bytes of memory \(134217728\): .*-m`},
				{words("run --rm --network none -m 64m app args x"), 0, `^x\n$`, ``}, // of the tenant default
				{words("ps -a --format {{.Names}}:{{.State}} --filter label=fre.tenant=acme"), 0, `^two:created\none:running\n$`, ``},
			})
			w.has(t, "1/1", "1", "67.1MB/134MB")
			w.run(t, []line{
				{words("rm -f one"), 0, `one`, ``},
				{words("start two"), 0, `two`, ``},
				{run("--rm"), 125, ``, full},
			})
			w.has(t, "1/1", "1", "67.1MB/134MB")
			w.Kill()
			w.Daemon = daemontest.Start(t, testdaemon.Config{State: state, Log: t.Output()})
			w.has(t, "0/1", "0", "0B/134MB")
			w.run(t, []line{
				{words("start two"), 0, `two`, ``},
				{run("--rm"), 125, ``, full},
				{words("stop -t 0 two"), 0, `two`, ``},
				{run("--rm"), 0, `^> ready\n$`, ``}, // ends, because it has no input
				{words("start two"), 0, `two`, ``},
				{words("kill two"), 0, `two`, ``},
			})
			w.has(t, "0/1", "0", "0B/134MB")
		})
	}
}

func (w *world) fre(t *testing.T, args string) string {
	t.Helper()
	out, err := w.CLI(t.Context(), words(args)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// has checks acme's usage of its quotas.
func (w *world) has(t *testing.T, instances, containers, memory string) {
	t.Helper()
	out := w.fre(t, "tenant ls")
	if want := `(?m)^acme +0 +` + instances + ` +` + containers + ` +` + memory; !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("fre tenant ls says\n%s\nwant acme with %s instances, %s containers, %s", out, instances, containers, memory)
	}
}
