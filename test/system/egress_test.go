package system_test

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/fre-engine/fre/internal/fretest"
)

// reaching lists the functions of testEgress.
var reaching = []function{
	{"reach", "reach", "base: python\nnetwork: egress\n"},
	{"reach-fresh", "reach", "base: python\ninstances: {isolation: event}\nnetwork: egress\n"},
	{"reach-listed", "reach", "base: python\nnetwork: {mode: egress, allow: [public.test, '*.wild.test:443']}\n"},
	{"reach-private", "reach", "base: python\nnetwork: {mode: egress, allow: [10.9.8.0/24]}\n"},
	{"reach-host", "reach", "base: python\nnetwork: host\n"},
	{"reach-none", "reach", "base: python\n"},
}

// testEgress calls functions that open connections to fretest's simulated internet. The builds run
// before, with a real network for the packages.
func (w *world) testEgress(t *testing.T) {
	dirs := map[string]string{}
	for _, f := range reaching {
		dirs[f.name] = f.write(t, filepath.Join(w.dir, "reaching"))
	}
	if !w.prepared {
		w.restart(t)
		for _, dir := range dirs {
			w.cli(t, "build", dir)
		}
		w.stop(t)
		t.Setenv("FRE_SYSTEM_STATE", w.state)
	}
	if !fretest.OwnNetwork(t) {
		return
	}
	fretest.Internet(t)
	before := hostNetwork(t)
	config := filepath.Join(w.dir, "egress.yaml")
	w.args = []string{"--config", config}
	defer func() { w.args = nil }()
	const resolvers = "network:\n  egress: {resolvers: [\"198.51.100.53:53\"]}\n"
	writeFile(t, config, resolvers)
	w.restart(t)
	defer w.stop(t)

	refusedDeploy := func(name string, want ...string) {
		t.Helper()
		status, body := w.control(t, http.MethodPost, "/v1/functions", map[string]any{"image": ref(t, dirs[name]), "name": name})
		if status != http.StatusUnprocessableEntity {
			t.Errorf("deploy %s: status %d, want %d: %s", name, status, http.StatusUnprocessableEntity, body)
		}
		for _, s := range want {
			if !strings.Contains(string(body), s) {
				t.Errorf("deploy %s: %s; want %q in it", name, body, s)
			}
		}
	}
	reach := func(function, to, want string) {
		t.Helper()
		a, err := w.call(t.Context(), function, "/", to)
		if err != nil {
			t.Errorf("%s to %s: %v", function, to, err)
		} else if !strings.Contains(string(a.Body), want) {
			t.Errorf("%s to %s: %d %s; want %q", function, to, a.Status, a.Body, want)
		}
	}
	host, host6 := fretest.HostAddr.String(), fretest.HostAddr6.String()

	refusedDeploy("reach-host", "network.allow_host")
	refusedDeploy("reach-private", "network.allow[0]", "10.9.8.0/24", "network.allow_private")
	if now := hostNetwork(t); slices.Equal(now, before) {
		t.Error("the host shows nothing of egress: this test sees nothing")
	}
	for _, name := range []string{"reach", "reach-fresh", "reach-listed", "reach-none"} {
		w.deploy(t, dirs[name])
	}
	for range 3 {
		for _, name := range []string{"reach", "reach-fresh"} {
			reach(name, "public.test 80", host6)
			reach(name, "198.51.100.11 443", host)
			reach(name, "169.254.169.254 80", "ConnectionRefusedError")
			reach(name, "evil.test 80", host) // through the only allowed address of the name
			reach(name, "missing.test 80", "gaierror")
		}
		reach("reach-listed", "public.test 80", host6)
		reach("reach-listed", "deep.sub.wild.test 443", host)
		reach("reach-listed", "deep.sub.wild.test 80", "ConnectionRefusedError")
		reach("reach-listed", "other.test 80", "gaierror")
		reach("reach-listed", "198.51.100.11 80", "ConnectionRefusedError")
		reach("reach-none", "198.51.100.11 80", "unreachable")
	}

	// The next start replaces the leftovers of a crash.
	w.d.Kill()
	w.client.CloseIdleConnections()
	writeFile(t, config, resolvers+"  allow_host: true\n  allow_private: [10.9.0.0/16]\n")
	w.restart(t)
	reach("reach", "public.test 80", host6)
	for _, name := range []string{"reach-host", "reach-private"} {
		w.deploy(t, dirs[name])
	}
	reach("reach-private", "10.9.8.7 80", host)
	reach("reach-private", "198.51.100.11 80", "ConnectionRefusedError")
	reach("reach-host", "10.9.8.7 80", host)

	// A setting that the operator takes back also stops functions deployed before.
	w.stop(t)
	writeFile(t, config, resolvers)
	w.restart(t)
	for _, name := range []string{"reach-host", "reach-private"} {
		if a, err := w.call(t.Context(), name, "/", "10.9.8.7 80"); err != nil || a.Status < 500 {
			t.Errorf("%s after the operator took it back: %+v, %v; want it refused", name, a, err)
		}
	}
	w.stop(t)
	if after := hostNetwork(t); !slices.Equal(after, before) {
		t.Errorf("the host shows %q, before the engine %q", after, before)
	}
}

// hostNetwork lists the links and nftables tables of this network namespace.
func hostNetwork(t *testing.T) []string {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := (&nftables.Conn{}).ListTables()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, l := range links {
		out = append(out, "link "+l.Attrs().Name)
	}
	for _, table := range tables {
		out = append(out, "table "+table.Name)
	}
	return out
}
