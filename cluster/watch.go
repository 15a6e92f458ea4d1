package cluster

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

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
