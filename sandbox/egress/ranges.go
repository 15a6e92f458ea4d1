package egress

import (
	"net/netip"

	"github.com/fre-engine/fre/internal/outward"
)

// blocked are the destinations that no sandbox reaches unless the operator allows them.
var blocked = outward.Special

// reachable reports whether the operator's rules let a sandbox reach a.
func (n *Network) reachable(a netip.Addr) bool {
	return outward.Within(n.cfg.AllowPrivate, a) || !outward.Within(blocked, a)
}

// lastAddr returns the highest address of p.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
