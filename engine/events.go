package engine

import (
	"github.com/fre-engine/fre/store"
)

// changed returns the change for a function's deployment or removal.
func (f *function) changed(a store.ChangeAction) store.Change {
	return store.Change{Kind: store.ChangeFunction, Action: a, ID: f.name, Name: f.name, Attributes: map[string]string{
		"image": f.ref(), "digest": string(f.image.Digest), "tenant": f.config.Tenant, "revision": f.number(),
	}}
}
