package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

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

// Close gives the name back after all requests to and from peers have ended, or ctx has.
func (n *Node) Close(ctx context.Context) error {
	n.mu.Lock()
	first := !n.closing
	n.closing = true
	n.mu.Unlock()
	if !first {
		return nil
	}
	for n.engine != nil && n.underWay() > 0 && sleep(ctx, 10*time.Millisecond) {
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
