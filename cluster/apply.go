package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/store"
)

// The pause before work tries an entry again.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 30 * time.Second
)

// work tries to put an entry in force until it succeeds or the node closes.
func (n *Node) work(e *entry) {
	pause := firstPause
	for {
		n.catalogue.mu.Lock()
		record, remotes, revision := e.record, e.remotes, e.revision
		n.catalogue.mu.Unlock()
		err := n.apply(&record, remotes)
		n.catalogue.mu.Lock()
		if same := e.revision == revision; same {
			e.applied, e.err = err == nil, err
			if err == nil || n.live.Err() != nil {
				e.working = false
				n.catalogue.mu.Unlock()
				return
			}
		} else {
			pause = firstPause
		}
		n.catalogue.mu.Unlock()
		if err == nil { // a newer row has come
			continue
		}
		n.cfg.Log.Warn("cluster: function not in force here", "function", record.Name, "error", err, "next_try", pause)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-e.kick:
		case <-n.live.Done():
		}
		t.Stop()
		pause = min(2*pause, lastPause)
	}
}

// apply pulls the missing images and puts the record in force.
func (n *Node) apply(r *engine.Record, remotes map[store.Digest]store.Digest) error {
	if r.Removed {
		return n.engine.Withdraw(n.live, r.Name)
	}
	defer n.engine.Hold()() // pulled images have no name
	for i, digest := range r.Images {
		if err := n.pull(digest, remotes[digest]); err != nil {
			if i < r.Serving {
				return err
			}
			n.cfg.Log.Warn("cluster: image of a revision without events not pulled", "function", r.Name, "image", digest, "error", err)
		}
	}
	return n.engine.Apply(n.live, r)
}

func (n *Node) pull(digest, remote store.Digest) error {
	_, err := n.engine.Image(string(digest))
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if remote == "" {
		return fmt.Errorf("image %s: no node pushed the image to the registry", digest)
	}
	img, _, err := n.engine.Pull(n.live, n.cfg.Registry+"@"+string(remote), "", nil, nil)
	if err != nil {
		return err
	}
	if img.Digest != digest {
		return fmt.Errorf("the registry has %s, but the table names %s", img.Digest, digest)
	}
	return nil
}
