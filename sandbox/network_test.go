package sandbox

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox/egress"
)

// openEgress returns a host in front of fretest's internet, and a root for the sandboxes.
func openEgress(t *testing.T) (*Host, string) {
	t.Helper()
	fretest.Internet(t)
	h := openHost(t, func(c *Config) {
		c.Egress = egress.Config{
			Size: 2, Resolvers: []netip.AddrPort{fretest.Resolver},
			AllowPrivate: []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")},
		}
	})
	root := fretest.Rootfs(t)
	if err := os.WriteFile(filepath.Join(root, "etc/resolv.conf"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return h, root
}

// TestEgress: Sandboxes reach exactly the destinations of their policy.
func TestEgress(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	h, root := openEgress(t)
	const refused = "connection refused"
	public := egress.Policy{Allow: []egress.Destination{{Name: "public.test", Port: 80}}}
	ranged := egress.Policy{Allow: []egress.Destination{{Prefix: netip.PrefixFrom(fretest.Other, 32)}}}
	for _, c := range []struct {
		name    string
		policy  egress.Policy
		network string
		to      string
		want    string // in the output or among the errors
	}{
		{"by name", egress.Policy{}, "tcp4", "public.test:80", fretest.HostAddr.String()},
		{"by alias and IPv6", egress.Policy{}, "tcp6", "alias.test:443", fretest.HostAddr6.String()},
		{"by address", egress.Policy{}, "tcp", "198.51.100.11:443", fretest.HostAddr.String()},
		{"UDP", egress.Policy{}, "udp", "198.51.100.11:80", fretest.HostAddr.String()},
		{"metadata", egress.Policy{}, "tcp", "169.254.169.254:80", refused},
		{"private", egress.Policy{}, "tcp", "10.9.8.7:80", refused},
		{"rebinding", egress.Policy{}, "tcp6", "evil.test:80", "no such host"},
		{"allowed name", public, "tcp4", "public.test:80", fretest.HostAddr.String()},
		{"allowed name's other port", public, "tcp4", "public.test:443", refused},
		{"other name", public, "tcp4", "other.test:80", "lookup other.test"},
		{"other address", public, "tcp", "198.51.100.11:80", refused},
		{"allowed range", ranged, "tcp", "198.51.100.11:80", fretest.HostAddr.String()},
		{"out of range", ranged, "udp", "198.51.100.10:80", "no route to host"},
	} {
		spec := prog(root, "reach", c.network, c.to)
		spec.Network, spec.Egress = NetworkEgress, c.policy
		out, _ := run(t, h, spec)
		if !strings.Contains(out, c.want) {
			t.Errorf("%s: %s %s, allow %v: %q, want %q in it", c.name, c.network, c.to, c.policy.Allow, out, c.want)
		}
	}
}

// TestEgressRewire: A program in the sandbox cannot change its network.
func TestEgressRewire(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	h, root := openEgress(t)
	spec := prog(root, "rewire")
	spec.Network = NetworkEgress
	spec.User.UID, spec.User.GID = 0, 0
	out, _ := run(t, h, spec)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, line := range lines {
		// The system call filter refuses this family.
		if !strings.HasSuffix(line, ": "+unix.EPERM.Error()) && line != "packet socket: "+unix.EAFNOSUPPORT.Error() {
			t.Errorf("%s, want %v", line, unix.EPERM)
		}
	}
	if len(lines) != 10 {
		t.Errorf("%d attempts were made, want 10:\n%s", len(lines), out)
	}
}

// TestEgressParked: A parked sandbox has the egress of its own policy, and serves only starts with
// this policy.
func TestEgressParked(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	h, root := openEgress(t)
	reach := func(policy egress.Policy, to netip.Addr) Spec {
		spec := prog(root, "reach", "tcp", to.String()+":80")
		spec.Network, spec.Egress, spec.Repeats = NetworkEgress, policy, true
		return spec
	}
	only := func(a netip.Addr) egress.Policy {
		return egress.Policy{Allow: []egress.Destination{{Prefix: netip.PrefixFrom(a, 32)}}}
	}
	warmUp(t, h, reach(only(fretest.Upstream), fretest.Upstream))
	for _, c := range []struct {
		policy egress.Policy
		to     netip.Addr
		want   bool
	}{
		{only(fretest.Upstream), fretest.Upstream, true},
		{only(fretest.Upstream), fretest.Other, false},
		{only(fretest.Other), fretest.Other, true},
		{only(fretest.Other), fretest.Upstream, false},
		{egress.Policy{}, fretest.Other, true},
	} {
		out, _ := run(t, h, reach(c.policy, c.to))
		if got := strings.Contains(out, fretest.HostAddr.String()); got != c.want {
			t.Errorf("allow %q, to %s: %q, want reached %v", c.policy, c.to, out, c.want)
		}
	}
}

// TestCheckNetwork: CheckNetwork refuses private ranges that the operator does not allow, with the
// next step.
func TestCheckNetwork(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	h, _ := openEgress(t)
	for _, c := range []struct {
		prefix string
		ok     bool
	}{
		{"198.51.100.0/24", true},
		{"0.0.0.0/0", true},
		{"2001:db8::/32", true},
		{"10.20.1.0/24", true},
		{"10.0.0.0/8", false},
		{"10.21.0.0/16", false},
		{"169.254.169.254/32", false},
		{"fd00::/8", false},
	} {
		err := h.CheckNetwork(NetworkEgress, egress.Policy{Allow: []egress.Destination{{Prefix: netip.MustParsePrefix(c.prefix)}}})
		var blocked *egress.BlockedError
		if c.ok && err != nil || !c.ok && (!errors.As(err, &blocked) || !strings.Contains(err.Error(), "network.allow_private")) {
			t.Errorf("%s: %v, want allowed %v", c.prefix, err, c.ok)
		}
	}
}

// TestNoEgress: On a host without forwarding, CheckNetwork and Start return an error, and no
// sandbox starts without its egress.
func TestNoEgress(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	h := openHost(t)
	unable := func(err error) bool {
		var e *NoEgressError
		return errors.As(err, &e) && errors.Is(e.Reason, egress.ErrForwarding)
	}
	if err := h.CheckNetwork(NetworkEgress, egress.Policy{}); !unable(err) {
		t.Errorf("check: %v, want %v", err, egress.ErrForwarding)
	}
	spec := prog(fretest.Rootfs(t), "exit", "0")
	spec.Network = NetworkEgress
	if _, err := h.Start(t.Context(), spec); !unable(err) {
		t.Errorf("start: %v, want %v", err, egress.ErrForwarding)
	}
}
