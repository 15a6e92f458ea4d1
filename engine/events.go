package engine

import (
	"strconv"

	"github.com/fre-engine/fre/store"
)

// changed returns the change for a function's deployment or removal.
func (f *function) changed(a store.ChangeAction) store.Change {
	return store.Change{Kind: store.ChangeFunction, Action: a, ID: f.name, Name: f.name, Attributes: map[string]string{
		"image": f.ref(), "digest": string(f.image.Digest), "tenant": f.config.Tenant, "revision": f.number(),
	}}
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
