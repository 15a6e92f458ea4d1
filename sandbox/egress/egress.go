// Package egress gives sandboxes a way out: pooled network namespaces from which
// the public internet can be reached, and nothing of the host's or of its
// neighbours.
//
//	sandbox            router                                 host
//	┌───────────┐     ┌──────────────────────────────┐       ┌─────────────────┐
//	│ eth0 S1 ──┼──── s1  GATEWAY: names             │       │                 │
//	└───────────┘     │   filter: who may go where   up ──── fre-…  masquerade ─┼── default route
//	┌───────────┐     │   masquerade                 │       │ nothing to the  │
//	│ eth0 S2 ──┼──── s2                             │       │ host itself     │
//	└───────────┘     └──────────────────────────────┘       └─────────────────┘
//
// The router is a namespace of the engine's that nothing but its file
// descriptors holds: when the engine ends, for whatever reason, the kernel
// removes it with every link. The host sees one link and one nftables table,
// whose names derive from the state directory; a table that a crash left is
// replaced at the next start. The host has to forward packets ([Host.Err] says
// where it does not): no setting of the host's is changed.
//
// Names are resolved by a forwarder at the gateway's address. For a sandbox with
// an allow-list it answers allowed names only, and each answer opens the way to
// its addresses for as long as it holds.
package egress

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/fre-engine/fre/sandbox/netns"
	"github.com/fre-engine/fre/sandbox/pool"
)

// Config says how to open a [Network]. Required: Name.
type Config struct {
	Name         string           // of the host's link and table: at most 15 bytes
	Size         int              // namespaces kept ready; default 8
	Subnet       netip.Prefix     // IPv4 addresses of sandboxes and router; default [DefaultSubnet]
	AllowPrivate []netip.Prefix   // what sandboxes may reach although it is no public address
	Resolvers    []netip.AddrPort // default: those of /etc/resolv.conf, read again when it changes
	Log          *slog.Logger     // default: discards
	Busy         func() bool      // whether to put work off; default as pool.Config's
}

// DefaultSubnet is link-local, so that it hides no private network of the host's:
// sandboxes' addresses never leave the router, and the host sees two of these.
// It keeps clear of the addresses at which clouds answer.
var DefaultSubnet = netip.MustParsePrefix("169.254.192.0/18")

// Network hands out namespaces. Its methods may be called from any goroutine.
type Network struct {
	cfg      Config
	addrs    addresses
	router   *router
	resolver *resolver
	pool     *pool.Pool[*Namespace]

	mu       sync.Mutex
	bySource map[netip.Addr]*Namespace // every namespace there is
}

// Namespace is leased to one sandbox at a time.
type Namespace struct {
	ns     *netns.Namespace
	index  uint32 // of the router's end of the link
	source netip.Addr
	counts *counters
	policy atomic.Pointer[Policy] // nil while it is not leased

	mu      sync.Mutex
	learned map[learned]int64 // until when, in Unix seconds
	queries int               // being answered
}

// File is what setns(2) joins. It stays the namespace's.
func (n *Namespace) File() *os.File { return n.ns.File() }

// Queued is [netns.Namespace.Queued].
func (n *Namespace) Queued() int64 { return n.ns.Queued() }

// Open removes what an earlier engine left under the same name, makes the router
// in the network namespace of the calling program and fills the pool. An error
// says what the host lacks and what to do about it.
func Open(cfg Config) (network *Network, err error) {
	if len(cfg.Name) == 0 || len(cfg.Name) > 15 {
		return nil, fmt.Errorf("egress: %q cannot name a link", cfg.Name)
	}
	if cfg.Size == 0 {
		cfg.Size = 8
	}
	if !cfg.Subnet.IsValid() {
		cfg.Subnet = DefaultSubnet
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	n := &Network{cfg: cfg, bySource: map[netip.Addr]*Namespace{}}
	if n.addrs, err = newAddresses(cfg.Name, cfg.Subnet); err != nil {
		return nil, err
	}
	host := ProbeHost()
	if err := host.Err(); err != nil {
		return nil, err
	}
	for _, chain := range host.Dropping {
		cfg.Log.Warn("forwarded packets are dropped by default: have it accept those from and to this link", "by", chain, "link", cfg.Name)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if n.router, err = newRouter(cfg, host, &n.addrs); err != nil {
		return nil, err
	}
	if n.resolver, err = newResolver(n); err != nil {
		return nil, err
	}
	n.pool = pool.New(pool.Config[*Namespace]{
		Name: "egress namespace", Ready: cfg.Size, Log: cfg.Log, Busy: cfg.Busy,
		Make: n.make, Clean: n.clean, Drop: n.drop,
	})
	return n, nil
}

// ResolvConf is what a sandbox needs as /etc/resolv.conf.
func (n *Network) ResolvConf() string {
	return fmt.Sprintf("# FRE's resolver: see docs/networks.md\nnameserver %s\n", n.addrs.gateway)
}

// Acquire leases a namespace, from the pool or made now, in which p holds.
func (n *Network) Acquire(p Policy) (*Namespace, error) {
	s, err := n.pool.Take(nil)
	if err != nil {
		return nil, err
	}
	if len(p.Allow) > 0 {
		if err := n.router.rules.restrict(s.index, p); err != nil {
			return nil, errors.Join(err, n.drop(s))
		}
	}
	s.policy.Store(&p)
	return s, nil
}

// Release gives a namespace back once its sandbox has been reaped. It returns at
// once. The namespace is leased again only if nothing was ever sent in it, so
// that no socket, no tracked flow and no learned address is left; else it is
// dropped.
func (n *Network) Release(s *Namespace) { n.pool.Give(s) }

// Close removes what Open made. Namespaces that are leased lose their way out.
func (n *Network) Close() error {
	if n.pool != nil {
		n.pool.Close()
	}
	if n.resolver != nil {
		n.resolver.close()
	}
	if n.router != nil {
		return n.router.close()
	}
	return nil
}

// make makes a namespace that may go anywhere, ready to be leased.
func (n *Network) make() (*Namespace, error) {
	source, err := n.reserve()
	if err != nil {
		return nil, err
	}
	s := &Namespace{source: source, learned: map[learned]int64{}}
	if err := n.connect(s); err != nil {
		n.mu.Lock()
		delete(n.bySource, source)
		n.mu.Unlock()
		return nil, err
	}
	n.mu.Lock()
	n.bySource[source] = s
	n.mu.Unlock()
	return s, nil
}

func (n *Network) connect(s *Namespace) (err error) {
	if s.ns, s.counts, s.index, err = n.router.connect(s.source, n.addrs.sandbox6(s.source)); err != nil {
		return err
	}
	if err := n.router.rules.admit(s.index); err != nil {
		s.close()
		return err
	}
	return nil
}

// reserve chooses an address that nobody has, as late again as possible: packets
// for the last one that had it may still be under way.
func (n *Network) reserve() (netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range n.addrs.count() {
		a := n.addrs.next()
		if _, taken := n.bySource[a]; !taken {
			n.bySource[a] = nil
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("all %d addresses of %s are in use: give network.egress.subnet a larger range", n.addrs.count(), n.cfg.Subnet)
}

// leased finds the namespace of an address and its policy, nil where no sandbox
// has it.
func (n *Network) leased(a netip.Addr) (*Namespace, *Policy) {
	n.mu.Lock()
	s := n.bySource[a]
	n.mu.Unlock()
	if s == nil {
		return nil, nil
	}
	return s, s.policy.Load()
}

func (n *Network) clean(s *Namespace) pool.Verdict {
	if !s.ns.Clean() || !s.counts.unchanged() {
		return pool.Spoilt
	}
	p := s.policy.Load()
	if p != nil && len(p.Allow) > 0 {
		if err := n.router.rules.unrestrict(s.index, *p); err != nil {
			n.cfg.Log.Warn("egress namespace not recycled", "error", err)
			return pool.Spoilt
		}
	}
	s.policy.Store(nil)
	return pool.Ready
}

func (n *Network) drop(s *Namespace) error {
	var p Policy
	if leased := s.policy.Swap(nil); leased != nil {
		p = *leased
	}
	s.mu.Lock()
	addrs := make([]learned, 0, len(s.learned))
	for l := range s.learned {
		addrs = append(addrs, l)
	}
	s.mu.Unlock()
	err := n.router.rules.expel(s.index, p)
	if len(addrs) > 0 {
		n.router.rules.forget(s.index, addrs)
	}
	s.close()
	n.mu.Lock()
	delete(n.bySource, s.source)
	n.mu.Unlock()
	return err
}

func (n *Namespace) close() {
	_ = n.ns.Close()
	n.counts.close()
}
