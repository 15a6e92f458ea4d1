package egress

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// This file holds the expressions from which rules.go builds its rules. Registers have four
// bytes. The key of a set fills consecutive registers from reg0 on; a single value goes into
// reg0.
const (
	reg0 = unix.NFT_REG32_00
	reg1 = unix.NFT_REG32_01
)

var (
	accept  = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	drop    = []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	refuse  = goTo("refuse")
	spoofed = slices.Concat( // no route back to the source over the incoming link
		[]expr.Any{&expr.Fib{Register: reg0, FlagSADDR: true, FlagIIF: true, ResultOIF: true}},
		equal(native(0)))
)

func goTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

func load(key expr.MetaKey) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: reg0}}
}

func equal(value []byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: value}}
}

func from(index uint32) []expr.Any {
	return append(load(expr.MetaKeyIIF), equal(native(index))...)
}

func to(index uint32) []expr.Any {
	return append(load(expr.MetaKeyOIF), equal(native(index))...)
}

func notTo(index uint32) []expr.Any {
	return append(load(expr.MetaKeyOIF), &expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: native(index)})
}

func protocol(p byte) []expr.Any {
	return append(load(expr.MetaKeyL4PROTO), equal([]byte{p})...)
}

func in(s *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg0, SetName: s.Name, SetID: s.ID}}
}

func anyBit(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: 4, Mask: native(bits), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: native(0)},
	}
}

func ct(key expr.CtKey, reg uint32) []expr.Any {
	return []expr.Any{&expr.Ct{Key: key, Register: reg}}
}

func ctState(bits uint32) []expr.Any { return append(ct(expr.CtKeySTATE, reg0), anyBit(bits)...) }

func payload(base expr.PayloadBase, offset, size, reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{Base: base, Offset: offset, Len: size, DestRegister: reg}}
}

func destinationPort(reg uint32) []expr.Any {
	return payload(expr.PayloadBaseTransportHeader, 2, 2, reg)
}

func constant(reg uint32, value []byte) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: reg, Data: value}}
}

// neighbours are the solicitations and advertisements that IPv6 needs on a link.
func neighbours() [][]expr.Any {
	var rules [][]expr.Any
	for _, kind := range []byte{135, 136} {
		rules = append(rules, slices.Concat(families[1].match(), protocol(unix.IPPROTO_ICMPV6),
			payload(expr.PayloadBaseTransportHeader, 0, 1, reg0), equal([]byte{kind})))
	}
	return rules
}

// family holds the differences between IPv4 and IPv6.
type family struct {
	suffix       string // of the names of sets
	proto        byte
	datatype     nftables.SetDatatype
	saddr, daddr uint32 // offsets in the header
	size         uint32 // size of an address
}

var families = [2]family{
	{"4", unix.NFPROTO_IPV4, nftables.TypeIPAddr, 12, 16, 4},
	{"6", unix.NFPROTO_IPV6, nftables.TypeIP6Addr, 8, 24, 16},
}

// familyOf returns the index of a's family in families.
func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func (f family) match() []expr.Any {
	return append(load(expr.MetaKeyNFPROTO), equal([]byte{f.proto})...)
}

func (f family) source(reg uint32) []expr.Any {
	return payload(expr.PayloadBaseNetworkHeader, f.saddr, f.size, reg)
}

func (f family) destination(reg uint32) []expr.Any {
	return payload(expr.PayloadBaseNetworkHeader, f.daddr, f.size, reg)
}

// behind returns the register after an address that begins at reg1.
func (f family) behind() uint32 { return reg1 + f.size/4 }

// ranges returns a family's prefixes as elements of an interval set: the begin and the end of
// each. Prefixes inside other prefixes are left out.
func (f family) ranges(list []netip.Prefix) []nftables.SetElement {
	var elements []nftables.SetElement
	for _, p := range list {
		if families[familyOf(p.Addr())].proto != f.proto || slices.ContainsFunc(list, func(q netip.Prefix) bool {
			return q.Bits() < p.Bits() && q.Contains(p.Addr())
		}) {
			continue
		}
		elements = append(elements, nftables.SetElement{Key: p.Masked().Addr().AsSlice()})
		if end := lastAddr(p).Next(); end.IsValid() {
			elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

func baseChain(t *nftables.Table, name string, hook *nftables.ChainHook, priority *nftables.ChainPriority, policy nftables.ChainPolicy) *nftables.Chain {
	return &nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: priority, Policy: &policy}
}

func natChain(t *nftables.Table) *nftables.Chain {
	return &nftables.Chain{
		Name: "postrouting", Table: t, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	}
}

// port returns a port as in the key of a set, padded to four bytes.
func port(p uint16) []byte { return append(binary.BigEndian.AppendUint16(nil, p), 0, 0) }

// native returns numbers in the byte order of the kernel's registers.
func native(numbers ...uint32) []byte {
	var b []byte
	for _, n := range numbers {
		b = binary.NativeEndian.AppendUint32(b, n)
	}
	return b
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
