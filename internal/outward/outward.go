// Package outward dials on behalf of tenants, who name registries, repositories and callbacks.
// Tenants may choose an address, but must not reach this host and its networks through the
// engine. Package outward checks the resolved address at the time of the connection, so neither
// a redirect nor a changed DNS name evades the check.
//
// A refusal does not tell the address. No packet is sent, so a tenant cannot learn which ports
// are open. A name that does not exist gets the same refusal, so a tenant cannot learn which
// names the host's own resolver knows. Package outward imports nothing of FRE.
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

	"github.com/fre-engine/fre/failure"
)

// Special are the ranges outside of the public internet: the IANA special-purpose registries of
// RFC 6890, without the ranges for documentation, which no host uses. Special also has the
// addresses at which clouds serve a machine's credentials.
var Special = special()

func special() []netip.Prefix {
	v4 := []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8",
		"168.63.129.16/32", // Azure's host agent; other clouds use link-local or private addresses
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
		// The same addresses through a NAT64 gateway (RFC 6052).
		a := netip.MustParseAddr("64:ff9b::").As16()
		copy(a[12:], p.Addr().AsSlice())
		out = append(out, p, netip.PrefixFrom(netip.AddrFrom16(a), 96+p.Bits()))
	}
	for _, s := range v6 {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// documentation are ranges without servers.
var documentation = []netip.Prefix{
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"),
}

// Within reports whether one of the ranges contains a.
func Within(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Public reports whether a is an address of the public internet and not of this host.
func Public(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return a.IsGlobalUnicast() && !a.IsPrivate() && !Within(Special, a) && !Within(documentation, a) && !own(a)
}

// own reports whether an interface of this host has the address; true if unknown.
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

// Rule allows destinations beside the public internet. The zero value allows none.
type Rule struct {
	Networks []netip.Prefix
	Hosts    []string // "host:port" of servers that the operator names
	Only     bool     // allow Networks and Hosts alone, not the public internet
	Setting  string   // setting in which the operator can name more; default "network.allow_private"
}

// RefusedError reports that the rule does not allow a server.
type RefusedError struct{ Host, Setting string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("connections to %s are not allowed: not a server of the public internet, and not listed in the engine's configuration (%s)", e.Host, e.Setting)
}

// Code returns [failure.Forbidden].
func (e *RefusedError) Code() failure.Code { return failure.Forbidden }

// Next returns the user's next step.
func (e *RefusedError) Next() string {
	return "ask the operator to list the server in the engine's configuration, or use a server of the public internet"
}

func (r *Rule) refuse(host string) error {
	return &RefusedError{host, cmp.Or(r.Setting, "network.allow_private")}
}

// Allows reports whether the rule allows connections to an address.
func (r *Rule) Allows(a netip.Addr) bool {
	return Within(r.Networks, a.Unmap().WithZone("")) || !r.Only && Public(a)
}

// names reports whether the configuration names a server.
func (r *Rule) names(address string) bool {
	return slices.Contains(r.Hosts, address)
}

// DialContext connects to an allowed address. The error is a *[RefusedError] if the rule
// refuses all addresses of the name, or if the name does not exist.
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

// refusal returns the error for a failed connection to host. The error omits the refused
// address, and is the same for a name that does not exist.
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

// Check refuses a URL if its server now resolves to an address that the rule does not allow.
func (r *Rule) Check(ctx context.Context, u *url.URL) error { return r.check(ctx, Address(u)) }

// check refuses a server that now resolves to a forbidden address. check accepts a name unknown
// here, since a proxy may know the name.
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

// Transport returns an [http.Transport] that obeys the rule. The transport uses the proxies in
// the engine's environment, which the operator names. The caller keeps the transport for
// requests under the same rule, since the transport reuses connections.
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

// through returns a rule that also names the proxies.
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

// proxy chooses the proxy for a URL. proxy checks a URL with the proxy's own address like any
// other, since the operator has named the proxy only for use as a proxy.
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

// Address returns the server of a URL as "host:port".
func Address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "ssh": "22", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

type ruleKey struct{}

// With returns a context for requests under the rule.
func With(ctx context.Context, r *Rule) context.Context {
	return context.WithValue(ctx, ruleKey{}, r)
}

// Of returns the rule of a context; nil means that the request may reach all that the engine
// can.
func Of(ctx context.Context) *Rule {
	r, _ := ctx.Value(ruleKey{}).(*Rule)
	return r
}
