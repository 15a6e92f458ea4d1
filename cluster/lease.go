package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/internal/linux"
)

// acquire takes the name: at once if the name is free or this state directory had it before.
// Otherwise acquire waits a little longer than patience for the lease to expire. Errors:
// ErrNameTaken if the holder renews the lease or keeps it.
func (n *Node) acquire(ctx context.Context, patience time.Duration) error {
	var first uint64
	for until := time.Now().Add(patience + patience/4); ; {
		sent := linux.Boottime()
		revision, held, err := n.tryAcquire(ctx)
		switch {
		case err == nil:
			n.mu.Lock()
			n.revision, n.beaten = revision, sent
			n.mu.Unlock()
			return nil
		case errors.Is(err, jetstream.ErrKeyExists) || wrongRevision(err): // a peer was faster
			continue
		case !errors.Is(err, ErrNameTaken):
			return err
		}
		first = cmp.Or(first, held)
		if held != first || time.Now().After(until) {
			return err
		}
		if !sleep(ctx, patience/32) {
			return context.Cause(ctx)
		}
	}
}

// tryAcquire takes the name if nobody else holds the lease, and returns the lease's revision.
// ErrNameTaken if a peer holds the lease; held is then the revision of the peer's lease.
func (n *Node) tryAcquire(ctx context.Context) (revision, held uint64, err error) {
	e, err := n.nodes.Get(ctx, n.cfg.Name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		revision, err = n.nodes.Create(ctx, n.cfg.Name, n.mine())
		return revision, 0, err
	}
	if err != nil {
		return 0, 0, err
	}
	other, bad := decodeInfo(e.Value())
	if bad != nil || other.Identity != n.identity {
		return 0, e.Revision(), fmt.Errorf("%w: %s is at %s: give each node a different name (cluster.node)", ErrNameTaken, n.cfg.Name, cmp.Or(other.Address, "an unknown address"))
	}
	revision, err = n.nodes.Update(ctx, n.cfg.Name, n.mine(), e.Revision())
	return revision, 0, err
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
