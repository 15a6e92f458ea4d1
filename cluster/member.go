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

// Info is how a node says that it is.
type Info struct {
	Protocol  int
	Name      string
	Identity  string // of its state directory
	Boot      string // of its process
	Version   string
	Address   string
	State     State
	Memory    int64    // bytes that are free
	Instances int      // live sandboxes of functions
	Busy      int      // events under way
	Warm      []string // functions with an instance that is free, the first of them
	Lacking   []string // functions of the table that it does not have, or not as they are there
}

// warmMost bounds what a node says of its functions.
const warmMost = 500

// member is another node as this one sees it.
type member struct {
	Info
	seen time.Duration // of linux.Boottime
	mute int           // times that loseSilent has looked since
	lost chan struct{} // closed when it is
	gone bool          // lost is closed
}

// Member is a node as lists show it.
type Member struct {
	Info
	Self bool
	Seen time.Duration // ago
}

// keepLost is how long lists show nodes that are lost.
const keepLost = time.Hour

// acquire takes the name: at once where nobody has it, or this state directory has had it
// before; else it waits for as long as a lease lasts, and gives up when the other renews it.
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
				return fmt.Errorf("%w: %s is at %s: give each node a name of its own (cluster.node)", ErrNameTaken, n.cfg.Name, cmp.Or(other.Address, "another place"))
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
		if !errors.Is(err, jetstream.ErrKeyExists) && !wrongRevision(err) { // else another was faster
			return err
		}
	}
}

// wrongRevision says whether a compare-and-swap found something else.
func wrongRevision(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}

// checkSkew refuses to be among nodes that do not understand this one.
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
			return fmt.Errorf("%w: what node %s says is not understood: %w", ErrSkew, key, err)
		}
		if d := i.Protocol - n.cfg.protocol; (d < -1 || d > 1) && i.Name != n.cfg.Name {
			return fmt.Errorf("%w: node %s (fre %s) speaks protocol %d, this one %d: upgrade by way of the versions between", ErrSkew, i.Name, i.Version, i.Protocol, n.cfg.protocol)
		}
	}
	return nil
}

// decodeInfo reads what another node wrote. Fields that a later version has added are left out.
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

// mine is what this node says of itself.
func (n *Node) mine() []byte {
	raw, err := json.Marshal(n.info())
	if err != nil { // of strings and numbers: never
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

// freeMemory is MemAvailable of /proc/meminfo (proc(5)), 0 where nobody can tell.
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

// beats is the number of times that a node renews its lease in a TTL.
const beats = 4

// beat renews the lease, and notices who is lost.
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
			n.cfg.Log.Warn("cluster: partitioned: what is here is served, nothing is deployed", "node", n.cfg.Name, "error", err)
		case was && !now:
			n.cfg.Log.Info("cluster: in reach of the others again", "node", n.cfg.Name)
		}
		was = now
	}
}

// renew has the lease last for another TTL, or takes it anew.
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
	// It has run out, or somebody else writes it.
	err = n.acquire(ctx, n.cfg.TTL/8)
	n.mu.Lock()
	was := n.taken
	n.taken = errors.Is(err, ErrNameTaken)
	now := n.taken
	n.mu.Unlock()
	if now && !was {
		n.cfg.Log.ErrorContext(ctx, "cluster: this node is none any more", "node", n.cfg.Name, "error", err)
	}
	return err
}

// partitioned says whether the others cannot be reached: nothing is known of the lease.
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

// forwarded is how many requests are under way between this node and others, either way.
func (n *Node) forwarded() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.foreign + n.given
}

// watchNodes follows what the others say of themselves.
func (n *Node) watchNodes() {
	n.watch(func() jetstream.KeyValue { return n.nodes }, func(e jetstream.KeyValueEntry) {
		i, err := decodeInfo(e.Value())
		switch {
		case e.Operation() != jetstream.KeyValuePut:
			n.mu.Lock()
			if m := n.view[e.Key()]; m != nil { // it has stopped, and says so
				m.lose()
				delete(n.view, e.Key())
			}
			n.mu.Unlock()
		case err != nil || i.Name != e.Key():
			n.cfg.Log.Warn("cluster: what a node says is not understood", "node", e.Key(), "error", err)
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
			m.lose() // what it had under way went with the process
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

// loseSilent marks a node as lost if this one has heard nothing of it for a TTL and for
// as many looks as a TTL has. After a pause of this process (SIGSTOP, a suspended machine)
// the others only seem silent, and go on with the requests that this node gave to them.
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

// watch calls visit with each entry of a bucket, and whole, unless nil, when all that was
// there is seen, until the node closes. It begins anew when the bucket is not reached.
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
	// After the connection was lost it would take the watcher ten seconds to begin anew.
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
				return errors.New("it has ended")
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

// Nodes are all that were heard of, by name.
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

// Drain has a node take nothing on, until Undrain; also over its restarts. What it has under
// way ends. Errors: ErrNoNode, ErrPartitioned.
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

// Undrain ends Drain, also for a node that is not there. Errors: ErrNoNode where nobody has
// drained it, ErrPartitioned.
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

// reachable is nil, or why the table cannot be written.
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
