package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/internal/lazyregexp"
)

// NetworkMode says which network a sandbox has.
type NetworkMode string

// The network modes.
const (
	NetworkNone   NetworkMode = "none"   // loopback only
	NetworkEgress NetworkMode = "egress" // out to the public internet
	NetworkHost   NetworkMode = "host"   // the host's own, if the operator allows it
)

// Network is what a sandbox can reach. YAML and JSON have only the mode if no other field is set.
type Network struct {
	Mode  NetworkMode
	Allow []string // with egress: the only destinations, in [ParseDestination]'s syntax; empty: all public ones

	// LendConnection gives the function its clients' connections, for long answers. They are
	// sockets in the host's network, so the operator must allow it.
	LendConnection bool
}

// MarshalJSON implements [json.Marshaler].
func (n Network) MarshalJSON() ([]byte, error) {
	if len(n.Allow) == 0 && !n.LendConnection {
		return json.Marshal(n.Mode)
	}
	return json.Marshal(networkObject(n))
}

// UnmarshalJSON also reads configurations of older images, which have only the mode.
func (n *Network) UnmarshalJSON(b []byte) error {
	*n = Network{}
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &n.Mode)
	}
	return json.Unmarshal(b, (*networkObject)(n))
}

type networkObject struct {
	Mode           NetworkMode `json:"mode"`
	Allow          []string    `json:"allow,omitempty"`
	LendConnection bool        `json:"lend_connection,omitempty"`
}

// Destination is one entry of an allow-list. Exactly one of Name and Prefix is set.
type Destination struct {
	Name   string       // lower case: "example.org", or "*.example.org" for all names below
	Prefix netip.Prefix // masked
	Port   uint16       // of TCP and UDP; 0 for all
}

// maxAllow bounds an allow-list, because its ranges are kernel objects of each sandbox.
const maxAllow = 64

// destinationPattern checks as much as a pattern can; the schema repeats it.
var destinationPattern = lazyregexp.New(`^[A-Za-z0-9_.*:/\[\]-]{1,280}$`)

var domainPattern = lazyregexp.New(`^(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

// ParseDestination reads NAME, *.NAME, ADDRESS or ADDRESS/BITS, each alone or with :PORT. IPv6
// stands in brackets before a port.
func ParseDestination(s string) (Destination, error) {
	if !destinationPattern.MatchString(s) {
		return Destination{}, errors.New(`write a name such as "example.org" or "*.example.org", or a range such as "198.51.100.0/24", with ":443" appended for a single port; write names outside ASCII as xn--…`)
	}
	where, port := s, ""
	if i := strings.LastIndexByte(s, ':'); i >= 0 && (strings.Count(s, ":") == 1 || s[i-1] == ']') {
		where, port = s[:i], s[i+1:]
	}
	var d Destination
	if port != "" || where != s {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || port[0] == '0' {
			return Destination{}, fmt.Errorf("port %q is not a number from 1 to 65535", port)
		}
		d.Port = uint16(n)
	}
	if inner, ok := strings.CutPrefix(where, "["); ok {
		inner, closed := strings.CutSuffix(inner, "]")
		if !closed || !strings.Contains(inner, ":") {
			return Destination{}, fmt.Errorf("%q: brackets hold an IPv6 address or range", where)
		}
		where = inner
	}
	if name := strings.ToLower(where); !strings.Contains(where, "/") && len(name) <= 253 && domainPattern.MatchString(name) {
		d.Name = name
		return d, nil
	}
	var err error
	if strings.Contains(where, "/") {
		d.Prefix, err = netip.ParsePrefix(where)
	} else {
		var a netip.Addr
		if a, err = netip.ParseAddr(where); err == nil {
			d.Prefix = netip.PrefixFrom(a, a.BitLen())
		}
	}
	switch {
	case err != nil:
		return Destination{}, fmt.Errorf("%q is neither a name nor an address or range of addresses", where)
	case d.Prefix.Addr().Is4In6():
		return Destination{}, fmt.Errorf("%q: write the plain IPv4 address", where)
	case d.Prefix != d.Prefix.Masked():
		return Destination{}, fmt.Errorf("%q has bits beyond the prefix length: write %s", where, d.Prefix.Masked())
	}
	return d, nil
}

// Check refuses a network that no template can have, in an image from elsewhere.
func (n Network) Check() error {
	switch {
	case n.Mode != "" && n.Mode != NetworkNone && n.Mode != NetworkEgress && n.Mode != NetworkHost:
		return fmt.Errorf("network %q is unknown", n.Mode)
	case len(n.Allow) > maxAllow || len(n.Allow) > 0 && n.Mode != NetworkEgress:
		return fmt.Errorf("network.allow has %d entries for the mode %s", len(n.Allow), n.Mode)
	}
	for _, s := range n.Allow {
		if _, err := ParseDestination(s); err != nil {
			return fmt.Errorf("network.allow: %w", err)
		}
	}
	return nil
}
