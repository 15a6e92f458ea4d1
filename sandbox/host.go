package sandbox

import (
	"os"

	"github.com/fre-engine/fre/sandbox/egress"
	"github.com/fre-engine/fre/sandbox/netns"
)

// Host starts sandboxes. Its methods are safe for concurrent use.
type Host struct {
	shared
	cfg      Config
	program  *os.File // fre-spawner
	devices  *os.File // a mount of /dev without a path on the host
	networks *netns.Pool
	wayOut   wayOut
	tenants  tenants
	layers   layers
	spawners spawners
	parked   *parkedSandboxes
	admitted chan struct{} // one token for each start in progress
}

// Parked counts the sandboxes parked now.
func (h *Host) Parked() ParkedStats { return h.parked.stats() }

// Cgroups returns the number of cgroups, leased or ready.
func (h *Host) Cgroups() (int, error) { return h.cgroups.Count() }

// CheckNetwork returns nil if the host can start sandboxes with network n and policy p; else
// the error names the remedy.
func (h *Host) CheckNetwork(n Network, p egress.Policy) error {
	if n != NetworkEgress {
		return nil
	}
	network, err := h.wayOut.egress()
	if err != nil {
		return err
	}
	return network.Check(p)
}
