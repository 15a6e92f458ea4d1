package engine

import (
	"github.com/fre-engine/fre/store"
)

// changed returns the change for a function's deployment or removal.
func (p *program) changed(a store.ChangeAction) store.Change {
	return store.Change{Kind: store.ChangeFunction, Action: a, ID: p.name, Name: p.name, Attributes: map[string]string{
		"image": p.ref(), "digest": string(p.image.Digest), "tenant": p.config.Tenant, "revision": p.number(),
	}}
}
