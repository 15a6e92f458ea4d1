package gateway

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/fre-engine/fre/httpserver"
)

// client is the sender of a request, as far as the gateway believes it.
type client struct {
	text    string // address, "" if none
	trusted bool   // the request came through a trusted proxy
	peer    string // address of the connection's other end
}

// clientOf follows the addresses recorded by trusted proxies, from the connection's own address
// backwards, to the first address that is not a trusted proxy.
func clientOf(x *httpserver.Exchange, proxies []netip.Prefix) client {
	at, err := netip.ParseAddrPort(x.RemoteAddr())
	if err != nil { // a Unix socket
		return client{}
	}
	addr := at.Addr().Unmap()
	c := client{peer: addr.String()}
	c.text = c.peer
	if len(proxies) == 0 || !within(addr, proxies) {
		return c
	}
	c.trusted = true
	for i := len(x.Fields) - 1; i >= 0; i-- {
		f := x.Fields[i]
		if http.CanonicalHeaderKey(string(f.Name)) != forwardedFor {
			continue
		}
		hops := strings.Split(string(f.Value), ",")
		for j := len(hops) - 1; j >= 0; j-- {
			hop, err := parseHop(hops[j])
			if err != nil { // not written by a trusted proxy
				return c
			}
			c.text = hop.String()
			if !within(hop, proxies) {
				return c
			}
		}
	}
	return c
}

// parseHop parses an address, with or without a port.
func parseHop(s string) (netip.Addr, error) {
	s = strings.TrimSpace(s)
	a, err := netip.ParseAddr(s)
	if err != nil {
		var at netip.AddrPort
		at, err = netip.ParseAddrPort(s)
		a = at.Addr()
	}
	return a.WithZone("").Unmap(), err
}

func within(a netip.Addr, ranges []netip.Prefix) bool {
	for _, p := range ranges {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
