// Package cluster joins several nodes into one FRE. A node is an engine. The nodes, peers of each
// other, share a NATS cluster and an OCI registry. There is no scheduler and no leader:
//
//	KV_FRE_NODES   NAME              the lease of a node's name, and its state; every TTL/4
//	KV_FRE_TABLE   function.NAME     a deployed function, by compare-and-swap
//	               drain.NODE        the order to take no new work
//	KV_FRE_ACCESS  …                 tenants, tokens and secrets, for Records (records.go)
//	fre.node.NAME.invoke             requests from a peer without room (forward.go)
//
// A node with a new deployment pushes the image to the registry, then writes the record. All
// nodes watch the table, pull missing images and put the records in force. The order of writes in
// the table is the truth for every node in reach of NATS. A node out of reach is partitioned: it
// serves the functions it has, reports the partition, and refuses deployments.
//
// [Node] is the one type with behaviour. A Node is an engine.Table, the invoker of a gateway, and
// by Node.Local the invoker of the event queue. The package knows no HTTP.
//
// Leases expire by the server's clock. A node measures silence by the clock since boot
// (linux.Boottime): a jump of the wall clock has no effect, and time in suspend counts.
package cluster

import (
	"context"
	"log/slog"
	"regexp"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/store"
)

// Protocol is the version of the protocol between nodes. Versions that differ by one are
// compatible, to upgrade a cluster node by node.
const Protocol = 1

// Engine is the subset of *engine.Engine for a node.
type Engine interface {
	Function(name string) (*engine.Function, error)
	Functions() []*engine.Function
	Front(name string) (engine.Front, bool)
	Room(name string) int
	Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error)
	Stopping() bool

	Records() ([]*engine.Record, error)
	Apply(ctx context.Context, r *engine.Record) error
	Withdraw(ctx context.Context, name string) error

	Hold() (release func())
	Image(ref string) (*store.Image, error)
	Pull(ctx context.Context, ref, platform string, auth *oci.Auth, report func(image.Progress)) (*store.Image, oci.Remote, error)
	Push(ctx context.Context, ref, to string, auth *oci.Auth, o oci.PushOptions, report func(image.Progress)) (oci.Remote, error)
}

// Config wires a Node. Name, Registry, Dir, Conn and Log are required.
type Config struct {
	Name     string     // unique among the nodes
	Registry string     // HOST[:PORT]/REPOSITORY for the images of all nodes
	Dir      string     // holds the node's identity
	Conn     *nats.Conn // owned and closed by the Node
	Log      *slog.Logger

	Version  string                // of the program, for people
	Address  string                // of the gateway, for people
	Replicas int                   // of JetStream data; default 1
	TTL      time.Duration         // after this time of silence a node is lost; default 8 s
	Metrics  prometheus.Registerer // nil: none
	Records  Records               // nil: share functions only

	protocol int // default Protocol; tests set more values
}

// Errors of the package.
var (
	ErrNameTaken   = failure.New(failure.NameTaken, "another node has the name", "give each node a different name (cluster.node)")
	ErrSkew        = failure.New(failure.Unsupported, "nodes of too different versions", "")
	ErrPartitioned = failure.New(failure.Partitioned, "the node cannot reach the other nodes", "")
	ErrConflict    = failure.New(failure.Conflict, "another node made a change meanwhile", "")
	ErrNoNode      = failure.New(failure.NotFound, "no such node", "list nodes with fre nodes")
)

// namePattern restricts names to one token of a NATS subject and of a key.
var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// ValidName reports whether name is valid for a node.
func ValidName(name string) bool { return namePattern.MatchString(name) }

const (
	bucketNodes   = "FRE_NODES"
	bucketTable   = "FRE_TABLE"
	bucketRecords = "FRE_ACCESS"
)

// Records are rows of bytes by key, shared by all nodes beside functions, in a bucket of their
// own. The node delivers the rows of its peers; the owner of the records writes by [Node.Rows].
type Records interface {
	// Take puts a row in force. value is nil if the key was deleted by hand.
	Take(key string, value []byte, revision uint64)
	// Contribute writes rows missing from the bucket. The node calls Contribute each time after
	// it has read the whole bucket.
	Contribute(ctx context.Context) error
}

// maxRow is the largest row in bytes, below NATS's default limit of a message.
const maxRow = 768 << 10

const (
	keyFunction = "function."
	keyDrain    = "drain."

	maxRecord = 512 << 10 // bytes
)

// sleep waits for d, and returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// joinPatience is how long Join waits for NATS before the node starts partitioned.
const joinPatience = 5 * time.Second
