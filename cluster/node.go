package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/internal/linux"
)

// Node is one engine of a cluster. A Node is safe for concurrent use.
type Node struct {
	cfg       Config
	identity  string // of the state directory
	boot      string // of the process
	js        jetstream.JetStream
	engine    Engine // set by Join
	metrics   *metrics
	catalogue *catalogue

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
	foreign  int                // requests of peers under way here
	given    int                // requests under way at peers
	view     map[string]*member // all nodes, including this Node
	caught   chan struct{}      // closed once the whole table was read

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
	n := &Node{cfg: cfg, boot: rand.Text(), view: map[string]*member{}, catalogue: newCatalogue(), caught: make(chan struct{}), recordsCaught: make(chan struct{})}
	var err error
	if n.identity, err = identity(cfg.Dir); err != nil {
		return nil, err
	}
	if n.js, err = jetstream.New(cfg.Conn); err != nil {
		return nil, err
	}
	n.live, n.end = context.WithCancel(context.Background())
	n.metrics = newMetrics(cfg.Metrics, n.partitioned, n.catalogue.lacking)
	return n, nil
}

// identity returns the identity of a state directory. The identity survives restarts, so a node
// gets its name back at once after a crash.
func identity(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make %s: %w", dir, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	b, err := root.ReadFile("identity")
	if err == nil && len(b) > 0 {
		return string(b), nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	id := rand.Text()
	const written = "identity.new" // a crash may leave the file, and the next start overwrites it
	f, err := root.OpenFile(written, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(id)
	if err = cmp.Or(err, f.Sync(), f.Close()); err != nil {
		return "", err
	}
	return id, root.Rename(written, "identity")
}

// Stopping reports whether load balancers should send clients to a peer.
func (n *Node) Stopping() bool { return n.engine.Stopping() || n.isDraining() }

// Front returns the engine.Front of a function, from the local engine or from the table.
func (n *Node) Front(name string) (engine.Front, bool) {
	if f, ok := n.engine.Front(name); ok {
		return f, true
	}
	qualified, _, asked := strings.Cut(name, "@")
	if e := n.catalogue.find(qualified); e != nil && !asked {
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
	return n.catalogue.find(name) != nil
}

// partitioned reports whether peers cannot be reached, and so the lease is uncertain.
func (n *Node) partitioned() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.joined || n.taken || linux.Boottime()-n.beaten >= n.cfg.TTL
}

func (n *Node) isDraining() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.draining || n.closing
}

// underWay returns how many requests are under way to and from peers.
func (n *Node) underWay() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.foreign + n.given
}

// reachable returns nil, or the reason why the table cannot be written.
func (n *Node) reachable() error {
	n.mu.Lock()
	taken := n.taken
	n.mu.Unlock()
	switch {
	case taken:
		return ErrNameTaken
	case n.partitioned():
		return ErrPartitioned
	}
	return nil
}
