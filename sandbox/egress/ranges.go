package egress

import (
	"net/netip"
	"slices"
)

// blocked are the destinations no sandbox reaches unless the operator allows
// them: whatever is not the public internet (the IANA special-purpose registries
// of RFC 6890, without the ranges for documentation, which are nobody's), and
// what clouds answer with a machine's credentials from.
var blocked = func() []netip.Prefix {
	v4 := []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8",
		"168.63.129.16/32", // Azure's host agent; the other clouds' are link-local or private
		"169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.88.99.0/24", "192.168.0.0/16",
		"198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
	}
	v6 := []string{
		"::/96",         // unspecified, loopback, IPv4-compatible
		"::ffff:0:0/96", // IPv4-mapped
		"64:ff9b:1::/48", "100::/64", "2001::/32", "2002::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
	}
	var out []netip.Prefix
	for _, s := range v4 {
		p := netip.MustParsePrefix(s)
		// The same address by way of a NAT64 gateway (RFC 6052).
		a := netip.MustParseAddr("64:ff9b::").As16()
		copy(a[12:], p.Addr().AsSlice())
		out = append(out, p, netip.PrefixFrom(netip.AddrFrom16(a), 96+p.Bits()))
	}
	for _, s := range v6 {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}()

func contains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// reachable says whether the operator's rules let a sandbox reach a.
func (n *Network) reachable(a netip.Addr) bool {
	return contains(n.cfg.AllowPrivate, a) || !contains(blocked, a)
}

// lastAddr is the highest address of p.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
