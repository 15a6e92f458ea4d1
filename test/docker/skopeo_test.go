package docker_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/internal/testdaemon/daemontest"
)

// program runs another image tool; scripts/deps.sh test installs the tools.
func program(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	out, err := testdaemon.Command(ctx, name, args...)
	if _, ok := errors.AsType[*testdaemon.CommandError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return strings.TrimSpace(out), err
}

// skopeo, umoci and runc, independent programs, work with an engine's registry. Images travel in
// every form with the same digests, and an image built by FRE runs under runc with its
// configuration.
func TestSkopeo(t *testing.T) {
	fretest.RequireRoot(t)
	dir := daemontest.Dir(t)
	state := filepath.Join(dir, "state")
	prog := filepath.Join(fretest.Rootfs(t), "bin/prog")
	function := testdaemon.Function{Name: "app", Program: prog, Config: image.Config{Args: []string{"/function/program", "ids"}, Env: []string{"PATH=/bin"}}}
	if err := testdaemon.PutImages(t.Context(), state, function); err != nil {
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
	d := daemontest.Start(t, testdaemon.Config{State: state, Args: []string{"--config", config}, Log: t.Output()})
	defer daemontest.Stop(t, d)
	fre := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		out, err := d.CLI(ctx, args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	skopeo := func(args ...string) string {
		t.Helper()
		out, err := program(t, "skopeo", append([]string{"--insecure-policy"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	remote := func(name string) string { return "docker://" + addr + "/" + name }
	inspect := func(name string) (got struct {
		Digest, Architecture, Os string
		Layers                   []string
	},
	) {
		t.Helper()
		if err := json.Unmarshal([]byte(skopeo("inspect", "--tls-verify=false", remote(name))), &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	tags := func(name string) (got struct{ Tags []string }) {
		t.Helper()
		if err := json.Unmarshal([]byte(skopeo("list-tags", "--tls-verify=false", remote(name))), &got); err != nil {
			t.Fatal(err)
		}
		return got
	}

	// FRE's image to an OCI layout and back.
	pushed := fre("push", "-q", "app:1", addr+"/lib/app:1", "--as-image")
	if got := inspect("lib/app:1"); got.Digest != pushed || got.Os != "linux" || len(got.Layers) == 0 {
		t.Errorf("skopeo inspects %+v, want digest %s", got, pushed)
	}
	layout := filepath.Join(dir, "layout")
	skopeo("copy", "--src-tls-verify=false", remote("lib/app:1"), "oci:"+layout+":1")
	skopeo("copy", "--dest-tls-verify=false", "oci:"+layout+":1", remote("back/app:1"))
	if got := inspect("back/app:1"); got.Digest != pushed {
		t.Errorf("by way of a layout it has the digest %s, want %s", got.Digest, pushed)
	}

	// As docker's archive, there and back: FRE reads both as the same image.
	archive := filepath.Join(dir, "app.tar")
	fre("image", "save", "-o", archive, "app:1")
	skopeo("copy", "--dest-tls-verify=false", "docker-archive:"+archive, remote("lib/app:2"))
	pulled := fre("pull", "-q", addr+"/lib/app:2")
	again := filepath.Join(dir, "again.tar")
	skopeo("copy", "--src-tls-verify=false", remote("lib/app:2"), "docker-archive:"+again+":again:2")
	if loaded := fre("image", "load", "-q", "-i", again); loaded != pulled {
		t.Errorf("from the archive comes %s, from the registry %s", loaded, pulled)
	}

	// Tags, and removal of a tag.
	if diff := cmp.Diff([]string{"1", "2"}, tags("lib/app").Tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	skopeo("delete", "--tls-verify=false", remote("lib/app:2"))
	if diff := cmp.Diff([]string{"1"}, tags("lib/app").Tags); diff != "" {
		t.Errorf("tags after a removal (-want +got):\n%s", diff)
	}
	if out, err := program(t, "skopeo", "--insecure-policy", "inspect", "--tls-verify=false", remote("lib/app:2")); err == nil {
		t.Errorf("what was removed is there: %s", out)
	}

	// umoci makes a bundle from the layout, and runc runs the bundle as the image says.
	bundle := filepath.Join(dir, "bundle")
	if _, err := program(t, "umoci", "unpack", "--image", layout+":1", bundle); err != nil {
		t.Fatal(err)
	}
	spec := filepath.Join(bundle, "config.json")
	text, err := os.ReadFile(spec)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	process, ok := all["process"].(map[string]any)
	if !ok {
		t.Fatalf("%s has no process", spec)
	}
	process["terminal"] = false
	if text, err = json.Marshal(all); err == nil {
		err = os.WriteFile(spec, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	id := filepath.Base(dir)
	roots := filepath.Join(dir, "runc")
	defer func() { _ = exec.Command("runc", "--root", roots, "delete", "--force", id).Run() }() // fails if the container ended by itself
	if out, err := program(t, "runc", "--root", roots, "run", "--bundle", bundle, id); err != nil || out != "1000 1000 1000 1000 1" {
		t.Errorf("runc run: %q, %v, want the function's user, as process 1", out, err)
	}
}
