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

// Member is a row in the list of nodes.
type Member struct {
	Info
	Self bool
	Seen time.Duration // time since the last message
}

// keepLost is how long lists show lost nodes.
const keepLost = time.Hour

// acquire takes the name: at once if the name is free or this state directory had it before.
// Otherwise acquire waits a little longer than patience for the lease to expire. Errors:
// ErrNameTaken if the holder renews the lease or keeps it.
func (n *Node) acquire(ctx context.Context, patience time.Duration) error {
	var first uint64
	for until := time.Now().Add(patience + patience/4); ; {
		sent := linux.Boottime()
		e, err := n.nodes.Get(ctx, n.cfg.Name)
		var revision uint64
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
			revision, err = n.nodes.Create(ctx, n.cfg.Name, n.mine())
		case err == nil:
			other, bad := decodeInfo(e.Value())
			if bad == nil && other.Identity == n.identity {
				revision, err = n.nodes.Update(ctx, n.cfg.Name, n.mine(), e.Revision())
				break
			}
			if first == 0 {
				first = e.Revision()
			}
			if e.Revision() != first || time.Now().After(until) {
				return fmt.Errorf("%w: %s is at %s: give each node a different name (cluster.node)", ErrNameTaken, n.cfg.Name, cmp.Or(other.Address, "an unknown address"))
			}
			if !sleep(ctx, patience/32) {
				return context.Cause(ctx)
			}
			continue
		}
		if err == nil {
			n.mu.Lock()
			n.revision, n.beaten = revision, sent
			n.mu.Unlock()
			return nil
		}
		if !errors.Is(err, jetstream.ErrKeyExists) && !wrongRevision(err) { // else a peer was faster
			return err
		}
	}
}

// giveUp deletes the lease. The end of the node may have broken off a renewal that NATS has taken:
// then the lease has a later revision, and is deleted if its value is still this node's.
func (n *Node) giveUp(ctx context.Context, revision uint64) error {
	err := n.nodes.Delete(ctx, n.cfg.Name, jetstream.LastRevision(revision))
	if !wrongRevision(err) {
		return err
	}
	e, missing := n.nodes.Get(ctx, n.cfg.Name)
	if missing != nil {
		return missing
	}
	if i, bad := decodeInfo(e.Value()); bad != nil || i.Identity != n.identity || i.Boot != n.boot {
		return err // the lease of another process
	}
	return n.nodes.Delete(ctx, n.cfg.Name, jetstream.LastRevision(e.Revision()))
}

// wrongRevision reports whether a compare-and-swap found another revision.
func wrongRevision(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}

// checkSkew returns ErrSkew if the protocol of a peer is incompatible.
func (n *Node) checkSkew(ctx context.Context) error {
	keys, err := n.nodes.Keys(ctx)
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, key := range keys {
		e, err := n.nodes.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		i, err := decodeInfo(e.Value())
		if err != nil {
			return fmt.Errorf("%w: the record of node %s cannot be read: %w", ErrSkew, key, err)
		}
		if d := i.Protocol - n.cfg.protocol; (d < -1 || d > 1) && i.Name != n.cfg.Name {
			return fmt.Errorf("%w: node %s (fre %s) speaks protocol %d, the present node %d: upgrade through the versions between", ErrSkew, i.Name, i.Version, i.Protocol, n.cfg.protocol)
		}
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
		Memory: freeMemory(), State: StateReady, Lacking: n.lacking(),
	}
	for _, f := range n.engine.Functions() {
		i.Instances += f.Instances
		i.Busy += f.Busy
		if f.Busy < f.Instances && len(i.Warm) < warmMost {
			i.Warm = append(i.Warm, f.Name)
		}
	}
	i.Busy += n.forwarded()
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

// beat renews the lease and notices lost nodes.
func (n *Node) beat() {
	tick := time.NewTicker(n.cfg.TTL / beats)
	defer tick.Stop()
	was := false
	for {
		select {
		case <-tick.C:
		case <-n.live.Done():
			return
		}
		ctx, cancel := context.WithTimeout(n.live, n.cfg.TTL/2)
		err := n.renew(ctx)
		cancel()
		n.loseSilent(linux.Boottime())
		now := n.partitioned()
		switch {
		case n.live.Err() != nil:
		case now && !was:
			n.cfg.Log.Warn("cluster: partitioned: the node serves the functions in its store and refuses deployments", "node", n.cfg.Name, "error", err)
		case was && !now:
			n.cfg.Log.Info("cluster: connected again", "node", n.cfg.Name)
		}
		was = now
	}
}

// renew extends the lease by a TTL, takes an expired name again, or joins late.
func (n *Node) renew(ctx context.Context) error {
	n.mu.Lock()
	joined, revision, silent := n.joined, n.revision, linux.Boottime()-n.beaten
	n.mu.Unlock()
	if !joined {
		return n.join(ctx)
	}
	sent := linux.Boottime()
	revision, err := n.nodes.Update(ctx, n.cfg.Name, n.mine(), revision)
	if err == nil {
		n.mu.Lock()
		n.revision, n.beaten = revision, sent
		n.mu.Unlock()
		return nil
	}
	if !wrongRevision(err) && silent < n.cfg.TTL {
		return err
	}
	// The lease has expired, or a peer writes it.
	err = n.acquire(ctx, n.cfg.TTL/8)
	n.mu.Lock()
	was := n.taken
	n.taken = errors.Is(err, ErrNameTaken)
	now := n.taken
	n.mu.Unlock()
	if now && !was {
		n.cfg.Log.ErrorContext(ctx, "cluster: the node lost its name to another node", "node", n.cfg.Name, "error", err)
	}
	return err
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

// forwarded returns how many requests are under way to and from peers.
func (n *Node) forwarded() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.foreign + n.given
}

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

func (m *member) lose() {
	if !m.gone {
		m.gone = true
		close(m.lost)
	}
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

// watch calls visit with each entry of a bucket, and whole, unless nil, once all present entries
// were visited. It runs until the node closes, and starts again after an error.
func (n *Node) watch(bucket func() jetstream.KeyValue, visit func(jetstream.KeyValueEntry), whole func()) {
	for n.live.Err() == nil {
		n.mu.Lock()
		kv := bucket()
		n.mu.Unlock()
		if kv != nil {
			if err := n.watchOnce(kv, visit, whole); err != nil && n.live.Err() == nil {
				n.cfg.Log.Debug("cluster: watch", "bucket", kv.Bucket(), "error", err)
			}
		}
		sleep(n.live, min(time.Second, n.cfg.TTL/8))
	}
}

func (n *Node) watchOnce(kv jetstream.KeyValue, visit func(jetstream.KeyValueEntry), whole func()) error {
	w, err := kv.WatchAll(n.live)
	if err != nil {
		return err
	}
	defer w.Stop() //nolint:errcheck // it ends with the connection too
	// After a lost connection the watcher itself would take ten seconds to restart.
	connections := n.cfg.Conn.Stats().Reconnects
	look := time.NewTicker(n.cfg.TTL / 16)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if n.cfg.Conn.Stats().Reconnects != connections {
				return errors.New("the connection was lost")
			}
		case e, ok := <-w.Updates():
			switch {
			case !ok:
				return errors.New("the watch ended")
			case e != nil:
				visit(e)
			case whole != nil:
				whole()
			}
		case <-n.live.Done():
			return nil
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
