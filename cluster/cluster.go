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
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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

// namePattern restricts names to one token of a NATS subject and of a key.
var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// ValidName reports whether name is valid for a node.
func ValidName(name string) bool { return namePattern.MatchString(name) }

const (
	bucketNodes   = "FRE_NODES"
	bucketTable   = "FRE_TABLE"
	bucketRecords = "FRE_ACCESS"
)

// Node is one engine of a cluster. A Node is safe for concurrent use.
type Node struct {
	cfg      Config
	identity string // of the state directory
	boot     string // of the process
	js       jetstream.JetStream
	engine   Engine // set by Join
	metrics  *metrics

	live  context.Context // until Close
	end   context.CancelFunc
	tasks sync.WaitGroup

	nodes, table, records jetstream.KeyValue // set once reachable, before joined is true

	recordsRead   atomic.Uint64 // records are taken up to this revision
	recordsCaught chan struct{} // closed once all records were read

	mu       sync.Mutex
	joined   bool
	beaten   time.Duration // linux.Boottime of the last renewal of the lease
	revision uint64        // of the lease
	taken    bool          // a peer has taken the name
	draining bool
	closing  bool
	foreign  int                           // requests of peers under way here
	given    int                           // requests under way at peers
	view     map[string]*member            // all nodes, including this Node
	entries  map[string]*entry             // of the table, by function
	pushed   map[store.Digest]store.Digest // local digest → digest at the registry
	caught   chan struct{}                 // closed once the whole table was read

	jobs sync.Map // *job by id: forwarded requests under way here
}

// New makes a node before its Join. Until then the node refuses deployments.
func New(cfg Config) (*Node, error) {
	if !ValidName(cfg.Name) {
		return nil, fmt.Errorf("node %q: a name has lower-case letters, digits and dashes, 63 at most", cfg.Name)
	}
	if _, err := oci.Host(cfg.Registry + ":tag"); err != nil || !strings.Contains(cfg.Registry, "/") {
		return nil, fmt.Errorf("registry %q: write HOST:PORT/REPOSITORY", cfg.Registry)
	}
	if cfg.TTL == 0 {
		cfg.TTL = 8 * time.Second
	}
	if cfg.Replicas == 0 {
		cfg.Replicas = 1
	}
	if cfg.protocol == 0 {
		cfg.protocol = Protocol
	}
	n := &Node{cfg: cfg, boot: rand.Text(), view: map[string]*member{}, entries: map[string]*entry{}, pushed: map[store.Digest]store.Digest{}, caught: make(chan struct{}), recordsCaught: make(chan struct{})}
	var err error
	if n.identity, err = identity(cfg.Dir); err != nil {
		return nil, err
	}
	if n.js, err = jetstream.New(cfg.Conn); err != nil {
		return nil, err
	}
	n.live, n.end = context.WithCancel(context.Background())
	n.metrics = newMetrics(n, cfg.Metrics)
	return n, nil
}

// identity returns the identity of a state directory. The identity survives restarts, so a node
// gets its name back at once after a crash.
func identity(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make %s: %w", dir, err)
	}
	path := filepath.Join(dir, "identity")
	b, err := os.ReadFile(path)
	if err == nil && len(b) > 0 {
		return string(b), nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	id := rand.Text()
	f, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(id)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return id, nil
}

// joinPatience is how long Join waits for NATS before the node starts partitioned.
const joinPatience = 5 * time.Second

// Join takes the node's name and starts to serve the cluster. If NATS cannot be reached, Join
// returns nil; the node is partitioned and joins later. Errors: ErrNameTaken, ErrSkew.
func (n *Node) Join(ctx context.Context, e Engine) error {
	n.engine = e
	wait, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	err := n.await(wait)
	if err == nil {
		err = n.join(ctx)
	}
	if errors.Is(err, ErrNameTaken) || errors.Is(err, ErrSkew) {
		return err
	}
	if err != nil {
		n.cfg.Log.WarnContext(ctx, "cluster: partitioned from the start; the node serves the functions in its store", "node", n.cfg.Name, "error", err)
	}
	if _, err := n.cfg.Conn.Subscribe(subject(n.cfg.Name, "invoke"), n.take); err != nil {
		return err
	}
	if _, err := n.cfg.Conn.Subscribe(subject(n.cfg.Name, "control.*"), n.control); err != nil {
		return err
	}
	n.tasks.Go(n.beat)
	n.tasks.Go(n.follow)
	n.tasks.Go(n.watchNodes)
	if n.cfg.Records != nil {
		n.tasks.Go(n.followRecords)
		if err == nil {
			n.awaitRecords(ctx)
		}
	}
	return nil
}

// await waits until the connection is up.
func (n *Node) await(ctx context.Context) error {
	for n.cfg.Conn.Status() != nats.CONNECTED {
		if !sleep(ctx, 20*time.Millisecond) {
			return ErrPartitioned
		}
	}
	return nil
}

// join makes missing buckets, checks the versions of the peers, and takes the name.
func (n *Node) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.TTL+joinPatience)
	defer cancel()
	nodes, err := n.bucket(ctx, jetstream.KeyValueConfig{Bucket: bucketNodes, Description: "FRE: present nodes", TTL: n.cfg.TTL})
	if err != nil {
		return err
	}
	table, err := n.bucket(ctx, jetstream.KeyValueConfig{Bucket: bucketTable, Description: "FRE: deployed functions", MaxValueSize: maxRecord})
	if err != nil {
		return err
	}
	var records jetstream.KeyValue
	if n.cfg.Records != nil {
		if records, err = n.bucket(ctx, jetstream.KeyValueConfig{Bucket: bucketRecords, Description: "FRE: tenants, tokens and secrets", MaxValueSize: maxRow}); err != nil {
			return err
		}
	}
	n.mu.Lock()
	n.nodes, n.table, n.records = nodes, table, records
	n.mu.Unlock()
	if err := n.checkSkew(ctx); err != nil {
		return err
	}
	if err := n.acquire(ctx, n.cfg.TTL); err != nil {
		return err
	}
	n.mu.Lock()
	n.joined, n.taken = true, false
	n.mu.Unlock()
	n.cfg.Log.InfoContext(ctx, "cluster joined", "node", n.cfg.Name, "registry", n.cfg.Registry)
	return nil
}

func (n *Node) bucket(ctx context.Context, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	kv, err := n.js.KeyValue(ctx, cfg.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		cfg.Replicas, cfg.History = n.cfg.Replicas, 1
		kv, err = n.js.CreateKeyValue(ctx, cfg)
	}
	return kv, err
}

// Close gives the name back after all requests to and from peers have ended, or ctx has.
func (n *Node) Close(ctx context.Context) error {
	n.mu.Lock()
	first := !n.closing
	n.closing = true
	n.mu.Unlock()
	if !first {
		return nil
	}
	for n.engine != nil && n.forwarded() > 0 && sleep(ctx, 10*time.Millisecond) {
	}
	n.end()
	n.tasks.Wait()
	n.mu.Lock()
	held, revision := n.joined && !n.taken && n.nodes != nil, n.revision
	n.mu.Unlock()
	var err error
	if held && n.cfg.Conn.Status() == nats.CONNECTED {
		patience := n.cfg.TTL // the lease lasts no longer by itself
		if ctx.Err() != nil {
			patience = time.Second
		}
		brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		err = n.giveUp(brief, revision) // on failure the lease expires by itself
	}
	n.cfg.Conn.Close()
	if err != nil {
		n.cfg.Log.DebugContext(ctx, "cluster: the lease expires without renewal", "error", err)
	}
	return nil
}

// Stopping reports whether load balancers should send clients to a peer.
func (n *Node) Stopping() bool { return n.engine.Stopping() || n.isDraining() }

// Front returns the engine.Front of a function, from the local engine or from the table.
func (n *Node) Front(name string) (engine.Front, bool) {
	if f, ok := n.engine.Front(name); ok {
		return f, true
	}
	qualified, _, asked := strings.Cut(name, "@")
	if e := n.entry(qualified); e != nil && !asked {
		return e.record.Front, true
	}
	return engine.Front{}, false
}

// Elsewhere reports whether a function that the local engine lacks may be at a peer. The answer
// is true if the table has the function, and also while the node is partitioned, drains or still
// reads the table.
func (n *Node) Elsewhere(name string) bool {
	if n.partitioned() || n.isDraining() {
		return true
	}
	select {
	case <-n.caught:
	default:
		return true
	}
	return n.entry(name) != nil
}

// Local runs events on the local engine only. While the node drains, Local has no room.
type Local struct{ n *Node }

// Local returns the invoker for the event queue.
func (n *Node) Local() Local { return Local{n} }

// Invoke runs an event on the local engine.
func (l Local) Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error) {
	return l.n.engine.Invoke(ctx, name, r)
}

// Function returns a function of the local engine.
func (l Local) Function(name string) (*engine.Function, error) { return l.n.engine.Function(name) }

// Room returns the engine's room, or 0 while the node drains.
func (l Local) Room(name string) int {
	if l.n.isDraining() {
		return 0
	}
	return l.n.engine.Room(name)
}

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
