package egress

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/netns"
)

// router is the namespace between the sandboxes and the host.
type router struct {
	name    string // name of the host's link and table
	host    *os.File
	ns      *netns.Namespace
	links   *netlink.Handle
	rules   *rules
	gateway netip.Addr
	mtu     int
	v6      bool
	serial  atomic.Uint64 // number of links so far, for their names
	seen    bool          // the host sees the link, so close must remove it
}

// gateway6 is the router's link-local address on every link.
var gateway6 = netip.MustParseAddr("fe80::1")

// newRouter makes the router and its link through the host.
func newRouter(cfg Config, host Host, addrs *addresses) (made *router, err error) {
	r := &router{name: cfg.Name, gateway: addrs.gateway, mtu: host.MTU, v6: host.V6}
	defer func() {
		if err != nil {
			made, err = nil, errors.Join(fmt.Errorf("make egress router: %w", err), r.close())
		}
	}()
	// Not /proc/self: that is the main thread, which may have ended in a namespace of
	// netns.New.
	if r.host, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return nil, err
	}
	r.ns, err = netns.New(func() error {
		settings := []string{
			"ipv4/ip_forward=1",
			"ipv4/icmp_ratelimit=0", // refuse at once, even if the router has just refused another packet
			"ipv4/conf/all/send_redirects=0",
			"ipv4/conf/default/send_redirects=0",
		}
		if r.v6 {
			settings = append(settings, "ipv6/conf/all/forwarding=1", "ipv6/conf/default/accept_dad=0", "ipv6/icmp/ratelimit=0")
		} else {
			settings = append(settings, "ipv6/conf/default/disable_ipv6=1")
		}
		return set(settings...)
	})
	if err != nil {
		return nil, err
	}
	if r.links, err = handleIn(r.ns.File()); err != nil {
		return nil, err
	}
	lo, err := r.links.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	if err := r.links.AddrAdd(lo, address(r.gateway, netip.Addr{})); err != nil {
		return nil, fmt.Errorf("add gateway address: %w", err)
	}
	up, err := r.connectHost(addrs)
	if err != nil {
		return nil, err
	}
	r.rules, err = newRules(int(r.ns.File().Fd()), up, r.gateway, cfg.AllowPrivate)
	return r, err
}

// connectHost makes the link between router and host, and returns the index of the router's
// end.
func (r *router) connectHost(addrs *addresses) (uint32, error) {
	host, err := handleIn(r.host)
	if err != nil {
		return 0, err
	}
	defer host.Close()
	theirs, err := r.addUplink(host)
	if err != nil {
		return 0, err
	}
	ours := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: theirs.Attrs().ParentIndex}}
	mine, its, err := choosePair(host, addrs)
	if err != nil {
		return 0, err
	}
	settings := []string{"ipv4/conf/" + r.name + "/forwarding=1"}
	if r.v6 {
		settings = append(settings, "ipv6/conf/"+r.name+"/disable_ipv6=0", "ipv6/conf/"+r.name+"/accept_dad=0", "ipv6/conf/"+r.name+"/accept_ra=0")
	}
	if err := netns.Do(r.host, func() error { return set(settings...) }); err != nil {
		return 0, err
	}
	inside, outside := side{r.links, ours}, side{host, theirs}
	routers := []netip.Addr{its}
	err = errors.Join(outside.join(mine, its), inside.join(its, mine), r.defaultRoute(ours, mine))
	if r.v6 && err == nil {
		mine6, its6 := addrs.pair6()
		routers = append(routers, its6)
		err = errors.Join(outside.join(mine6, its6), inside.join(its6, mine6), r.defaultRoute(ours, mine6))
	}
	if err != nil {
		return 0, err
	}
	return uint32(ours.Index), hostRules(int(r.host.Fd()), r.name, uint32(theirs.Attrs().Index), routers)
}

// side is an end of the link between router and host.
type side struct {
	handle *netlink.Handle
	link   netlink.Link
}

func (s side) join(local, peer netip.Addr) error {
	if err := s.handle.LinkSetUp(s.link); err != nil {
		return fmt.Errorf("raise link to host: %w", err)
	}
	if err := s.handle.AddrAdd(s.link, address(local, peer)); err != nil {
		return fmt.Errorf("add address %s: %w", local, err)
	}
	return nil
}

// addUplink adds the link and returns the host's end.
func (r *router) addUplink(host *netlink.Handle) (netlink.Link, error) {
	if err := removeLink(host, r.name); err != nil { // left by an engine that has just crashed
		return nil, err
	}
	r.seen = true
	if err := host.LinkAdd(r.veth(r.name, "up", r.ns.File())); err != nil {
		return nil, fmt.Errorf("add link %s: %w", r.name, err)
	}
	return host.LinkByName(r.name)
}

func (r *router) defaultRoute(link netlink.Link, gateway netip.Addr) error {
	// FLAG_ONLINK: the kernel may not have noticed yet that the link is up.
	err := r.links.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)})
	if err != nil {
		return fmt.Errorf("add route to host: %w", err)
	}
	return nil
}

// choosePair finds two addresses that the host does not use.
func choosePair(host *netlink.Handle, addrs *addresses) (mine, its netip.Addr, err error) {
	taken, err := host.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return mine, its, fmt.Errorf("list addresses: %w", err)
	}
	used := map[netip.Addr]bool{}
	for _, a := range taken {
		for _, ip := range []*net.IPNet{a.IPNet, a.Peer} {
			if ip == nil {
				continue
			}
			if addr, ok := netip.AddrFromSlice(ip.IP.To4()); ok {
				used[addr] = true
			}
		}
	}
	for attempt := uint32(0); ; attempt++ {
		mine, its, ok := addrs.pair(attempt)
		if !ok {
			return mine, its, errors.New("no free addresses for a link between router and host: set a larger range in network.egress.subnet")
		}
		if !used[mine] && !used[its] {
			return mine, its, nil
		}
	}
}

// connect makes a namespace with a link to the router. index is that of the router's end.
func (r *router) connect(source, source6 netip.Addr) (_ *netns.Namespace, _ *counters, index uint32, err error) {
	var counts *counters
	ns, err := netns.New(func() error {
		settings := []string{"ipv6/conf/default/disable_ipv6=1"}
		if r.v6 {
			settings = []string{"ipv6/conf/default/accept_dad=0", "ipv6/conf/default/accept_ra=0"}
		}
		if err := set(settings...); err != nil {
			return err
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE) // in this thread's namespace
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		defer h.Close()
		name := "s" + strconv.FormatUint(r.serial.Add(1), 36)
		if err := h.LinkAdd(r.veth("eth0", name, r.ns.File())); err != nil {
			return fmt.Errorf("add link: %w", err)
		}
		eth0, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		i := eth0.Attrs().Index
		index = uint32(eth0.Attrs().ParentIndex)
		steps := []func() error{
			func() error { return h.LinkSetUp(eth0) },
			func() error { return h.AddrAdd(eth0, address(source, netip.Addr{})) },
			func() error {
				return h.RouteAdd(&netlink.Route{LinkIndex: i, Gw: r.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)})
			},
		}
		if r.v6 {
			steps = append(steps,
				func() error { return h.AddrAdd(eth0, address(source6, netip.Addr{})) },
				func() error {
					return h.RouteAdd(&netlink.Route{LinkIndex: i, Gw: gateway6.AsSlice(), Flags: int(netlink.FLAG_ONLINK)})
				})
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return fmt.Errorf("configure link of %s: %w", source, err)
			}
		}
		counts, err = openCounters()
		return err
	})
	if err != nil {
		return nil, nil, 0, err
	}
	if err := r.answer(int(index), source, source6); err != nil {
		_ = ns.Close()
		counts.close()
		return nil, nil, 0, err
	}
	return ns, counts, index, nil
}

// answer configures the router's end of a sandbox's link.
func (r *router) answer(index int, source, source6 netip.Addr) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: index}}
	if err := r.links.LinkSetUp(link); err != nil {
		return fmt.Errorf("raise link of %s: %w", source, err)
	}
	// Replace, since the link of the last owner of the address may still exist.
	route := &netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: ipNet(source), Src: r.gateway.AsSlice()}
	if err := r.links.RouteReplace(route); err != nil {
		return fmt.Errorf("add route to %s: %w", source, err)
	}
	if !r.v6 {
		return nil
	}
	if err := r.links.AddrAdd(link, address(gateway6, netip.Addr{})); err != nil {
		return fmt.Errorf("add address %s: %w", gateway6, err)
	}
	if err := r.links.RouteReplace(&netlink.Route{LinkIndex: index, Dst: ipNet(source6)}); err != nil {
		return fmt.Errorf("add route to %s: %w", source6, err)
	}
	return nil
}

// close removes the host's link and table, and closes the files.
func (r *router) close() error {
	var err error
	if r.seen {
		host, openErr := handleIn(r.host)
		if openErr == nil {
			err = removeLink(host, r.name)
			host.Close()
		}
		err = errors.Join(err, openErr, removeHostRules(int(r.host.Fd()), r.name))
	}
	if r.host != nil {
		_ = r.host.Close()
	}
	if r.rules != nil {
		r.rules.close()
	}
	if r.links != nil {
		r.links.Close()
	}
	if r.ns != nil {
		_ = r.ns.Close()
	}
	return err
}

// veth describes a link with its other end in the namespace peer.
func (r *router) veth(name, peerName string, peer *os.File) *netlink.Veth {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, r.mtu
	return &netlink.Veth{LinkAttrs: attrs, PeerName: peerName, PeerMTU: uint32(r.mtu), PeerNamespace: netlink.NsFd(int(peer.Fd()))}
}

func removeLink(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err == nil {
		err = h.LinkDel(link)
	}
	var none netlink.LinkNotFoundError
	if err == nil || errors.As(err, &none) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return nil // EINVAL, ENODEV: the kernel has already removed the link
	}
	return fmt.Errorf("remove link %s: %w", name, err)
}

// handleIn opens a routing socket in the namespace ns. The caller closes the handle.
func handleIn(ns *os.File) (h *netlink.Handle, err error) {
	err = netns.Do(ns, func() error {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

// set writes settings below /proc/sys/net of the thread's namespace. A kernel without IPv6
// lacks the settings of IPv6; set skips them.
func set(settings ...string) error {
	for _, s := range settings {
		name, value, _ := bytes.Cut([]byte(s), []byte("="))
		err := os.WriteFile(filepath.Join("/proc/sys/net", string(name)), value, 0)
		if err != nil && (!errors.Is(err, fs.ErrNotExist) || !bytes.HasPrefix(name, []byte("ipv6/"))) {
			return fmt.Errorf("set %s: %w", s, err)
		}
	}
	return nil
}

// address returns local as an address of its own, or as the local end with peer.
func address(local, peer netip.Addr) *netlink.Addr {
	a := &netlink.Addr{IPNet: ipNet(local)}
	if peer.IsValid() {
		a.Peer = ipNet(peer)
	}
	if local.Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

func ipNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
