package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/store"
)

// reference returns the registry name to push an image to. The digest is the tag. All images
// share one repository, which stores equal parts once.
func (n *Node) reference(digest store.Digest) string {
	return n.cfg.Registry + ":" + strings.ReplaceAll(string(digest), ":", "-")
}

// Prepare implements engine.Table: Prepare pushes the image to the registry.
func (n *Node) Prepare(ctx context.Context, img *store.Image) error {
	if err := n.reachable(); err != nil {
		return err
	}
	_, err := n.push(ctx, img.Digest)
	return err
}

// push pushes the missing parts of an image to the registry.
func (n *Node) push(ctx context.Context, digest store.Digest) (store.Digest, error) {
	remote, err := n.engine.Push(ctx, string(digest), n.reference(digest), nil, oci.PushOptions{NoSBOM: true}, nil)
	if err != nil {
		return "", fmt.Errorf("push the image for the other nodes: %w", err)
	}
	n.catalogue.mu.Lock()
	n.catalogue.pushed[digest] = remote.Digest
	n.catalogue.mu.Unlock()
	return remote.Digest, nil
}

// Commit implements engine.Table: Commit writes the record, unless a peer has written a record
// that is not in force here. Errors: ErrPartitioned, ErrConflict, ErrNameTaken.
func (n *Node) Commit(ctx context.Context, r *engine.Record) error { return n.commit(ctx, r, false) }

// commit is Commit. If first is set, an existing record of the function is a conflict.
func (n *Node) commit(ctx context.Context, r *engine.Record, first bool) error {
	if err := n.awaitTable(ctx); err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	w, err := n.rowOf(ctx, r)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(w)
	if err != nil {
		return err
	}
	if len(raw) > maxRecord {
		return fmt.Errorf("%s: the records of revisions take %d bytes, the limit is %d: remove revisions (fre function revisions --rm)", r.Name, len(raw), maxRecord)
	}
	revision, err := n.catalogue.replaced(r.Name)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	if first {
		revision = 0
	}
	revision, err = n.table.Update(ctx, keyFunction+r.Name, raw, revision)
	switch {
	case wrongRevision(err):
		return fmt.Errorf("%s: %w: check the function and try again", r.Name, ErrConflict)
	case err != nil:
		return fmt.Errorf("%s: %w: %w", r.Name, ErrPartitioned, err)
	}
	n.catalogue.mu.Lock()
	defer n.catalogue.mu.Unlock()
	now := n.catalogue.entryLocked(r.Name)
	if now.revision <= revision { // else a peer has written since
		now.record, now.remotes, now.revision, now.applied = *r, w.Remotes, revision, true
	}
	return nil
}

// awaitTable waits until the whole table was read, and returns the reason why the table cannot be
// written, if any.
func (n *Node) awaitTable(ctx context.Context) error {
	if err := n.reachable(); err != nil {
		return err
	}
	select {
	case <-n.caught:
		return nil
	case <-time.After(joinPatience):
		return fmt.Errorf("%w: the table of functions is still being read", ErrPartitioned)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// rowOf makes the row of a record, and pushes the missing images to the registry.
func (n *Node) rowOf(ctx context.Context, r *engine.Record) (row, error) {
	w := row{Protocol: n.cfg.protocol, Node: n.cfg.Name, Record: *r, Remotes: map[store.Digest]store.Digest{}}
	for i, digest := range r.Images {
		remote, ok := n.catalogue.remote(digest)
		var err error
		if !ok {
			remote, err = n.push(ctx, digest)
		}
		if err != nil && i < r.Serving { // images beyond Serving are only for rollbacks
			return w, err
		}
		if err == nil {
			w.Remotes[digest] = remote
		}
	}
	return w, nil
}

// replaced returns the revision of the row that a new row replaces, 0 without one. The row must be
// in force here, otherwise the change would be lost.
func (c *catalogue) replaced(name string) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.entries[name]
	switch {
	case old == nil:
		return 0, nil
	case old.applied:
		return old.revision, nil
	case old.err != nil:
		return 0, fmt.Errorf("%w, and the change failed on the present node (%v): try again on another node, or later (fre nodes)", ErrConflict, old.err) //nolint:errorlint // it is no fault of this change
	}
	return 0, fmt.Errorf("%w, and the node is still applying the change: try again", ErrConflict)
}

// follow reads the table and puts the rows in force. After the first complete read follow adds
// the functions that only this node has.
func (n *Node) follow() {
	n.watch(func() jetstream.KeyValue { return n.table }, n.read, func() {
		n.mu.Lock()
		first := true
		select {
		case <-n.caught:
			first = false
		default:
			close(n.caught)
		}
		n.mu.Unlock()
		if first {
			n.tasks.Go(n.contribute)
		}
	})
}

// read handles an entry of the table.
func (n *Node) read(e jetstream.KeyValueEntry) {
	if node, ok := strings.CutPrefix(e.Key(), keyDrain); ok {
		if node == n.cfg.Name {
			n.mu.Lock()
			n.draining = e.Operation() == jetstream.KeyValuePut
			n.mu.Unlock()
			n.cfg.Log.Info("cluster: drain", "node", node, "draining", e.Operation() == jetstream.KeyValuePut)
		}
		return
	}
	name, ok := strings.CutPrefix(e.Key(), keyFunction)
	if !ok {
		return
	}
	w := row{Record: engine.Record{Name: name, Removed: true}} // if the key was deleted by hand
	if e.Operation() == jetstream.KeyValuePut {
		var err error
		if w, err = decodeRow(name, e.Value(), n.cfg.protocol); err != nil {
			n.cfg.Log.Error("cluster: unreadable record of a function", "function", name, "error", err)
			return
		}
	}
	n.catalogue.mu.Lock()
	defer n.catalogue.mu.Unlock()
	now := n.catalogue.entryLocked(name)
	// Apply a row of the node's own too: the node may have stopped before the record reached the
	// store.
	if now.revision < e.Revision() {
		now.record, now.remotes, now.revision, now.applied, now.err = w.Record, w.Remotes, e.Revision(), false, nil
	}
	if now.working {
		now.wake()
		return
	}
	now.working = true
	n.tasks.Go(func() { n.work(now) })
}

// decodeRow decodes and checks a row from a peer.
func decodeRow(name string, raw []byte, protocol int) (row, error) {
	var w row
	if err := json.Unmarshal(raw, &w); err != nil {
		return w, err
	}
	if w.Record.Name != name {
		return w, fmt.Errorf("record of %q", w.Record.Name)
	}
	if w.Protocol < 1 || w.Protocol > protocol+1 {
		return w, fmt.Errorf("%w: node %s wrote protocol %d, and the present node knows %d", ErrSkew, w.Node, w.Protocol, protocol)
	}
	if w.Record.Serving < 0 || w.Record.Serving > len(w.Record.Images) {
		return w, errors.New("wrong number of images")
	}
	for _, d := range w.Remotes {
		if !validDigest(d) {
			return w, fmt.Errorf("%q is no digest", d)
		}
	}
	return w, nil
}

func validDigest(d store.Digest) bool {
	hex, ok := strings.CutPrefix(string(d), "sha256:")
	return ok && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == ""
}

// contribute writes the functions deployed here before the node joined. It skips functions that
// the table has, even as removed.
func (n *Node) contribute() {
	records, err := n.engine.Records()
	if err != nil {
		n.cfg.Log.Error("cluster: functions of before", "error", err)
		return
	}
	for _, r := range records {
		if n.catalogue.has(r.Name) {
			continue
		}
		if err := n.commit(n.live, r, true); err != nil && n.live.Err() == nil {
			n.cfg.Log.Warn("cluster: an earlier function of the node is not shared: deploy the function again", "function", r.Name, "error", err)
		}
	}
}
