package egress

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox/netns"
)

// Host describes the host as a forwarder of the sandboxes' packets.
type Host struct {
	V4, V6    bool   // whether the host forwards packets
	Interface string // interface of the default route; "" without a default route
	MTU       int    // MTU of the interface, in bytes

	// Dropping lists foreign nftables chains that drop forwarded packets by default. No rule of
	// FRE can overrule such a chain.
	Dropping []string
}

// ErrForwarding reports that the host does not forward packets.
var ErrForwarding = errors.New("the host does not forward packets")

// Err returns nil if the host forwards packets, else [ErrForwarding] with the remedy.
func (h Host) Err() error {
	if h.V4 || h.V6 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrForwarding, h.Remedy())
}

// Remedy returns the command that makes the host forward packets.
func (h Host) Remedy() string {
	name := h.Interface
	if name == "" {
		name = "all"
	}
	return fmt.Sprintf("run sysctl -w net.ipv4.conf.%s.forwarding=1, and keep it in /etc/sysctl.d", name)
}

// ProbeHost inspects the calling program's network namespace and changes nothing.
func ProbeHost() Host {
	h := Host{MTU: 1500}
	for _, f := range []struct {
		family int
		tree   string
		ok     *bool
	}{{netlink.FAMILY_V4, "ipv4", &h.V4}, {netlink.FAMILY_V6, "ipv6", &h.V6}} {
		link := defaultLink(f.family)
		switch {
		case link != nil:
			if h.Interface == "" {
				h.Interface = link.Attrs().Name
			}
			h.MTU = min(h.MTU, link.Attrs().MTU)
		case f.family == netlink.FAMILY_V6:
			continue // the host has no IPv6 route to share
		}
		name := "all"
		if link != nil && f.family == netlink.FAMILY_V4 { // IPv6 forwards for all links or for none
			name = link.Attrs().Name
		}
		b, err := os.ReadFile("/proc/sys/net/" + f.tree + "/conf/" + name + "/forwarding")
		*f.ok = err == nil && string(bytes.TrimSpace(b)) != "0"
	}
	h.Dropping = dropping()
	return h
}

func dropping() []string {
	chains, err := (&nftables.Conn{}).ListChains()
	if err != nil {
		return nil // TryKernel reports the reason
	}
	var out []string
	for _, c := range chains {
		if c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward || c.Policy == nil || *c.Policy != nftables.ChainPolicyDrop {
			continue
		}
		family := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet"}[c.Table.Family]
		out = append(out, fmt.Sprintf("nftables chain %s %s %s", family, c.Table.Name, c.Name))
	}
	return out
}

// defaultLink returns the link of the host's default route; nil without a default route.
func defaultLink(family int) netlink.Link {
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
	if err != nil || len(routes) == 0 {
		return nil
	}
	index := routes[0].LinkIndex
	if index == 0 && len(routes[0].MultiPath) > 0 {
		index = routes[0].MultiPath[0].LinkIndex
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil
	}
	return link
}

// TryKernel makes a link and the router's rules in a temporary namespace. The error is nil if
// the kernel has all the features that egress needs.
func TryKernel() error {
	ns, err := netns.New(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		defer h.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "up"
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}); err != nil {
			return fmt.Errorf("add veth link: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer ns.Close()
	r, err := newRules(int(ns.File().Fd()), 1, netip.MustParseAddr("192.0.2.1"), nil)
	r.close()
	return err
}
