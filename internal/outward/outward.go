// Package outward dials for those who may choose an address but may not reach this
// host and its networks by the engine: tenants, who name registries, repositories and
// callbacks. It decides by the address that a name has led to, when it connects, so
// that neither a redirect nor a name that changes leads past it.
//
// A refusal says nothing of the address but that it is refused: no packet is sent, so
// that nobody learns which ports are open. A name that does not exist is refused in the same
// words, so that nobody learns which names the host's own resolver knows. Imports nothing of
// FRE.
package outward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// Special are the ranges that are not the public internet (the IANA special-purpose
// registries of RFC 6890, without the ranges for documentation, which are nobody's),
// and what clouds answer with a machine's credentials from.
var Special = special()

func special() []netip.Prefix {
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
}

// documentation are ranges that no server has.
var documentation = []netip.Prefix{
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"),
}

// Within says whether one of the ranges holds a.
func Within(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Public says whether a is an address of the public internet, and not of this host.
func Public(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return a.IsGlobalUnicast() && !a.IsPrivate() && !Within(Special, a) && !Within(documentation, a) && !own(a)
}

// own says whether an interface of this host has the address; true where that is not known.
func own(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(all, func(of net.Addr) bool {
		n, ok := of.(*net.IPNet)
		if !ok {
			return false
		}
		mine, ok := netip.AddrFromSlice(n.IP)
		return ok && mine.Unmap() == a
	})
}

// Rule says what may be connected to beside the public internet. The zero value allows
// nothing else.
type Rule struct {
	Networks []netip.Prefix
	Hosts    []string // "host:port" of servers that the operator names
	Only     bool     // these alone, not the public internet
	Setting  string   // where the operator names more; default "network.allow_private"
}

// RefusedError says that a server may not be connected to.
type RefusedError struct{ Host, Setting string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s may not be connected to: it is no server of the public internet, and the engine's configuration does not name it (%s)", e.Host, e.Setting)
}

func (r *Rule) refuse(host string) error {
	return &RefusedError{host, cmp.Or(r.Setting, "network.allow_private")}
}

// Allows says whether a server's address may be connected to.
func (r *Rule) Allows(a netip.Addr) bool {
	return Within(r.Networks, a.Unmap().WithZone("")) || !r.Only && Public(a)
}

// names says whether the configuration names a server.
func (r *Rule) names(address string) bool {
	return slices.Contains(r.Hosts, address)
}

// DialContext connects to an address that may be connected to: a *[RefusedError] where
// all that the name leads to are refused, or the name does not exist.
func (r *Rule) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	if !r.names(address) {
		d.ControlContext = func(_ context.Context, _, to string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(to)
			if err == nil && !r.Allows(at.Addr()) {
				err = r.refuse(host)
			}
			return err
		}
	}
	conn, err := d.DialContext(ctx, network, address)
	return conn, r.refusal(host, err)
}

// refusal returns the error of a connection to host that failed with err: without the address
// that was refused, and the same where host is a name that does not exist.
func (r *Rule) refusal(host string, err error) error {
	var refused *RefusedError
	var unknown *net.DNSError
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.As(err, &unknown) && unknown.IsNotFound:
		return r.refuse(host)
	}
	return err
}

// Check refuses a URL whose server may not be connected to, by what its name leads to now.
func (r *Rule) Check(ctx context.Context, u *url.URL) error { return r.check(ctx, Address(u)) }

// check refuses a server by what its name leads to now. A name that is unknown here may
// be known to a proxy.
func (r *Rule) check(ctx context.Context, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if r.names(address) {
		return nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil //nolint:nilerr // as the comment says
	}
	if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !r.Allows(a) }) {
		return r.refuse(host)
	}
	return nil
}

// Transport is an [http.Transport] by the rule, and by the environment's proxies, which
// the operator names. The caller keeps it for those whom the rule is for: it reuses
// connections.
func (r *Rule) Transport() *http.Transport {
	return r.transport(httpproxy.FromEnvironment())
}

func (r *Rule) transport(proxies *httpproxy.Config) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext, t.MaxIdleConnsPerHost = r.through(proxies).DialContext, 16
	choose := proxies.ProxyFunc()
	t.Proxy = func(q *http.Request) (*url.URL, error) { return r.proxy(q.Context(), choose, q.URL) }
	return t
}

// through is a rule that names the proxies too.
func (r *Rule) through(proxies *httpproxy.Config) *Rule {
	with := *r
	with.Hosts = slices.Clone(r.Hosts)
	for _, p := range []string{proxies.HTTPProxy, proxies.HTTPSProxy} {
		if u := parseProxy(p); u != nil {
			with.Hosts = append(with.Hosts, Address(u))
		}
	}
	return &with
}

// proxy chooses one for a URL; a URL that is the proxy's own address is refused, for the
// operator has named it for another use.
func (r *Rule) proxy(ctx context.Context, choose func(*url.URL) (*url.URL, error), to *url.URL) (*url.URL, error) {
	p, err := choose(to)
	if err != nil {
		return nil, err
	}
	address := Address(to)
	if p == nil || Address(p) == address {
		return nil, r.check(ctx, address)
	}
	return p, r.check(ctx, address)
}

func parseProxy(text string) *url.URL {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		u, err = url.Parse("http://" + text)
	}
	if err != nil || u.Host == "" {
		return nil
	}
	return u
}

// Address is a URL's server, "host:port".
func Address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "ssh": "22", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

type ruleKey struct{}

// With is a context for what somebody has asked for whom the rule is.
func With(ctx context.Context, r *Rule) context.Context {
	return context.WithValue(ctx, ruleKey{}, r)
}

// Of is the rule of a context; nil: who asked may reach whatever the engine does.
func Of(ctx context.Context) *Rule {
	r, _ := ctx.Value(ruleKey{}).(*Rule)
	return r
}
