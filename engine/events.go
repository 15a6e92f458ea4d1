package engine

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// ErrChangesLost: the engine no longer remembers all requested changes, or another engine
// counted them.
var ErrChangesLost = failure.New(failure.Gone, "the requested changes are too old", "read the list again (since=0 returns the generation), then follow changes after the list")

// Changes returns the record of changes to everything in lists (images, functions, sandboxes)
// and of further actions of clients: signals, pulls, prunes.
func (e *Engine) Changes() *store.Changes { return e.cfg.Store.Changes() }

// EventOptions select changes.
type EventOptions struct {
	Since  uint64 // changes after this generation
	Follow bool   // also new changes, until ctx ends or the engine stops
}

// Events calls emit for every change after a generation, oldest first. With Follow it continues
// with new changes until ctx ends or the engine stops, then returns nil. Errors: those of emit;
// ErrChangesLost if changes are missing, also because emit was too slow.
func (e *Engine) Events(ctx context.Context, o EventOptions, emit func(store.Change) error) error {
	since := o.Since
	for all := e.Changes(); ; {
		changes, ok := all.Since(since)
		if !ok {
			return fmt.Errorf("changes since generation %d: %w", since, ErrChangesLost)
		}
		for _, c := range changes {
			if err := emit(c); err != nil {
				return err
			}
			since = c.Generation
		}
		if !o.Follow {
			return nil
		}
		select {
		case <-all.After(since):
		case <-ctx.Done():
			return nil
		case <-e.closed:
			return nil
		}
	}
}

// changed returns the change for a function's deployment or removal.
func (f *function) changed(a store.ChangeAction) store.Change {
	return store.Change{Kind: store.ChangeFunction, Action: a, ID: f.name, Name: f.name, Attributes: map[string]string{
		"image": f.ref(), "digest": string(f.image.Digest), "tenant": f.config.Tenant, "revision": f.number(),
	}}
}

// changed returns a change of a sandbox. Its attributes are function, image and tenant, for a
// container also network and work, if set, and more: keys and values in turn.
func (b *box) changed(a store.ChangeAction, more ...string) store.Change {
	if b.attributes == nil {
		b.attributes = attributesOf("function", b.function, "image", b.image, "tenant", b.tenant, "network", string(b.network), "work", string(b.work))
	}
	attributes := b.attributes
	if len(more) > 0 {
		attributes = maps.Clone(attributes)
		maps.Copy(attributes, attributesOf(more...))
	}
	return store.Change{Kind: store.ChangeSandbox, Action: a, ID: b.id, Name: b.name, Attributes: attributes, Labels: b.labels}
}

// attributesOf makes a map of keys and values in turn. It omits empty values.
func attributesOf(pairs ...string) map[string]string {
	attributes := make(map[string]string, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			attributes[pairs[i]] = pairs[i+1]
		}
	}
	return attributes
}

// exited returns the changes at the end of a sandbox: exit status, lifetime in whole seconds,
// and a stop by a client.
func (b *box) exited(exit sandbox.ExitStatus) []store.Change {
	how := []string{"exit_code", strconv.Itoa(exit.Code), "seconds", strconv.Itoa(int(time.Since(b.created).Seconds()))}
	if exit.Signal != 0 {
		how = append(how, "signal", strconv.Itoa(exit.Signal))
	}
	if exit.OOMKilled {
		how = append(how, "oom", "true")
	}
	changes := []store.Change{b.changed(store.ActionExit, how...)}
	if b.stopped {
		changes = append(changes, b.changed(store.ActionStop))
	}
	return changes
}

// imageDone records an action on images. name is the name in the request, "" for the images' own
// names.
func (e *Engine) imageDone(a store.ChangeAction, name string, images ...*store.Image) {
	changes := make([]store.Change, len(images))
	for i, img := range images {
		changes[i] = store.Change{Kind: store.ChangeImage, Action: a, ID: string(img.Digest), Name: name, Config: img.Config}
		if name == "" && len(img.Names) > 0 {
			changes[i].Name = img.Names[0]
		}
	}
	e.Changes().Add(changes...)
}

// pruned records a prune of a kind of objects and the number of freed bytes.
func (e *Engine) pruned(kind store.ChangeKind, bytes int64) {
	e.Changes().Add(store.Change{Kind: kind, Action: store.ActionPrune, Attributes: map[string]string{"bytes": strconv.FormatInt(bytes, 10)}})
}
