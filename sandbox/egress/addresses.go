package egress

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
)

// addresses divides the subnet. Its first is the gateway's and names'; then come
// the sandboxes'; its last quarter holds the pairs of which one joins router and
// host, chosen so that the engines of one host do not collide.
//
// IPv6 has a random-looking /64 of the unique local range (RFC 4193), which
// derives from the name and never leaves the host.
type addresses struct {
	gateway netip.Addr
	first   uint32 // of the sandboxes
	size    uint32 // how many sandboxes
	turn    uint32 // how many were given out

	pairs uint32 // the first of the pairs
	hash  uint32
	v6    [16]byte
}

// How many bits of a subnet are given.
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

// next is a sandbox's address; the caller locks.
func (a *addresses) next() netip.Addr {
	a.turn++
	return addr4(a.first + (a.turn-1)%a.size)
}

// pair is the attempt-th choice for the link between host and router; false when
// all have been tried.
func (a *addresses) pair(attempt uint32) (host, router netip.Addr, ok bool) {
	n := (a.size + 2) / 3 / 2 // a quarter of the subnet, two each
	if attempt >= n {
		return host, router, false
	}
	at := a.pairs + (a.hash+attempt)%n*2
	return addr4(at), addr4(at + 1), true
}

// pair6 is the same for IPv6.
func (a *addresses) pair6() (host, router netip.Addr) { return a.addr6(1), a.addr6(2) }

// sandbox6 is the IPv6 address beside an IPv4 one.
func (a *addresses) sandbox6(v4 netip.Addr) netip.Addr {
	b := v4.As4()
	return a.addr6(1<<32 | uint64(binary.BigEndian.Uint32(b[:])))
}

func (a *addresses) addr6(n uint64) netip.Addr {
	b := a.v6
	binary.BigEndian.PutUint64(b[8:], n)
	return netip.AddrFrom16(b)
}
