package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// ErrChangesLost: the changes asked for are not all remembered any more, or
// were counted by another engine.
var ErrChangesLost = errors.New("these changes are no longer remembered")

// Changes counts and remembers the changes of everything lists show: images,
// functions, sandboxes.
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

// started notes a sandbox's start. The attributes are function, image and
// tenant, where it has them; its end adds exit_code, and signal or oom where that
// ended it.
func (b *box) started() store.Change {
	attributes := make(map[string]string, 3)
	set := func(key, v string) {
		if v != "" {
			attributes[key] = v
		}
	}
	set("function", b.function)
	set("image", b.image)
	set("tenant", b.tenant)
	b.attributes = attributes
	return store.Change{Kind: store.ChangeSandbox, Action: store.ActionStart, ID: b.id, Name: b.name, Attributes: attributes, Labels: b.labels}
}

// exited notes its end.
func (b *box) exited(exit sandbox.ExitStatus) store.Change {
	attributes := maps.Clone(b.attributes)
	attributes["exit_code"] = strconv.Itoa(exit.Code)
	if exit.Signal != 0 {
		attributes["signal"] = strconv.Itoa(exit.Signal)
	}
	if exit.OOMKilled {
		attributes["oom"] = "true"
	}
	return store.Change{Kind: store.ChangeSandbox, Action: store.ActionExit, ID: b.id, Name: b.name, Attributes: attributes, Labels: b.labels}
}
