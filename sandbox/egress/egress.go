// Package egress gives sandboxes a way out: pooled network namespaces that reach the public
// internet, but neither the host nor other sandboxes.
//
//	sandbox            router                                 host
//	┌───────────┐     ┌──────────────────────────────┐       ┌─────────────────┐
//	│ eth0 S1 ──┼──── s1  GATEWAY: names             │       │                 │
//	└───────────┘     │   filter: destinations       up ──── fre-…  masquerade ─┼── default route
//	┌───────────┐     │   masquerade                 │       │ nothing to the  │
//	│ eth0 S2 ──┼──── s2                             │       │ host itself     │
//	└───────────┘     └──────────────────────────────┘       └─────────────────┘
//
// The router is a namespace held only by file descriptors of the engine. When the engine ends,
// for any reason, the kernel removes the router with every link. The host sees one link and one
// nftables table, whose names derive from the state directory. The next start replaces a table
// left by a crash. Package egress changes no setting of the host: the host must already forward
// packets (see [Host.Err]).
//
// A forwarder at the gateway's address resolves names. For a sandbox with an allow-list the
// forwarder answers only for allowed names. Each answer opens the way to its addresses for the
// lifetime of the answer.
package egress

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/sandbox/netns"
	"github.com/fre-engine/fre/sandbox/pool"
)

// Config configures [Open]. Name is required.
type Config struct {
	Name         string           // name of the host's link and table: at most 15 bytes
	Size         int              // ready namespaces; default 8
	Subnet       netip.Prefix     // IPv4 addresses of sandboxes and router; default [DefaultSubnet]
	AllowPrivate []netip.Prefix   // destinations to allow although they are not public
	Resolvers    []netip.AddrPort // default: the resolvers of /etc/resolv.conf, read again after a change
	Log          *slog.Logger     // default: discard
	Busy         func() bool      // whether to put work off; default as in pool.Config
}

// DefaultSubnet is link-local, so that no private network of the host is hidden: the addresses
// of sandboxes never leave the router, and the host sees two addresses. DefaultSubnet does not
// contain the addresses of the clouds' metadata services.
var DefaultSubnet = netip.MustParsePrefix("169.254.192.0/18")

// Network leases namespaces. Its methods are safe for concurrent use.
type Network struct {
	cfg      Config
	addrs    addresses
	router   *router
	resolver *resolver
	pool     *pool.Pool[*Namespace]

	mu       sync.Mutex
	bySource map[netip.Addr]*Namespace // every namespace; nil while make is still connecting it
}

// Namespace is a network namespace with a way out, leased to one sandbox at a time.
type Namespace struct {
	ns     *netns.Namespace
	index  uint32 // index of the router's end of the link
	source netip.Addr
	counts *counters
	policy atomic.Pointer[Policy] // nil while not leased

	mu      sync.Mutex
	learned map[learned]int64 // expiry in Unix seconds
	queries int               // queries in progress
}

// File returns the file for setns(2). The namespace owns the file.
func (n *Namespace) File() *os.File { return n.ns.File() }

// Queued returns the bytes in netlink sockets: see [netns.Namespace.Queued].
func (n *Namespace) Queued() int64 { return n.ns.Queued() }

// Open removes the remains of an earlier engine of the same name, makes the router in the
// calling program's network namespace and fills the pool. An error names the host's deficiency
// and the remedy.
func Open(cfg Config) (network *Network, err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
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
		cfg.Log.Warn("a firewall drops forwarded packets: let the firewall accept packets from and to the link", "by", chain, "link", cfg.Name)
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

func (cfg *Config) complete() error {
	if len(cfg.Name) == 0 || len(cfg.Name) > 15 {
		return fmt.Errorf("egress: %q cannot name a link", cfg.Name)
	}
	cfg.Size = cmp.Or(cfg.Size, 8)
	cfg.Subnet = cmp.Or(cfg.Subnet, DefaultSubnet)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// ResolvConf returns the content of /etc/resolv.conf for sandboxes.
func (n *Network) ResolvConf() string {
	return fmt.Sprintf("# FRE's resolver: see docs/networks.md\nnameserver %s\n", n.addrs.gateway)
}

// Acquire leases a namespace under policy p, from the pool or a new one.
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

// Release ends the lease of a namespace, after the sandbox has been reaped. Release never
// blocks. The pool leases the namespace again only if no packet was ever sent inside, so that
// no socket, no tracked flow and no learned address is left. Otherwise the pool drops the
// namespace.
func (n *Network) Release(s *Namespace) { n.pool.Give(s) }

// Close removes the work of Open. Leased namespaces lose their way out.
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

// make makes a namespace with unrestricted egress, ready for lease.
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

// reserve chooses a free address. An address comes back as late as possible, since packets for
// its last owner may still be on their way.
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

// leased returns the namespace with an address, and its policy. Both are nil for an unknown
// address; the policy is nil if the namespace is not leased.
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

// Check returns a [BlockedError] if the policy allows a range that is always blocked.
func (n *Network) Check(p Policy) error {
	for _, d := range p.Allow {
		if !d.Prefix.IsValid() {
			continue
		}
		inside := func(q netip.Prefix) bool { return q.Bits() <= d.Prefix.Bits() && q.Contains(d.Prefix.Addr()) }
		if slices.ContainsFunc(blocked, inside) && !slices.ContainsFunc(n.cfg.AllowPrivate, inside) {
			return &BlockedError{d}
		}
	}
	return nil
}

// reachable reports whether the operator's rules let a sandbox reach a.
func (n *Network) reachable(a netip.Addr) bool {
	return outward.Within(n.cfg.AllowPrivate, a) || !outward.Within(blocked, a)
}
