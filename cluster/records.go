package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Records are what nodes share beside functions: rows of bytes by key, in a bucket of their
// own. The node brings what others write; who has the records writes by [Node.Rows].
type Records interface {
	// Take puts a row in force; value is nil where somebody has deleted it by hand.
	Take(key string, value []byte, revision uint64)
	// Contribute is called whenever all of the bucket was taken, to write what it lacks.
	Contribute(ctx context.Context) error
}

// maxRow is how large one may be, in bytes: less than NATS takes of a message by default.
const maxRow = 768 << 10

// Rows writes records.
type Rows struct{ n *Node }

// Rows is what records are written by.
func (n *Node) Rows() Rows { return Rows{n} }

// Ready waits until all that was written before was taken here, so that a change begins
// with the newest. Errors: ErrPartitioned, ErrNameTaken.
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
		return fmt.Errorf("%w: bucket %s does not say how far it is", ErrPartitioned, bucketRecords)
	}
	last := b.StreamInfo().State
	for last.Msgs > 0 && n.recordsRead.Load() < last.LastSeq {
		if !sleep(ctx, 2*time.Millisecond) {
			return fmt.Errorf("%w: what they have written is being read", ErrPartitioned)
		}
	}
	return nil
}

// Write writes a row unless somebody has since that revision, 0 for never; then won is
// false. Errors: ErrPartitioned, ErrNameTaken.
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

// whileOpen is ctx until the node closes.
func (n *Node) whileOpen(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(n.live, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// followRecords takes what the bucket has and what comes, and has what is here alone written.
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
		if e.Revision() > n.recordsRead.Load() { // one goroutine writes it
			n.recordsRead.Store(e.Revision())
		}
		n.wakeLacking()
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

// contributeRecords has the bucket get what it lacks, after each time that it was read whole,
// again while it cannot be reached.
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
			n.cfg.Log.Warn("cluster: records of before are this node's alone", "error", err)
			if !errors.Is(err, ErrPartitioned) {
				break // nothing will be otherwise the next time
			}
			if !sleep(n.live, pause) {
				return
			}
			pause = min(2*pause, lastPause)
		}
	}
}

// wakeLacking has functions that could not be put in force be tried again: it may be a
// secret that they have lacked.
func (n *Node) wakeLacking() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.entries {
		if e.err != nil {
			e.wake()
		}
	}
}

// awaitRecords waits until the records were read whole, so that nothing that was taken back
// meanwhile is good for a moment yet.
func (n *Node) awaitRecords(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	select {
	case <-n.recordsCaught:
	case <-ctx.Done():
		n.cfg.Log.WarnContext(ctx, "cluster: tenants and tokens are those of before until the others' are read", "node", n.cfg.Name)
	}
}
