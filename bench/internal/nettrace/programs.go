package nettrace

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// license is the license of the programs made in this file, beside FRE's own. The kernel lets only
// programs under the GPL read kernel types (Documentation/bpf/bpf_licensing.rst). The license is
// passed to the kernel with each program.
const license = "Dual MIT/GPL"

// Names of the counts made by programs.
const (
	retransmissions = "retransmissions"
	drops           = "drops"
	allocations     = "allocations"
)

// program counts the hits of a tracepoint in a table. The key comes from the tracepoint's
// arguments.
type program struct {
	name       string
	tracepoint string
	table      ebpf.MapType
	key        uint32 // bytes
	entries    uint32
	// makeKey returns code that leaves the key at the end of the stack and continues at "count", or
	// at "exit" if the hit is not to be counted.
	makeKey func(kernel *btf.Spec) (asm.Instructions, error)
}

var programs = []program{
	{retransmissions, "tcp_retransmit_skb", ebpf.LRUHash, connectionSize, 16 << 10, connectionKey},
	{drops, "kfree_skb", ebpf.Hash, 4, 4096, reasonKey},
	{allocations, "kmem_cache_alloc", ebpf.Hash, cacheSize, 256, cacheKey},
}

// instructions returns the whole program: compute the key, then increment the key's counter in the
// table. A missing counter is added.
func (p program) instructions(kernel *btf.Spec, m *ebpf.Map) (asm.Instructions, error) {
	all, err := p.makeKey(kernel)
	if err != nil {
		return nil, err
	}
	key, one := -int32(roundUp(p.key)), -int32(roundUp(p.key))-8
	lookup := func(label string) asm.Instructions {
		load := asm.LoadMapPtr(asm.R1, m.FD())
		if label != "" {
			load = load.WithSymbol(label)
		}
		return asm.Instructions{
			load,
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, key),
			asm.FnMapLookupElem.Call(),
		}
	}
	all = append(all, lookup("count")...)
	all = append(all,
		asm.JNE.Imm(asm.R0, 0, "add"),
		asm.Mov.Imm(asm.R2, 0), asm.StoreMem(asm.RFP, int16(one), asm.R2, asm.DWord),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, key),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, one),
		asm.Mov.Imm(asm.R4, unix.BPF_NOEXIST), // another CPU may have added the counter first
		asm.FnMapUpdateElem.Call(),
	)
	all = append(all, lookup("")...)
	return append(all,
		asm.JEq.Imm(asm.R0, 0, "exit"), // the table is full
		asm.Mov.Imm(asm.R1, 1).WithSymbol("add"),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("exit"),
		asm.Return(),
	), nil
}

// roundUp keeps values on the stack aligned to 8 bytes.
func roundUp(n uint32) uint32 { return (n + 7) &^ 7 }

// argument loads argument i of the tracepoint. R1 holds the context until the first call of a
// helper.
func argument(dst asm.Register, i int16) asm.Instruction {
	return asm.LoadMem(dst, asm.R1, 8*i, asm.DWord)
}

// read copies size bytes at base + offset to the stack by a helper of the kernel, whatever the type
// there. Unreadable bytes become zero.
func read(stack, size int32, base asm.Register, offset uint32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, stack),
		asm.Mov.Imm(asm.R2, size),
		asm.Mov.Reg(asm.R3, base), asm.Add.Imm(asm.R3, int32(offset)),
		asm.FnProbeReadKernel.Call(),
	}
}

// zero clears the stack from an offset up to the end.
func zero(from int32) asm.Instructions {
	all := asm.Instructions{asm.Mov.Imm(asm.R2, 0)}
	for at := from; at < 0; at += 8 {
		all = append(all, asm.StoreMem(asm.RFP, int16(at), asm.R2, asm.DWord))
	}
	return all
}

// connection is the key of retransmissions.
type connection struct {
	Family     uint16
	LocalPort  uint16
	RemotePort [2]byte // in network byte order
	_          uint16
	Namespace  uint32
	_          uint32
	Local      [16]byte // IPv4 uses the first four bytes
	Remote     [16]byte
}

const connectionSize = 48

// connectionKey reads the struct sock of tcp_retransmit_skb(sk, skb).
func connectionKey(kernel *btf.Spec) (asm.Instructions, error) {
	const key, pointer = -connectionSize, -connectionSize - 8
	var o struct{ family, lport, rport, net, inum, local4, remote4, local6, remote6 uint32 }
	for _, f := range []struct {
		offset *uint32
		of     string
		path   []string
	}{
		{&o.family, "sock_common", []string{"skc_family"}},
		{&o.lport, "sock_common", []string{"skc_num"}},
		{&o.rport, "sock_common", []string{"skc_dport"}},
		{&o.net, "sock_common", []string{"skc_net", "net"}},
		{&o.inum, "net", []string{"ns", "inum"}},
		{&o.local4, "sock_common", []string{"skc_rcv_saddr"}},
		{&o.remote4, "sock_common", []string{"skc_daddr"}},
		{&o.local6, "sock_common", []string{"skc_v6_rcv_saddr"}},
		{&o.remote6, "sock_common", []string{"skc_v6_daddr"}},
	} {
		var err error
		if *f.offset, err = offsetOf(kernel, f.of, f.path...); err != nil {
			return nil, err
		}
	}
	all := asm.Instructions{argument(asm.R6, 0)} // a struct sock begins with a sock_common
	all = append(all, zero(pointer)...)
	all = append(all, read(key, 2, asm.R6, o.family)...)
	all = append(all, read(key+2, 2, asm.R6, o.lport)...)
	all = append(all, read(key+4, 2, asm.R6, o.rport)...)
	all = append(all, read(pointer, 8, asm.R6, o.net)...)
	all = append(all, asm.LoadMem(asm.R7, asm.RFP, pointer, asm.DWord))
	all = append(all, read(key+8, 4, asm.R7, o.inum)...)
	all = append(all,
		asm.LoadMem(asm.R7, asm.RFP, key, asm.Half),
		asm.JEq.Imm(asm.R7, unix.AF_INET6, "six"),
	)
	all = append(all, read(key+16, 4, asm.R6, o.local4)...)
	all = append(all, read(key+32, 4, asm.R6, o.remote4)...)
	all = append(all, asm.Ja.Label("count"))
	six := read(key+16, 16, asm.R6, o.local6)
	six[0] = six[0].WithSymbol("six")
	all = append(all, six...)
	return append(all, read(key+32, 16, asm.R6, o.remote6)...), nil
}

func (c connection) describe() Retransmitted {
	addr := func(a [16]byte) netip.Addr {
		if c.Family == unix.AF_INET6 {
			return netip.AddrFrom16(a).Unmap()
		}
		return netip.AddrFrom4([4]byte(a[:4]))
	}
	return Retransmitted{
		Local: netip.AddrPortFrom(addr(c.Local), c.LocalPort), Remote: netip.AddrPortFrom(addr(c.Remote), binary.BigEndian.Uint16(c.RemotePort[:])),
		Namespace: c.Namespace,
	}
}

// reasonKey returns the third argument of kfree_skb(skb, location, reason).
func reasonKey(kernel *btf.Spec) (asm.Instructions, error) {
	var e *btf.Enum
	if err := kernel.TypeByName("skb_drop_reason", &e); err != nil {
		return nil, fmt.Errorf("enum skb_drop_reason: %w", err)
	}
	return asm.Instructions{argument(asm.R2, 2), asm.StoreMem(asm.RFP, -8, asm.R2, asm.Word)}, nil
}

// dropReasons returns the kernel's names of reasons, without the common prefix.
func dropReasons(kernel *btf.Spec) map[uint32]string {
	const prefix = "SKB_DROP_REASON_"
	names := map[uint32]string{}
	var e *btf.Enum
	if err := kernel.TypeByName("skb_drop_reason", &e); err != nil {
		return names // reasonKey returns the error
	}
	for _, v := range e.Values {
		name := v.Name
		if len(name) > len(prefix) && name[:len(prefix)] == prefix {
			name = name[len(prefix):]
		}
		names[uint32(v.Value)] = name
	}
	return names
}

// cache is the key of allocations.
type cache struct {
	Name [28]byte
	Size uint32
}

const cacheSize = 32

// cacheKey reads the cache of kmem_cache_alloc(call_site, ptr, cache, flags, node). The caches for
// packet buffers have names that begin with skbuff_.
func cacheKey(kernel *btf.Spec) (asm.Instructions, error) {
	const key, pointer = -cacheSize, -cacheSize - 8
	name, err := offsetOf(kernel, "kmem_cache", "name")
	if err != nil {
		return nil, err
	}
	size, err := offsetOf(kernel, "kmem_cache", "object_size")
	if err != nil {
		return nil, err
	}
	all := asm.Instructions{argument(asm.R6, 2)}
	all = append(all, zero(pointer)...)
	all = append(all, read(pointer, 8, asm.R6, name)...)
	all = append(all,
		asm.LoadMem(asm.R7, asm.RFP, pointer, asm.DWord),
		// The helper stops at the end of a shorter string.
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, key),
		asm.Mov.Imm(asm.R2, 28),
		asm.Mov.Reg(asm.R3, asm.R7),
		asm.FnProbeReadKernelStr.Call(),
		asm.LoadMem(asm.R7, asm.RFP, key, asm.Word),
		asm.JNE.Imm(asm.R7, int32(binary.NativeEndian.Uint32([]byte("skbu"))), "exit"),
	)
	return append(all, read(key+28, 4, asm.R6, size)...), nil
}

// offsetOf returns the offset of a field in a kernel struct, in bytes. path names a field and the
// fields within that field. The search enters anonymous structs and unions.
func offsetOf(kernel *btf.Spec, of string, path ...string) (uint32, error) {
	var s *btf.Struct
	if err := kernel.TypeByName(of, &s); err != nil {
		return 0, fmt.Errorf("struct %s: %w", of, err)
	}
	var at uint32
	var in btf.Type = s
	for _, name := range path {
		field, offset, ok := find(in, name)
		if !ok {
			return 0, fmt.Errorf("struct %s: field %s: %w", of, name, btf.ErrNotFound)
		}
		at, in = at+offset, field
	}
	return at, nil
}

func find(in btf.Type, name string) (field btf.Type, offset uint32, ok bool) {
	var members []btf.Member
	switch t := btf.UnderlyingType(in).(type) {
	case *btf.Struct:
		members = t.Members
	case *btf.Union:
		members = t.Members
	}
	for _, m := range members {
		if m.Name == name {
			return m.Type, m.Offset.Bytes(), true
		}
		if m.Name == "" {
			if field, offset, ok := find(m.Type, name); ok {
				return field, m.Offset.Bytes() + offset, true
			}
		}
	}
	return nil, 0, false
}
