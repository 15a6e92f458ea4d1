package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Rows writes records.
type Rows struct{ n *Node }

// Rows returns the writer of records.
func (n *Node) Rows() Rows { return Rows{n} }

// Ready waits until all rows written so far are in force here: a change must start from the
// newest rows. Errors: ErrPartitioned, ErrNameTaken.
func (r Rows) Ready(ctx context.Context) error {
	n := r.n
	if err := n.reachable(); err != nil {
		return err
	}
	ctx, done := n.whileOpen(ctx)
	defer done()
	status, err := n.records.Status(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPartitioned, err)
	}
	b, ok := status.(*jetstream.KeyValueBucketStatus)
	if !ok {
		return fmt.Errorf("%w: bucket %s reports no state", ErrPartitioned, bucketRecords)
	}
	last := b.StreamInfo().State
	for last.Msgs > 0 && n.recordsRead.Load() < last.LastSeq {
		if !sleep(ctx, 2*time.Millisecond) {
			return fmt.Errorf("%w: records of other nodes are still being read", ErrPartitioned)
		}
	}
	return nil
}

// Write writes a row if its revision in the bucket is still revision; 0 means a new row. won is
// false if a peer has written the row meanwhile. Errors: ErrPartitioned, ErrNameTaken.
func (r Rows) Write(ctx context.Context, key string, value []byte, revision uint64) (now uint64, won bool, err error) {
	if err := r.n.reachable(); err != nil {
		return 0, false, err
	}
	ctx, done := r.n.whileOpen(ctx)
	defer done()
	now, err = r.n.records.Update(ctx, key, value, revision)
	switch {
	case wrongRevision(err):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("%w: %w", ErrPartitioned, err)
	}
	return now, true, nil
}

// whileOpen returns a context that ends with ctx or with the node.
func (n *Node) whileOpen(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(n.live, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// followRecords takes the present and future rows of the bucket, and has missing rows written.
func (n *Node) followRecords() {
	whole := make(chan struct{}, 1)
	n.tasks.Go(func() { n.contributeRecords(whole) })
	n.watch(func() jetstream.KeyValue { return n.records }, func(e jetstream.KeyValueEntry) {
		value := e.Value()
		if e.Operation() != jetstream.KeyValuePut {
			value = nil
		} else if value == nil {
			value = []byte{}
		}
		n.cfg.Records.Take(e.Key(), value, e.Revision())
		if e.Revision() > n.recordsRead.Load() { // no other goroutine writes recordsRead
			n.recordsRead.Store(e.Revision())
		}
		n.catalogue.wakeLacking()
	}, func() {
		select {
		case <-n.recordsCaught:
		default:
			close(n.recordsCaught)
		}
		select {
		case whole <- struct{}{}:
		default:
		}
	})
}

// contributeRecords writes rows missing from the bucket, each time after the whole bucket was
// read. While the bucket cannot be reached, contributeRecords tries again.
func (n *Node) contributeRecords(whole <-chan struct{}) {
	pause := firstPause
	for {
		select {
		case <-whole:
		case <-n.live.Done():
			return
		}
		for {
			err := n.cfg.Records.Contribute(n.live)
			if err == nil || n.live.Err() != nil {
				pause = firstPause
				break
			}
			n.cfg.Log.Warn("cluster: earlier tenants and tokens are not shared with the cluster", "error", err)
			if !errors.Is(err, ErrPartitioned) {
				break // a retry would fail too
			}
			if !sleep(n.live, pause) {
				return
			}
			pause = min(2*pause, lastPause)
		}
	}
}

// awaitRecords waits until all records were read: a token or tenant revoked meanwhile must not be
// valid here for a moment.
func (n *Node) awaitRecords(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	select {
	case <-n.recordsCaught:
	case <-ctx.Done():
		n.cfg.Log.WarnContext(ctx, "cluster: the node uses its stored tenants and tokens until the cluster's records are read", "node", n.cfg.Name)
	}
}
