package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fre-engine/fre/internal/outward"
)

// Policy restricts the destinations of one sandbox. The zero value allows all destinations that
// the operator does not block.
type Policy struct {
	Allow []Destination // only these, unless empty
}

// String lists the allowed destinations. Equal policies have equal strings.
func (p Policy) String() string {
	list := make([]string, len(p.Allow))
	for i, d := range p.Allow {
		list[i] = d.String()
	}
	return strings.Join(list, " ")
}

// Destination is a name or a range of addresses, and a port. Exactly one of Name and Prefix is
// set.
type Destination struct {
	Name   string       // lower case: "example.org", or "*.example.org" for all names below
	Prefix netip.Prefix // masked
	Port   uint16       // port of TCP and UDP; 0 for all
}

func (d Destination) String() string {
	where := d.Name
	if d.Prefix.IsValid() {
		where = d.Prefix.String()
	}
	if d.Port == 0 {
		return where
	}
	if d.Prefix.IsValid() && d.Prefix.Addr().Is6() {
		where = "[" + where + "]"
	}
	return fmt.Sprintf("%s:%d", where, d.Port)
}

// covers reports whether d allows a name, in lower case without the final dot.
func (d Destination) covers(name string) bool {
	if below, ok := strings.CutPrefix(d.Name, "*"); ok {
		return len(name) > len(below) && strings.HasSuffix(name, below)
	}
	return d.Name != "" && d.Name == name
}

// ports returns the allowed ports of a name, 0 for all; nil if the policy does not allow the
// name.
func (p Policy) ports(name string) []uint16 {
	if len(p.Allow) == 0 {
		return []uint16{0}
	}
	var out []uint16
	for _, d := range p.Allow {
		if d.covers(name) && !slices.Contains(out, d.Port) {
			out = append(out, d.Port)
		}
	}
	return out
}

// BlockedError reports that a policy names a range blocked by the operator's rules.
type BlockedError struct{ Destination Destination }

func (e *BlockedError) Error() string {
	return fmt.Sprintf("%s is not a public address: the operator must list the address under network.allow_private in the engine's configuration", e.Destination)
}

// blocked are the destinations that no sandbox reaches unless the operator allows them.
var blocked = outward.Special
