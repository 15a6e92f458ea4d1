package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Policy says where one sandbox may go. The zero value is anywhere that the
// operator does not block.
type Policy struct {
	Allow []Destination // nothing else, unless empty
}

// String lists what is allowed, so that equal policies have equal strings.
func (p Policy) String() string {
	list := make([]string, len(p.Allow))
	for i, d := range p.Allow {
		list[i] = d.String()
	}
	return strings.Join(list, " ")
}

// Destination is a name or a range of addresses, and a port. Exactly one of Name
// and Prefix is set.
type Destination struct {
	Name   string       // lower case: "example.org", or "*.example.org" for every name below it
	Prefix netip.Prefix // masked
	Port   uint16       // of TCP and UDP; 0 for all
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

// covers says whether d lets name through, which is lower case without the final
// dot.
func (d Destination) covers(name string) bool {
	if below, ok := strings.CutPrefix(d.Name, "*"); ok {
		return len(name) > len(below) && strings.HasSuffix(name, below)
	}
	return d.Name != "" && d.Name == name
}

// ports returns those that name may be reached at, 0 for all; nothing where the
// policy does not let it through.
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

// BlockedError says that a policy names a range that the operator's rules block.
type BlockedError struct{ Destination Destination }

func (e *BlockedError) Error() string {
	return fmt.Sprintf("%s is no public address: the operator has to list it under network.allow_private in the engine's configuration", e.Destination)
}

// Check refuses a policy that allows what could never be reached ([BlockedError]).
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
