// Package cluster makes one FRE of several nodes: engines that share a NATS cluster and an
// OCI registry. There is no scheduler and no leader:
//
//	KV_FRE_NODES   NAME              a lease of that name and how its node is, every TTL/4
//	KV_FRE_TABLE   function.NAME     what is deployed, by compare-and-swap
//	               drain.NODE        that a node is to take nothing on
//	KV_FRE_ACCESS  …                 tenants, tokens, secrets, of whoever keeps them (records.go)
//	fre.node.NAME.invoke             requests that another node has no room for (forward.go)
//
// Whoever takes a deployment brings the image to the registry, then writes the record; all
// watch the table, pull what is missing and put it in force. The order of writes in the
// table is the truth wherever it can be asked. A node that cannot reach it is partitioned:
// it serves what it has, says so, and deploys nothing.
//
// [Node] is the one type with behaviour. It is an engine.Table, what a gateway invokes
// through, and what events are run by (Node.Local). It knows no HTTP.
//
// Leases run out by the server's time, and nodes measure how long they have heard nothing
// by the monotonic clock: a wall clock that jumps changes nothing.
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
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/store"
)

// Protocol is what this program speaks to other nodes. Those whose numbers are one apart
// understand each other, so that nodes are upgraded one by one.
const Protocol = 1

// Engine is what a node needs of *engine.Engine.
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
	Pull(ctx context.Context, ref, platform string, auth *oci.Auth, report func(image.Event)) (*store.Image, oci.Remote, error)
	Push(ctx context.Context, ref, to string, auth *oci.Auth, o oci.PushOptions, report func(image.Event)) (oci.Remote, error)
}

// Config wires a Node. Name, Registry, Dir, Conn and Log are required.
type Config struct {
	Name     string     // of this node; no other may have it
	Registry string     // HOST[:PORT]/REPOSITORY that all nodes push to and pull from
	Dir      string     // where the node keeps who it is
	Conn     *nats.Conn // the node's own, closed with it
	Log      *slog.Logger

	Version  string                // of the program, for people
	Address  string                // of the gateway, likewise
	Replicas int                   // of what is kept in JetStream; default 1
	TTL      time.Duration         // after how long without a word a node is lost; default 8 s
	Metrics  prometheus.Registerer // nil: none
	Records  Records               // nil: there are none beside functions

	protocol int // default Protocol; others in tests
}

// The faults of clusters.
var (
	ErrNameTaken   = errors.New("another node has this name")
	ErrSkew        = errors.New("nodes of too different versions")
	ErrPartitioned = errors.New("this node cannot reach the others")
	ErrConflict    = errors.New("another node has changed it meanwhile")
	ErrNoNode      = errors.New("no such node")
)

// State is how a node is.
type State string

// The states.
const (
	StateReady       State = "ready"
	StateDraining    State = "draining"    // takes nothing on, and has something under way
	StateDrained     State = "drained"     // has nothing under way any more
	StatePartitioned State = "partitioned" // cannot reach the others: serves what it has
	StateLost        State = "lost"        // nothing was heard of it for a TTL
	StateUnknown     State = "unknown"     // whoever is asked is partitioned itself
)

// namePattern is what nodes can be called: a token of subjects and a key.
var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// ValidName says whether a node can be called so.
func ValidName(name string) bool { return namePattern.MatchString(name) }

const (
	bucketNodes   = "FRE_NODES"
	bucketTable   = "FRE_TABLE"
	bucketRecords = "FRE_ACCESS"
)

// Node is one engine among others. It is safe for concurrent use.
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

	nodes, table, records jetstream.KeyValue // set once they are reached, before joined is true

	recordsRead   atomic.Uint64 // revision that the records are taken up to
	recordsCaught chan struct{} // closed once they were read whole

	mu       sync.Mutex
	joined   bool
	beaten   time.Duration // of linux.Boottime, when the lease was last renewed
	revision uint64        // of the lease
	taken    bool          // another node has the name by now
	draining bool
	closing  bool
	foreign  int                           // requests of other nodes' under way here
	given    int                           // requests of this node's under way at others
	view     map[string]*member            // the others, and this one
	entries  map[string]*entry             // of the table, by function
	pushed   map[store.Digest]store.Digest // what the registry calls images of here
	caught   chan struct{}                 // closed once the table was read whole

	jobs sync.Map // *job by id: forwarded requests that this node runs
}

// New makes a node that has not joined: until then it refuses deployments.
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

// identity is who a state directory is, over restarts: a node that died has its name back
// at once.
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

// joinPatience is how long Join waits for NATS before the node begins partitioned.
const joinPatience = 5 * time.Second

// Join takes the node's name and begins to work for the others. Where NATS is not there the
// node is partitioned, and joins when it is. Errors: ErrNameTaken, ErrSkew.
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
		n.cfg.Log.WarnContext(ctx, "cluster: partitioned from the start; what is here is served", "node", n.cfg.Name, "error", err)
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

// await waits for the connection.
func (n *Node) await(ctx context.Context) error {
	for n.cfg.Conn.Status() != nats.CONNECTED {
		if !sleep(ctx, 20*time.Millisecond) {
			return ErrPartitioned
		}
	}
	return nil
}

// join makes the buckets where there are none, looks at who is there, and takes the name.
func (n *Node) join(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.TTL+joinPatience)
	defer cancel()
	nodes, err := n.bucket(ctx, jetstream.KeyValueConfig{Bucket: bucketNodes, Description: "FRE: nodes that are there", TTL: n.cfg.TTL})
	if err != nil {
		return err
	}
	table, err := n.bucket(ctx, jetstream.KeyValueConfig{Bucket: bucketTable, Description: "FRE: what is deployed", MaxValueSize: maxRecord})
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

// Close gives the name back, after what others have asked for, and have been asked for, has
// ended or ctx has.
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
		brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		// Where it fails the lease runs out.
		err = n.nodes.Delete(brief, n.cfg.Name, jetstream.LastRevision(revision))
	}
	n.cfg.Conn.Close()
	if err != nil {
		n.cfg.Log.DebugContext(ctx, "cluster: the lease runs out by itself", "error", err)
	}
	return nil
}

// Stopping says whether clients are better served elsewhere: it is what load balancers ask.
func (n *Node) Stopping() bool { return n.engine.Stopping() || n.isDraining() }

// Front is what stands before a function's events, here or at another node.
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

// Elsewhere says of a function that this engine does not have whether it is in the table,
// or, while nobody can tell, might be.
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

// Local runs events here, as many as there is room for; none while the node drains.
type Local struct{ n *Node }

// Local is what the queue of events has them run by.
func (n *Node) Local() Local { return Local{n} }

// Invoke runs an event here.
func (l Local) Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error) {
	return l.n.engine.Invoke(ctx, name, r)
}

// Function is the engine's.
func (l Local) Function(name string) (*engine.Function, error) { return l.n.engine.Function(name) }

// Room is the engine's, and none while the node drains.
func (l Local) Room(name string) int {
	if l.n.isDraining() {
		return 0
	}
	return l.n.engine.Room(name)
}

// sleep waits; false says that ctx ended first.
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
