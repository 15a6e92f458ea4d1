package cluster

import "time"

// State is the state of a node.
type State string

// States of a node.
const (
	StateReady       State = "ready"
	StateDraining    State = "draining"    // takes no new work; some work is under way
	StateDrained     State = "drained"     // takes no new work; none is under way
	StatePartitioned State = "partitioned" // cannot reach its peers; serves the functions it has
	StateLost        State = "lost"        // silent for a TTL
	StateUnknown     State = "unknown"     // the answering node is partitioned
)

// Info is a node's state as published to peers.
type Info struct {
	Protocol  int
	Name      string
	Identity  string // of the state directory
	Boot      string // of the process
	Version   string
	Address   string
	State     State
	Memory    int64    // free bytes
	Instances int      // live sandboxes of functions
	Busy      int      // events under way
	Warm      []string // functions with a free instance, at most warmMost
	Lacking   []string // functions of the table not in force on the node
}

// warmMost bounds the lists of functions in Info.
const warmMost = 500

// member is a node as seen from here.
type member struct {
	Info
	seen time.Duration // linux.Boottime
	mute int           // looks of loseSilent since then
	lost chan struct{} // closed when the node is lost
	gone bool          // lost is closed
}

func (m *member) lose() {
	if !m.gone {
		m.gone = true
		close(m.lost)
	}
}

// Member is a row in the list of nodes.
type Member struct {
	Info
	Self bool
	Seen time.Duration // time since the last message
}
