package egress

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/sandbox/netns"
	"github.com/fre-engine/fre/sandbox/pool"
)

// within bounds the waits of a test; no measurement depends on it.
const within = 2 * time.Minute

// open returns a network in front of fretest's internet.
func open(t testing.TB, change ...func(*Config)) *Network {
	t.Helper()
	fretest.Internet(t)
	before := hostSees(t)
	cfg := Config{
		Name: "fre-test", Size: 2, Resolvers: []netip.AddrPort{fretest.Resolver},
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&cfg)
	}
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if after := hostSees(t); !slices.Equal(before, after) {
			t.Errorf("the host sees %q, before %q", after, before)
		}
	})
	return n
}

// hostSees lists links, routes and nftables tables.
func hostSees(t testing.TB) []string {
	t.Helper()
	var out []string
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		out = append(out, "link "+l.Attrs().Name)
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		out = append(out, "route "+r.String())
	}
	tables, err := (&nftables.Conn{}).ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		out = append(out, "table "+table.Name)
	}
	slices.Sort(out)
	return out
}

func acquire(t testing.TB, n *Network, allow ...Destination) *Namespace {
	t.Helper()
	s, err := n.Acquire(Policy{Allow: allow})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// reach connects from inside s and returns the server's answer: the client address that the server
// sees.
func reach(s *Namespace, network string, to netip.AddrPort) (said string, err error) {
	err = netns.Do(s.File(), func() error {
		c, err := net.DialTimeout(network, to.String(), within)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		if network == "udp" {
			if _, err := c.Write([]byte("?")); err != nil {
				return err
			}
		}
		said, err = bufio.NewReader(c).ReadString('\n')
		said = strings.TrimSpace(said)
		return err
	})
	return said, err
}

// lookUp asks the resolver from inside s: the protocol of the C library with Go's client.
func lookUp(t testing.TB, n *Network, s *Namespace, network, name string) []string {
	t.Helper()
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, proto, _ string) (c net.Conn, err error) {
		err = netns.Do(s.File(), func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, proto, netip.AddrPortFrom(n.addrs.gateway, 53).String())
			return err
		})
		return c, err
	}}
	addrs, err := r.LookupNetIP(t.Context(), network, name+".")
	if err != nil {
		var e *net.DNSError
		if !errors.As(err, &e) {
			t.Fatalf("look up %s: %v", name, err)
		}
		return []string{e.Err}
	}
	var out []string
	for _, a := range addrs {
		out = append(out, a.Unmap().String())
	}
	slices.Sort(out)
	return out
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// refused tells whether the kernel refused the connection.
func refused(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES)
}

// TestReach: Egress reaches public addresses by name and address, with TCP and UDP, IPv4 and IPv6,
// and no forbidden place.
func TestReach(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	fretest.CheckLeaks(t)
	n := open(t)
	s, neighbour := acquire(t, n), acquire(t, n)
	defer n.Release(s)
	defer n.Release(neighbour)
	// Listeners at all the forbidden places.
	for _, ns := range []*os.File{n.router.host, n.router.ns.File(), neighbour.File()} {
		if err := netns.Do(ns, func() error {
			l, err := net.Listen("tcp", ":80")
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	uplink, router, ok := n.addrs.pair(0)
	if !ok {
		t.Fatal("no uplink")
	}
	uplink6, router6 := n.addrs.pair6()
	for _, c := range []struct {
		name    string
		network string
		to      netip.AddrPort
		want    string // the address that the server sees; "" for no connection
	}{
		{"public", "tcp", at(fretest.Upstream, 80), fretest.HostAddr.String()},
		{"public by UDP", "udp", at(fretest.Upstream, 80), fretest.HostAddr.String()},
		{"public by IPv6", "tcp", at(fretest.Upstream6, 443), fretest.HostAddr6.String()},
		{"public by IPv6 and UDP", "udp", at(fretest.Upstream6, 80), fretest.HostAddr6.String()},
		{"metadata", "tcp", at(fretest.Metadata, 80), ""},
		{"metadata by UDP", "udp", at(fretest.Metadata, 80), ""},
		{"metadata by IPv6", "tcp", at(netip.MustParseAddr("fd00:ec2::254"), 80), ""},
		{"private", "tcp", at(fretest.Private, 80), ""},
		{"private by UDP", "udp", at(fretest.Private, 80), ""},
		{"private by NAT64", "tcp", at(netip.MustParseAddr("64:ff9b::10.9.8.7"), 80), ""},
		{"host", "tcp", at(fretest.HostAddr, 80), ""},
		{"host by IPv6", "tcp", at(fretest.HostAddr6, 80), ""},
		{"host's end of the link", "tcp", at(uplink, 80), ""},
		{"host's end by IPv6", "tcp", at(uplink6, 80), ""},
		{"router", "tcp", at(n.addrs.gateway, 80), ""},
		{"router's other address", "tcp", at(router, 80), ""},
		{"router by IPv6", "tcp", at(router6, 80), ""},
		{"neighbour", "tcp", at(neighbour.source, 80), ""},
		{"neighbour by IPv6", "tcp", at(n.addrs.sandbox6(neighbour.source), 80), ""},
	} {
		said, err := reach(s, c.network, c.to)
		switch {
		case c.want == "" && !refused(err):
			t.Errorf("%s: %s %s: said %q, %v; want it refused", c.name, c.network, c.to, said, err)
		case c.want != "" && (err != nil || said != c.want):
			t.Errorf("%s: %s %s: said %q, %v; want %q", c.name, c.network, c.to, said, err, c.want)
		}
	}
}

// TestNames: The resolver answers only for permitted names, and never with a blocked address.
func TestNames(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	fretest.CheckLeaks(t)
	n := open(t)
	open := acquire(t, n)
	defer n.Release(open)
	listed := acquire(t, n, Destination{Name: "public.test"}, Destination{Name: "*.wild.test", Port: 443}, Destination{Name: "evil.test"}, Destination{Name: "missing.test"})
	defer n.Release(listed)
	for _, c := range []struct {
		name          string
		s             *Namespace
		network, what string
		want          string
	}{
		{"any name", open, "ip4", "other.test", fretest.Other.String()},
		{"alias", open, "ip", "alias.test", fretest.Upstream.String() + " " + fretest.Upstream6.String()},
		{"unknown", open, "ip4", "missing.test", "no such host"},
		{"rebinding", open, "ip", "evil.test", fretest.Upstream.String()},
		{"allowed", listed, "ip", "public.test", fretest.Upstream.String() + " " + fretest.Upstream6.String()},
		{"allowed in capitals", listed, "ip4", "PUBLIC.Test", fretest.Upstream.String()},
		{"wildcard", listed, "ip4", "deep.sub.wild.test", fretest.Other.String()},
		{"apex of a wildcard", listed, "ip4", "wild.test", "server misbehaving"}, // REFUSED
		{"not allowed", listed, "ip4", "other.test", "server misbehaving"},
		{"alias not allowed", listed, "ip4", "alias.test", "server misbehaving"},
		{"allowed and unknown", listed, "ip4", "missing.test", "no such host"},
		{"allowed rebinding", listed, "ip", "evil.test", fretest.Upstream.String()},
	} {
		if got := strings.Join(lookUp(t, n, c.s, c.network, c.what), " "); got != c.want {
			t.Errorf("%s: %s: %s, want %s", c.name, c.what, got, c.want)
		}
	}
	// An answer too long for UDP.
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, proto, _ string) (c net.Conn, err error) {
		err = netns.Do(open.File(), func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, proto, netip.AddrPortFrom(n.addrs.gateway, 53).String())
			return err
		})
		return c, err
	}}
	if text, err := r.LookupTXT(t.Context(), "long.test."); err != nil || len(text) != 40 {
		t.Errorf("long answer: %d records, %v; want 40", len(text), err)
	}
}

// TestAllowList: An allow-list permits exactly its names, wildcards, ranges and ports.
func TestAllowList(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	fretest.CheckLeaks(t)
	n := open(t, func(c *Config) { c.AllowPrivate = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")} })
	name := func(s string, port uint16) Destination { return Destination{Name: s, Port: port} }
	cidr := func(s string, port uint16) Destination {
		return Destination{Prefix: netip.MustParsePrefix(s), Port: port}
	}
	for _, c := range []struct {
		name   string
		allow  []Destination
		lookUp string
		to     netip.AddrPort
		want   bool
	}{
		{"name not looked up", []Destination{name("public.test", 0)}, "", at(fretest.Upstream, 80), false},
		{"name", []Destination{name("public.test", 0)}, "public.test", at(fretest.Upstream, 80), true},
		{"name by IPv6", []Destination{name("public.test", 0)}, "public.test", at(fretest.Upstream6, 80), true},
		{"another's address", []Destination{name("public.test", 0)}, "public.test", at(fretest.Other, 80), false},
		{"wildcard", []Destination{name("*.wild.test", 0)}, "deep.sub.wild.test", at(fretest.Other, 80), true},
		{"name's port", []Destination{name("public.test", 443)}, "public.test", at(fretest.Upstream, 443), true},
		{"name's other port", []Destination{name("public.test", 443)}, "public.test", at(fretest.Upstream, 80), false},
		{"range", []Destination{cidr("198.51.100.0/28", 0)}, "", at(fretest.Upstream, 80), true},
		{"out of range", []Destination{cidr("198.51.100.0/29", 0)}, "", at(fretest.Upstream, 80), false},
		{"range by IPv6", []Destination{cidr("2001:db8:1::/48", 443)}, "", at(fretest.Upstream6, 443), true},
		{"range's other port", []Destination{cidr("2001:db8:1::/48", 443)}, "", at(fretest.Upstream6, 80), false},
		{"ranges that overlap", []Destination{cidr("198.51.100.10/32", 80), cidr("198.51.100.0/24", 80), cidr("198.51.100.10/32", 0), cidr("198.51.100.10/32", 0)}, "", at(fretest.Upstream, 443), true},
		{"private range the operator allows", []Destination{cidr("10.9.8.0/24", 0)}, "", at(fretest.Private, 80), true},
		{"everything but the blocked", []Destination{cidr("0.0.0.0/0", 0)}, "", at(fretest.Metadata, 80), false},
	} {
		s := acquire(t, n, c.allow...)
		if c.lookUp != "" {
			lookUp(t, n, s, "ip", c.lookUp)
		}
		_, err := reach(s, "tcp", c.to)
		if c.want && err != nil || !c.want && !refused(err) {
			t.Errorf("%s: allow %v, reach %s: %v; want reached %v", c.name, c.allow, c.to, err, c.want)
		}
		n.Release(s)
	}
}

// TestRecycle: The destinations that one sandbox may reach are closed to the next user of its
// namespace.
func TestRecycle(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	fretest.CheckLeaks(t)
	n := open(t)
	allow := Destination{Prefix: netip.PrefixFrom(fretest.Upstream, 32)}

	unused := acquire(t, n, allow)
	// Processes of the kernel leave a new namespace a moment later.
	for deadline := time.Now().Add(within); n.clean(unused) != pool.Ready; {
		if time.Now().After(deadline) {
			t.Fatal("a namespace in which nothing was sent is not ready")
		}
		<-time.After(time.Millisecond)
	}
	if _, err := reach(unused, "tcp", at(fretest.Other, 80)); err != nil {
		t.Errorf("recycled without a list: %v", err)
	}
	if v := n.clean(unused); v != pool.Spoilt {
		t.Errorf("a namespace that has connected: %v, want spoilt", v)
	}
	n.Release(unused)

	s := acquire(t, n, allow, Destination{Name: "public.test"})
	lookUp(t, n, s, "ip", "public.test")
	if v := n.clean(s); v != pool.Spoilt {
		t.Errorf("a namespace that has learned names: %v, want spoilt", v)
	}
	s.mu.Lock()
	if len(s.learned) != 2 {
		t.Errorf("learned %v, want two addresses", s.learned)
	}
	s.mu.Unlock()
	index := s.index
	if err := n.drop(s); err != nil {
		t.Fatal(err)
	}
	rules := n.router.rules
	for _, set := range []*nftables.Set{rules.open, rules.own, rules.listed[0], rules.listed[1], rules.learned[0], rules.learned[1]} {
		if err := rules.do(func(c *nftables.Conn) error {
			elements, err := c.GetSetElements(set)
			for _, e := range elements {
				if string(e.Key[:4]) == string(native(index)) {
					t.Errorf("set %s still holds %x of the namespace that was dropped", set.Name, e.Key)
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestInherited: The next owner of an address receives no packet of the previous owner's flows and
// sends none into them.
func TestInherited(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	fretest.CheckLeaks(t)
	n := open(t)
	from := func(s *Namespace) error {
		return netns.Do(s.File(), func() error {
			c, err := net.DialUDP("udp", &net.UDPAddr{Port: 4000}, net.UDPAddrFromAddrPort(at(fretest.Upstream, 80)))
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(within))
			for range 2 { // the second packet belongs to an established flow, or is refused
				if _, err := c.Write([]byte("?")); err != nil {
					return err
				}
				if _, err := c.Read(make([]byte, 64)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	first := acquire(t, n)
	if err := from(first); err != nil {
		t.Fatal(err)
	}
	source := first.source
	if err := n.drop(first); err != nil {
		t.Fatal(err)
	}
	var second *Namespace
	n.pool.Close() // so that the test makes the next namespace
	n.mu.Lock()
	for n.addrs.turn = 0; addr4(n.addrs.first+n.addrs.turn) != source; n.addrs.turn++ {
	}
	n.mu.Unlock()
	second, err := n.make()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.drop(second) }()
	if second.source != source {
		t.Fatalf("got address %s, want %s again", second.source, source)
	}
	p := Policy{Allow: []Destination{{Name: "nothing.test"}}}
	if err := n.router.rules.restrict(second.index, p); err != nil {
		t.Fatal(err)
	}
	second.policy.Store(&p)
	if err := from(second); !refused(err) {
		t.Errorf("a flow of the last owner of %s goes on: %v", source, err)
	}
}

// TestBurst: A drained pool makes namespaces on demand, 64 at once.
func TestBurst(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	fretest.CheckLeaks(t)
	n := open(t)
	const count = 64
	type result struct {
		s   *Namespace
		err error
	}
	results := make(chan result)
	for range count {
		go func() {
			s, err := n.Acquire(Policy{})
			if err == nil {
				_, err = reach(s, "tcp", at(fretest.Upstream, 80))
			}
			results <- result{s, err}
		}()
	}
	seen := map[netip.Addr]bool{}
	for range count {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
			continue
		}
		if seen[r.s.source] {
			t.Errorf("address %s given twice", r.s.source)
		}
		seen[r.s.source] = true
		defer n.Release(r.s)
	}
}

// TestFlows: A sandbox cannot fill the host's connection table.
func TestFlows(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	fretest.CheckLeaks(t)
	n := open(t)
	s := acquire(t, n)
	defer n.Release(s)
	// No flow may end before the last begins, even on a slow machine.
	for _, ns := range []*os.File{n.router.host, n.router.ns.File()} {
		if err := netns.Do(ns, func() error {
			return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", []byte("3600"), 0)
		}); err != nil {
			t.Fatal(err)
		}
	}
	err := netns.Do(s.File(), func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for i := range flowsPerSandbox + 2048 {
			to := &unix.SockaddrInet4{Port: 1024 + i, Addr: fretest.Upstream.As4()}
			if err := unix.Sendto(fd, []byte("?"), 0, to); err != nil && !refused(err) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		t.Fatal(err)
	}
	count, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if most := flowsPerSandbox + 64; err != nil || count < flowsPerSandbox/2 || count > most {
		t.Errorf("the host tracks %d flows, %v; want at most %d, though many", count, err, most)
	}
	other := acquire(t, n)
	defer n.Release(other)
	if _, err := reach(other, "udp", at(fretest.Upstream, 80)); err != nil {
		t.Errorf("beside a sandbox with too many flows: %v", err)
	}
}

// TestRedirected: Redirections of the host for other clients are closed to sandboxes.
func TestRedirected(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	fretest.CheckLeaks(t)
	n := open(t)
	s := acquire(t, n)
	defer n.Release(s)
	table := &nftables.Table{Name: "others", Family: nftables.TableFamilyIPv4}
	c := &nftables.Conn{}
	c.AddTable(table)
	chain := c.AddChain(&nftables.Chain{
		Name: "prerouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	adder(c)(chain, families[0].destination(reg0), equal(netip.MustParseAddr("192.0.2.80").AsSlice()),
		constant(reg1, fretest.Private.AsSlice()), []expr.Any{&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg1}})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.DelTable(table)
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
	}()
	if said, err := reach(s, "tcp", netip.MustParseAddrPort("192.0.2.80:80")); !refused(err) {
		t.Errorf("redirected by the host: said %q, %v; want it refused", said, err)
	}
}

// TestLeftovers: A network replaces the leftovers of a crashed network of the same name.
func TestLeftovers(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	fretest.CheckLeaks(t)
	n := open(t)
	again, err := Open(n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := acquire(t, again)
	if _, err := reach(s, "tcp", at(fretest.Upstream, 80)); err != nil {
		t.Error(err)
	}
	again.Release(s)
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestNoForwarding: On a host without forwarding Open fails, and the error names the setting.
func TestNoForwarding(t *testing.T) {
	if !fretest.OwnNetwork(t) {
		return
	}
	fretest.Internet(t)
	for _, name := range []string{"ipv4/conf/eth0/forwarding", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Open(Config{Name: "fre-test"})
	if !errors.Is(err, ErrForwarding) || !strings.Contains(err.Error(), "net.ipv4.conf.eth0.forwarding=1") {
		t.Errorf("Open without forwarding: %v, want %v with the setting", err, ErrForwarding)
	}
}

// TestTryKernel: TryKernel succeeds on a host with the needed kernel features, and leaves nothing.
func TestTryKernel(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	if err := TryKernel(); err != nil {
		t.Error(err)
	}
}
