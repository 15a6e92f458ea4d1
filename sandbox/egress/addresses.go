package egress

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
)

// addresses divides the subnet. The first address is the gateway, also the resolver. The
// addresses of sandboxes follow. The last quarter consists of pairs; one pair joins router and
// host, chosen so that several engines of one host do not collide.
//
// For IPv6, addresses uses a /64 of the unique local range (RFC 4193). The prefix is a hash of
// the name, and no packet with such an address leaves the host.
type addresses struct {
	gateway netip.Addr
	first   uint32 // first address of a sandbox
	size    uint32 // number of addresses for sandboxes
	turn    uint32 // number of addresses given out

	pairs uint32 // first address of the pairs
	hash  uint32
	v6    [16]byte
}

// The bounds of a subnet's prefix length.
const (
	WidestSubnet    = 8
	NarrowestSubnet = 24
)

func newAddresses(name string, subnet netip.Prefix) (addresses, error) {
	if !subnet.Addr().Is4() || subnet.Bits() > NarrowestSubnet || subnet.Bits() < WidestSubnet {
		return addresses{}, fmt.Errorf("network.egress.subnet %s must be an IPv4 range of /%d to /%d", subnet, WidestSubnet, NarrowestSubnet)
	}
	b := subnet.Masked().Addr().As4()
	start, total := binary.BigEndian.Uint32(b[:]), uint32(1)<<(32-subnet.Bits())
	sum := sha256.Sum256([]byte(name))
	a := addresses{
		gateway: addr4(start + 1), first: start + 2, size: total*3/4 - 2, pairs: start + total*3/4,
		hash: binary.BigEndian.Uint32(sum[8:]),
	}
	a.v6[0] = 0xfd
	copy(a.v6[1:8], sum[:])
	return a, nil
}

func addr4(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

func (a *addresses) count() uint32 { return a.size }

// next returns the next address for a sandbox; the caller holds the lock.
func (a *addresses) next() netip.Addr {
	a.turn++
	return addr4(a.first + (a.turn-1)%a.size)
}

// pair returns candidate number attempt for the link between host and router; ok is false after
// the last candidate.
func (a *addresses) pair(attempt uint32) (host, router netip.Addr, ok bool) {
	n := (a.size + 2) / 3 / 2 // a quarter of the subnet, two each
	if attempt >= n {
		return host, router, false
	}
	at := a.pairs + (a.hash+attempt)%n*2
	return addr4(at), addr4(at + 1), true
}

// pair6 returns the IPv6 addresses of the link between host and router.
func (a *addresses) pair6() (host, router netip.Addr) { return a.addr6(1), a.addr6(2) }

// sandbox6 returns the IPv6 address of the sandbox with an IPv4 address.
func (a *addresses) sandbox6(v4 netip.Addr) netip.Addr {
	b := v4.As4()
	return a.addr6(1<<32 | uint64(binary.BigEndian.Uint32(b[:])))
}

func (a *addresses) addr6(n uint64) netip.Addr {
	b := a.v6
	binary.BigEndian.PutUint64(b[8:], n)
	return netip.AddrFrom16(b)
}
