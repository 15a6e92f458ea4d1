package system_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
	"github.com/fre-engine/fre/template"
)

// A tenant runs as many builds at a time as its quota allows. The next build says that it waits,
// and runs after the first ends. After a crash no build counts, and the quota of images counts
// images before the store has them.
func TestBuildsOfTenant(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	dir := daemontest.Dir(t)
	program, err := os.ReadFile(filepath.Join(fretest.Rootfs(t), "bin/prog"))
	if err != nil {
		t.Fatal(err)
	}
	registry := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { // the registry never answers
		<-r.Context().Done()
	}))
	t.Cleanup(registry.Close)
	silent := "oci:" + registry.Listener.Addr().String() + "/team/app:1"
	cfg := testdaemon.Config{State: filepath.Join(dir, "state"), Log: t.Output()}
	d := daemontest.Start(t, cfg)
	t.Cleanup(func() { daemontest.Stop(t, d) })
	cli := func(args ...string) string {
		t.Helper()
		out, err := d.CLI(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	cli("tenant", "create", "acme", "--builds", "1")
	said := map[*exec.Cmd]*bytes.Buffer{}
	use := func(want string) {
		t.Helper()
		until(t, func() error {
			got := cli("tenant", "usage", "acme", "--format", "{{.Builds}} {{.WaitingBuilds}}")
			if got != want {
				return fmt.Errorf("builds under way and waiting: %s, want %s", got, want)
			}
			return nil
		})
	}
	// build starts `fre build` of a template on a base.
	build := func(id, base string) *exec.Cmd {
		t.Helper()
		fret := filepath.Join(dir, id)
		for name, text := range map[string][]byte{
			template.FileName: fmt.Appendf(nil, "id: %s\ntenant: acme\nbase: %s\nruntime: native\nhandler: fn\ncode: {path: code}\n", id, base),
			"code/fn":         program, "root/bin/sh": program, "code/id": []byte(id),
		} {
			file := filepath.Join(fret, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, text, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), daemontest.Bin(t), "build", "--socket", d.Socket(), fret)
		said[cmd] = new(bytes.Buffer)
		cmd.Stderr = said[cmd]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	// ends waits for a build to fail with words, or to succeed if words is empty.
	ends := func(cmd *exec.Cmd, words string) {
		t.Helper()
		if err := cmd.Wait(); (err != nil) != (words != "") || !strings.Contains(said[cmd].String(), words) {
			t.Errorf("the build ended with %v, says\n%s\nwant %q", err, said[cmd], words)
		}
	}
	hangs := build("hangs", silent)
	use("1 0")
	waits := build("waits", "dir:root")
	use("1 1")
	if err := hangs.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = hangs.Wait() // killed
	ends(waits, "")
	if !strings.Contains(said[waits].String(), "tenant acme runs 1 builds, the most allowed") {
		t.Errorf("what waited says\n%s", said[waits])
	}
	use("0 0")

	hangs = build("hangs", silent)
	use("1 0")
	d.Kill()
	_ = hangs.Wait() // the build has no engine any more
	d = daemontest.Start(t, cfg)
	use("0 0")
	ends(build("again", "dir:root"), "")
	cli("tenant", "quota", "acme", "--images", "2")
	ends(build("more", "dir:root"), "tenant acme has reached its quota of images (2)")
	cli("image", "rm", "again")
	ends(build("more", "dir:root"), "")
}
