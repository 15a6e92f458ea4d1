package httpserver

import (
	"net"
	"net/netip"
	"time"
)

// sample limits the connections examined to find an idle one. It bounds the cost of a flood of
// connections.
const sample = 512

// bound holds a server's open connections, at most MaxConnections, and MaxPerClient of a client.
type bound struct {
	max, perClient int
	shared         func(netip.Addr) bool

	slots   map[*slot]struct{}
	clients map[netip.Addr]map[*slot]struct{} // slots by client, without the zero address

	evicted, refused, refusedClient uint64
}

// newBound returns an empty bound with the limits of cfg.
func newBound(cfg *Config) bound {
	return bound{max: cfg.MaxConnections, perClient: cfg.MaxPerClient, shared: cfg.Shared, slots: map[*slot]struct{}{}, clients: map[netip.Addr]map[*slot]struct{}{}}
}

// clientOf returns the address that the connection counts for; the zero Addr if it counts for no
// client.
func (b *bound) clientOf(nc net.Conn) netip.Addr {
	tcp, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	a := tcp.AddrPort().Addr().Unmap()
	if b.shared != nil && b.shared(a) {
		return netip.Addr{}
	}
	if a.Is6() { // a customer has at least a /64
		return netip.PrefixFrom(a.WithZone(""), 64).Masked().Addr()
	}
	return a
}

// enter registers p, if need be instead of an idle connection. Otherwise it returns the
// reason for the refusal.
func (b *bound) enter(p *slot) (refused string) {
	mine := b.clients[p.client]
	switch {
	case p.client.IsValid() && len(mine) >= b.perClient && !b.evict(mine):
		b.refusedClient++
		return "too many connections of the client"
	case len(b.slots) >= b.max && !b.evict(b.slots):
		b.refused++
		return "too many connections"
	}
	b.slots[p] = struct{}{}
	if p.client.IsValid() {
		if mine = b.clients[p.client]; mine == nil {
			mine = map[*slot]struct{}{}
			b.clients[p.client] = mine
		}
		mine[p] = struct{}{}
	}
	return ""
}

// evict closes the connection in of that has waited longest for a request or the rest of a
// head. It examines at most sample connections.
func (b *bound) evict(of map[*slot]struct{}) bool {
	for range 2 { // the candidate may get a request meanwhile
		var oldest *slot
		var since int64
		looked := 0
		for p := range of { // iteration starts at a random element
			if at := p.since.Load(); at > 0 && (oldest == nil || at < since) {
				oldest, since = p, at
			}
			if looked++; looked == sample {
				break
			}
		}
		if oldest == nil {
			return false
		}
		if oldest.since.CompareAndSwap(since, slotLost) {
			b.evicted++
			b.leave(oldest)
			_ = oldest.nc.SetReadDeadline(time.Unix(1, 0)) // fails only on a connection that has ended
			return true
		}
	}
	return false
}

func (b *bound) leave(p *slot) {
	delete(b.slots, p)
	if mine := b.clients[p.client]; mine != nil {
		if delete(mine, p); len(mine) == 0 {
			delete(b.clients, p.client)
		}
	}
}
