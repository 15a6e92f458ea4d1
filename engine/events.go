package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// ErrChangesLost: the changes asked for are not all remembered any more, or
// were counted by another engine.
var ErrChangesLost = errors.New("these changes are no longer remembered")

// Changes counts and remembers the changes of everything lists show: images,
// functions, sandboxes; and what clients do beside: signals, pulls, prunes.
func (e *Engine) Changes() *store.Changes { return e.cfg.Store.Changes() }

// EventOptions select changes.
type EventOptions struct {
	Since  uint64 // those after this generation
	Follow bool   // and new ones, until ctx ends or the engine stops
}

// Events calls emit for every change there is after a generation, oldest first,
// and with Follow for each new one until ctx ends or the engine stops (nil). It
// returns emit's error, and ErrChangesLost where changes are missing, also because
// emit was slower than they came.
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

// changed notes a function's deployment or removal.
func (f *function) changed(a store.ChangeAction) store.Change {
	return store.Change{Kind: store.ChangeFunction, Action: a, ID: f.name, Name: f.name, Attributes: map[string]string{
		"image": f.ref(), "digest": string(f.image.Digest), "tenant": f.config.Tenant, "revision": f.number(),
	}}
}

// changed notes what happens to a sandbox, with its own attributes (function, image and
// tenant, of a container network and work, where it has them) and more: keys and values in
// turn.
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

// attributesOf makes a map of keys and values in turn, without the empty values.
func attributesOf(pairs ...string) map[string]string {
	attributes := make(map[string]string, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			attributes[pairs[i]] = pairs[i+1]
		}
	}
	return attributes
}

// exited notes the end of a sandbox: how it ended, after how many whole seconds, and whether
// a client has stopped it.
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

// imageDone notes what was done with images by a name, "" for each one's own.
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

// pruned notes that all of a kind that was not in use is gone, and how many bytes were.
func (e *Engine) pruned(kind store.ChangeKind, bytes int64) {
	e.Changes().Add(store.Change{Kind: kind, Action: store.ActionPrune, Attributes: map[string]string{"bytes": strconv.FormatInt(bytes, 10)}})
}
