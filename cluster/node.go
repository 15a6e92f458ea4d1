package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/store"
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
	n.metrics = newMetrics(cfg.Metrics, n.partitioned, n.lacking)
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

// entry returns the entry of a function, or nil if the table lacks the function or has it as
// removed.
func (n *Node) entry(name string) *entry {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.entries[name]; e != nil && !e.record.Removed {
		return e
	}
	return nil
}

// lacking returns the functions whose present row is not in force here, at most warmMost.
func (n *Node) lacking() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for _, name := range slices.Sorted(maps.Keys(n.entries)) {
		if !n.entries[name].applied && len(out) < warmMost {
			out = append(out, name)
		}
	}
	return out
}
