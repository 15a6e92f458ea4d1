package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/internal/linux"
)

// keepLost is how long lists show lost nodes.
const keepLost = time.Hour

// watchNodes follows the Info of all nodes.
func (n *Node) watchNodes() {
	n.watch(func() jetstream.KeyValue { return n.nodes }, func(e jetstream.KeyValueEntry) {
		i, err := decodeInfo(e.Value())
		switch {
		case e.Operation() != jetstream.KeyValuePut:
			n.mu.Lock()
			if m := n.view[e.Key()]; m != nil { // the node has stopped and removed the key
				m.lose()
				delete(n.view, e.Key())
			}
			n.mu.Unlock()
		case err != nil || i.Name != e.Key():
			n.cfg.Log.Warn("cluster: unreadable record of a node", "node", e.Key(), "error", err)
		default:
			n.see(i)
		}
	}, nil)
}

func (n *Node) see(i Info) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.view[i.Name]
	if m == nil || m.gone || m.Boot != i.Boot {
		if m != nil {
			m.lose() // requests under way ended with the process
		}
		m = &member{lost: make(chan struct{})}
		n.view[i.Name] = m
	}
	m.Info, m.seen, m.mute = i, linux.Boottime(), 0
}

// loseSilent marks a peer as lost after a TTL of silence and at least beats looks. The looks
// count because after a pause of this process (SIGSTOP, a suspended machine) peers only seem
// silent, and still run the requests forwarded to them.
func (n *Node) loseSilent(now time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, m := range n.view {
		silent := now - m.seen
		m.mute++
		if silent >= n.cfg.TTL && m.mute >= beats && !m.gone && name != n.cfg.Name {
			n.cfg.Log.Warn("cluster: node lost", "node", name)
			m.lose()
		}
		if silent > keepLost {
			delete(n.view, name)
		}
	}
}

// Nodes returns all known nodes, sorted by name.
func (n *Node) Nodes() []Member {
	self := n.info()
	partitioned := n.partitioned()
	n.mu.Lock()
	defer n.mu.Unlock()
	if partitioned {
		self.State = StatePartitioned
	}
	out := []Member{{Info: self, Self: true}}
	for _, name := range slices.Sorted(maps.Keys(n.view)) {
		m := n.view[name]
		if name == n.cfg.Name {
			continue
		}
		shown := Member{Info: m.Info, Seen: linux.Boottime() - m.seen}
		switch {
		case partitioned:
			shown.State = StateUnknown
		case m.gone:
			shown.State = StateLost
		}
		out = append(out, shown)
	}
	slices.SortFunc(out, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Drain makes a node take no new work until Undrain, even after a restart. Work under way
// continues. Errors: ErrNoNode, ErrPartitioned.
func (n *Node) Drain(ctx context.Context, node string) error {
	if err := n.reachable(); err != nil {
		return fmt.Errorf("drain %s: %w", node, err)
	}
	n.mu.Lock()
	known := n.view[node] != nil || node == n.cfg.Name
	n.mu.Unlock()
	if !known {
		return fmt.Errorf("drain %s: %w", node, ErrNoNode)
	}
	if _, err := n.table.Put(ctx, keyDrain+node, []byte(n.cfg.Name)); err != nil {
		return fmt.Errorf("drain %s: %w: %w", node, ErrPartitioned, err)
	}
	return nil
}

// Undrain ends Drain, also for a node that is down. Errors: ErrNoNode if the node is not drained,
// ErrPartitioned.
func (n *Node) Undrain(ctx context.Context, node string) error {
	if err := n.reachable(); err != nil {
		return fmt.Errorf("undrain %s: %w", node, err)
	}
	if !ValidName(node) {
		return fmt.Errorf("undrain %s: %w", node, ErrNoNode)
	}
	_, err := n.table.Get(ctx, keyDrain+node)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return fmt.Errorf("undrain %s: %w is drained", node, ErrNoNode)
	}
	if err == nil {
		err = n.table.Purge(ctx, keyDrain+node)
	}
	if err != nil {
		return fmt.Errorf("undrain %s: %w: %w", node, ErrPartitioned, err)
	}
	return nil
}

// decodeInfo decodes and checks the Info of a peer. Unknown fields are ignored.
func decodeInfo(raw []byte) (Info, error) {
	var i Info
	if err := json.Unmarshal(raw, &i); err != nil {
		return i, err
	}
	if !ValidName(i.Name) || i.Protocol < 1 || i.Identity == "" || i.Boot == "" {
		return i, errors.New("no name, protocol or identity")
	}
	return i, nil
}

// mine returns the node's own Info as JSON.
func (n *Node) mine() []byte {
	raw, err := json.Marshal(n.info())
	if err != nil { // strings and numbers always encode
		panic(err)
	}
	return raw
}

func (n *Node) info() Info {
	i := Info{
		Protocol: n.cfg.protocol, Name: n.cfg.Name, Identity: n.identity, Boot: n.boot, Version: n.cfg.Version, Address: n.cfg.Address,
		Memory: freeMemory(), State: StateReady, Lacking: n.catalogue.lacking(),
	}
	for _, f := range n.engine.Functions() {
		i.Instances += f.Instances
		i.Busy += f.Busy
		if f.Busy < f.Instances && len(i.Warm) < warmMost {
			i.Warm = append(i.Warm, f.Name)
		}
	}
	i.Busy += n.underWay()
	if n.isDraining() {
		if i.State = StateDraining; i.Busy == 0 {
			i.State = StateDrained
		}
	}
	return i
}

// freeMemory returns MemAvailable of /proc/meminfo (proc(5)) in bytes, or 0 if unknown.
func freeMemory() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		if f := bytes.Fields(s.Bytes()); len(f) > 1 && string(f[0]) == "MemAvailable:" {
			kb, err := strconv.ParseInt(string(f[1]), 10, 64)
			if err == nil {
				return kb << 10
			}
		}
	}
	return 0
}

// beats is how often a node renews the lease within a TTL.
const beats = 4
