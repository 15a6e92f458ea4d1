package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// flowsPerSandbox bounds the connections (for UDP: pairs of addresses and ports) that the
// kernel tracks for one sandbox, so that no sandbox fills the host's table.
const flowsPerSandbox = 4096

// rules is the router's table, in nft's notation:
//
//	chain forward (policy drop)
//	    iif up  ct state established,related  oif . ct mark @own  accept
//	    iif up  drop
//	    oif != up                       refuse    # another sandbox
//	    fib saddr . iif oif missing     drop      # forged source address
//	    daddr @private                  goto policy
//	    daddr @blocked                  refuse
//	    goto policy
//	chain policy
//	    ct state established,related  iif . ct mark @own  accept
//	    ct state invalid                drop
//	    l4proto != tcp, udp             refuse
//	    add @flows { iif ct count over 4096 } refuse
//	    ct mark set iif
//	    iif @open                       accept
//	    iif . daddr . dport @listed     accept    # ranges of an allow-list
//	    iif . daddr . 0     @listed     accept    # ranges for all ports
//	    iif . daddr . dport @learned    accept    # addresses of allowed names
//	    iif . daddr . 0     @learned    accept
//	    refuse
//	chain input (policy drop)
//	    iif lo, neighbour discovery     accept
//	    iif up                          drop
//	    fib saddr . iif oif missing     drop
//	    add @flows { iif ct count over 4096 } refuse
//	    daddr GATEWAY dport 53          accept
//	    refuse
//	chain postrouting
//	    oif up                          masquerade
//
// The index of the router's end of a link identifies a sandbox; the kernel never gives an index
// twice. Each flow carries the index of its sandbox as mark, so that a sandbox never inherits
// the flows of an earlier owner of its address.
type rules struct {
	ns      int // fd of the router's namespace
	open    *nftables.Set
	own     *nftables.Set
	listed  [2]*nftables.Set // by family
	learned [2]*nftables.Set

	mu   sync.Mutex
	conn *nftables.Conn // nil after an error, since the socket may still hold answers
}

// learned is a resolved address at one port, 0 for all.
type learned struct {
	addr netip.Addr
	port uint16
}

// newRules writes the table. uplink is the index of the link to the host. The caller closes the
// rules, even after an error.
func newRules(ns int, uplink uint32, gateway netip.Addr, private []netip.Prefix) (*rules, error) {
	t := &nftables.Table{Name: "fre", Family: nftables.TableFamilyINet}
	index, mark := nftables.TypeIFIndex, nftables.TypeMark
	r := &rules{ns: ns}
	r.open = &nftables.Set{Table: t, Name: "open", KeyType: index}
	r.own = &nftables.Set{Table: t, Name: "own", KeyType: nftables.MustConcatSetType(index, mark), Concatenation: true}
	flows := &nftables.Set{Table: t, Name: "flows", KeyType: index, Dynamic: true, Size: 1 << 16}
	sets := []*nftables.Set{r.open, r.own, flows}
	for i, f := range families {
		key := nftables.MustConcatSetType(index, f.datatype, nftables.TypeInetService)
		r.listed[i] = &nftables.Set{Table: t, Name: "listed" + f.suffix, KeyType: key, Concatenation: true, Interval: true}
		r.learned[i] = &nftables.Set{Table: t, Name: "learned" + f.suffix, KeyType: key, Concatenation: true, HasTimeout: true}
		sets = append(sets, r.listed[i], r.learned[i])
	}
	return r, r.do(func(c *nftables.Conn) error {
		c.AddTable(t)
		for _, s := range sets {
			if err := c.AddSet(s, nil); err != nil {
				return err
			}
		}
		addRefuse(c, t)
		policy := c.AddChain(&nftables.Chain{Name: "policy", Table: t})
		forward := c.AddChain(baseChain(t, "forward", nftables.ChainHookForward, nftables.ChainPriorityFilter, nftables.ChainPolicyDrop))
		input := c.AddChain(baseChain(t, "input", nftables.ChainHookInput, nftables.ChainPriorityFilter, nftables.ChainPolicyDrop))
		nat := c.AddChain(natChain(t))
		add := adder(c)
		replies := ctState(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
		iif := load(expr.MetaKeyIIF)

		add(forward, from(uplink), replies, load(expr.MetaKeyOIF), ct(expr.CtKeyMARK, reg1), in(r.own), accept)
		add(forward, from(uplink), drop)
		add(forward, notTo(uplink), refuse)
		add(forward, spoofed, drop)
		for _, f := range families {
			for _, part := range []struct {
				name string
				list []netip.Prefix
				then []expr.Any
			}{{"private", private, goTo(policy.Name)}, {"blocked", blocked, refuse}} {
				s := &nftables.Set{Table: t, Name: part.name + f.suffix, KeyType: f.datatype, Interval: true}
				elements := f.ranges(part.list)
				if len(elements) == 0 {
					continue
				}
				if err := c.AddSet(s, elements); err != nil {
					return err
				}
				add(forward, f.match(), f.destination(reg0), in(s), part.then)
			}
		}
		add(forward, goTo(policy.Name))

		add(policy, replies, iif, ct(expr.CtKeyMARK, reg1), in(r.own), accept)
		add(policy, ctState(expr.CtStateBitINVALID), drop)
		known := &nftables.Set{Table: t, Anonymous: true, Constant: true, KeyType: nftables.TypeInetProto}
		if err := c.AddSet(known, []nftables.SetElement{{Key: []byte{unix.IPPROTO_TCP}}, {Key: []byte{unix.IPPROTO_UDP}}}); err != nil {
			return err
		}
		add(policy, load(expr.MetaKeyL4PROTO), []expr.Any{&expr.Lookup{SourceRegister: reg0, SetName: known.Name, SetID: known.ID, Invert: true}}, refuse)
		tooMany := slices.Concat(iif, []expr.Any{&expr.Dynset{
			SrcRegKey: reg0, SetName: flows.Name, SetID: flows.ID, Operation: unix.NFT_DYNSET_OP_ADD,
			Exprs: []expr.Any{&expr.Connlimit{Count: flowsPerSandbox, Flags: expr.NFT_CONNLIMIT_F_INV}},
		}})
		add(policy, tooMany, refuse)
		add(policy, iif, []expr.Any{&expr.Ct{Key: expr.CtKeyMARK, Register: reg0, SourceRegister: true}})
		add(policy, iif, in(r.open), accept)
		for i, f := range families {
			where := slices.Concat(f.match(), iif, f.destination(reg1))
			for _, s := range []*nftables.Set{r.listed[i], r.learned[i]} {
				add(policy, where, destinationPort(f.behind()), in(s), accept)
				add(policy, where, constant(f.behind(), port(0)), in(s), accept)
			}
		}
		add(policy, refuse)

		add(input, load(expr.MetaKeyIIFTYPE), equal(binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_LOOPBACK)), accept)
		for _, rule := range neighbours() {
			add(input, rule, accept)
		}
		add(input, from(uplink), drop)
		add(input, spoofed, drop)
		add(input, tooMany, refuse)
		for _, p := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			add(input, families[0].match(), families[0].destination(reg0), equal(gateway.AsSlice()),
				protocol(p), destinationPort(reg0), equal(port(53)[:2]), accept)
		}
		add(input, refuse)
		add(nat, to(uplink), []expr.Any{&expr.Masq{}})
		return nil
	})
}

// hostRules writes the host's table name in the namespace of fd ns, and replaces an earlier
// table:
//
//	chain guard (prerouting, before the host's own redirections)
//	    iif uplink, neighbour discovery       accept
//	    iif uplink  fib daddr type local      refuse    # the host itself
//	chain forward
//	    iif uplink  ct status dnat            refuse    # redirected by the host
//	    oif uplink  ct state new,invalid      drop
//	chain postrouting
//	    saddr ROUTER                          masquerade
func hostRules(ns int, name string, uplink uint32, router []netip.Addr) error {
	t := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	c := &nftables.Conn{NetNS: ns}
	c.AddTable(t) // so that DelTable finds a table
	c.DelTable(t)
	c.AddTable(t)
	addRefuse(c, t)
	guard := c.AddChain(baseChain(t, "guard", nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, nftables.ChainPolicyAccept))
	forward := c.AddChain(baseChain(t, "forward", nftables.ChainHookForward, nftables.ChainPriorityFilter, nftables.ChainPolicyAccept))
	nat := c.AddChain(natChain(t))
	add := adder(c)
	for _, rule := range neighbours() {
		add(guard, from(uplink), rule, accept)
	}
	add(guard, from(uplink), []expr.Any{&expr.Fib{Register: reg0, FlagDADDR: true, ResultADDRTYPE: true}}, equal(native(unix.RTN_LOCAL)), refuse)
	const dnat = 1 << 5 // IPS_DST_NAT
	add(forward, from(uplink), ct(expr.CtKeySTATUS, reg0), anyBit(dnat), refuse)
	add(forward, to(uplink), ctState(expr.CtStateBitNEW|expr.CtStateBitINVALID), drop)
	for _, a := range router {
		f := families[familyOf(a)]
		add(nat, f.match(), f.source(reg0), equal(a.AsSlice()), []expr.Any{&expr.Masq{}})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s: %w", name, err)
	}
	return nil
}

// removeHostRules removes the table of hostRules.
func removeHostRules(ns int, name string) error {
	t := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	c := &nftables.Conn{NetNS: ns}
	c.AddTable(t)
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove nftables table %s: %w", name, err)
	}
	return nil
}

// adder returns a function that appends rules to chains of c.
func adder(c *nftables.Conn) func(*nftables.Chain, ...[]expr.Any) {
	return func(chain *nftables.Chain, parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: slices.Concat(parts...)})
	}
}

// do sends the changes of f as one transaction.
func (r *rules) do(f func(*nftables.Conn) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn == nil {
		c, err := nftables.New(nftables.WithNetNSFd(r.ns), nftables.AsLasting())
		if err != nil {
			return fmt.Errorf("open nftables: %w", err)
		}
		r.conn = c
	}
	err := f(r.conn)
	if err == nil {
		err = r.conn.Flush()
	}
	if err != nil {
		r.closeLocked()
		return fmt.Errorf("change nftables: %w", err)
	}
	return nil
}

func (r *rules) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeLocked()
}

func (r *rules) closeLocked() {
	if r.conn != nil {
		_ = r.conn.CloseLasting()
		r.conn = nil
	}
}

// admit lets the sandbox on link index reach all destinations that are not blocked.
func (r *rules) admit(index uint32) error {
	return r.do(func(c *nftables.Conn) error {
		return errors.Join(c.SetAddElements(r.open, one(native(index))), c.SetAddElements(r.own, one(native(index, index))))
	})
}

// restrict reduces the destinations of admit to those of p.
func (r *rules) restrict(index uint32, p Policy) error {
	return r.do(func(c *nftables.Conn) error {
		return errors.Join(c.SetDeleteElements(r.open, one(native(index))), r.changeListed(c.SetAddElements, index, p))
	})
}

// unrestrict undoes restrict. Learned addresses are untouched: clean calls unrestrict only if
// the namespace has sent no packet, so none were learned.
func (r *rules) unrestrict(index uint32, p Policy) error {
	return r.do(func(c *nftables.Conn) error {
		return errors.Join(c.SetAddElements(r.open, one(native(index))), r.changeListed(c.SetDeleteElements, index, p))
	})
}

// expel removes a sandbox that has ended.
func (r *rules) expel(index uint32, p Policy) error {
	return r.do(func(c *nftables.Conn) error {
		err := c.SetDeleteElements(r.own, one(native(index, index)))
		if len(p.Allow) == 0 {
			return errors.Join(err, c.SetDeleteElements(r.open, one(native(index))))
		}
		return errors.Join(err, r.changeListed(c.SetDeleteElements, index, p))
	})
}

// changeListed adds or deletes the ranges of an allow-list.
func (r *rules) changeListed(change func(*nftables.Set, []nftables.SetElement) error, index uint32, p Policy) error {
	var elements [2][]nftables.SetElement
	for i, d := range p.Allow {
		if !d.Prefix.IsValid() || slices.Contains(p.Allow[:i], d) ||
			// A set accepts no element inside another.
			slices.ContainsFunc(p.Allow, func(e Destination) bool {
				return e.Port == d.Port && e.Prefix.Contains(d.Prefix.Addr()) && e.Prefix.Bits() < d.Prefix.Bits()
			}) {
			continue
		}
		f := familyOf(d.Prefix.Addr())
		elements[f] = append(elements[f], nftables.SetElement{
			Key:    slices.Concat(native(index), d.Prefix.Addr().AsSlice(), port(d.Port)),
			KeyEnd: slices.Concat(native(index), lastAddr(d.Prefix).AsSlice(), port(d.Port)),
		})
	}
	var err error
	for i, list := range elements {
		if len(list) > 0 {
			err = errors.Join(err, change(r.listed[i], list))
		}
	}
	return err
}

// learn lets a sandbox reach addresses for life. again are the addresses learned before: learn
// deletes and adds them, since not every kernel extends an existing element.
func (r *rules) learn(index uint32, fresh, again []learned, life time.Duration) error {
	change := func(renew bool) error {
		return r.do(func(c *nftables.Conn) error {
			var err error
			for _, l := range again {
				if renew {
					err = errors.Join(err, c.SetDeleteElements(r.learned[familyOf(l.addr)], one(l.key(index))))
				}
			}
			for _, l := range slices.Concat(fresh, again) {
				e := nftables.SetElement{Key: l.key(index), Timeout: life}
				err = errors.Join(err, c.SetAddElements(r.learned[familyOf(l.addr)], []nftables.SetElement{e}))
			}
			return err
		})
	}
	err := change(true)
	if errors.Is(err, unix.ENOENT) { // an element has just expired
		err = change(false)
	}
	return err
}

// forget removes learned addresses. An expired element fails its whole transaction; then forget
// removes each address in a transaction of its own.
func (r *rules) forget(index uint32, addrs []learned) {
	remove := func(addrs ...learned) error {
		return r.do(func(c *nftables.Conn) error {
			var err error
			for _, l := range addrs {
				err = errors.Join(err, c.SetDeleteElements(r.learned[familyOf(l.addr)], one(l.key(index))))
			}
			return err
		})
	}
	if remove(addrs...) != nil {
		for _, l := range addrs {
			_ = remove(l)
		}
	}
}

func (l learned) key(index uint32) []byte {
	return slices.Concat(native(index), l.addr.AsSlice(), port(l.port))
}

func one(key []byte) []nftables.SetElement { return []nftables.SetElement{{Key: key}} }

// addRefuse writes the chain that refuse jumps to. A refused client gets an answer at once. TCP
// gets a reset: the kernel ignores an ICMP error while connect(2) holds the socket, and the
// client would try again only a second later.
func addRefuse(c *nftables.Conn, t *nftables.Table) {
	chain := c.AddChain(&nftables.Chain{Name: "refuse", Table: t})
	add := adder(c)
	add(chain, protocol(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	add(chain, []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}})
}
